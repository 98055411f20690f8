//! An nginx process.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    process::Command,
};

use tempfile::TempDir;

use super::{Process, free_port, tool, wait_until};

#[derive(Debug)]
pub struct Nginx {
    _process: Process,
    _folder: TempDir,
    pub address: SocketAddr,
}

impl Nginx {
    /// Starts one that passes on all calls to `port`, with further `directives` of its only location.
    #[track_caller]
    pub fn before(port: u16, directives: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let own = free_port();
        let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = places
            .map(|name| format!("  {name}_temp_path {name};\n"))
            .concat();
        let text = format!(
            "daemon off;\nmaster_process off;\npid pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n  access_log off;\n\
             {temporary}  server {{\n    listen 127.0.0.1:{own};\n    location / {{\n      \
             proxy_pass http://127.0.0.1:{port};\n      {directives}\n    }}\n  }}\n}}\n"
        );
        fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let mut command = Command::new(tool("nginx"));
        command
            .arg("-p")
            .arg(folder.path())
            .args(["-c", "nginx.conf", "-e", "stderr"]);
        let process = Process::start_quietly(&mut command);
        let address = SocketAddr::from(([127, 0, 0, 1], own));
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        Self {
            _process: process,
            _folder: folder,
            address,
        }
    }
}
