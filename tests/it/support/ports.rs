//! Ports for servers that cannot take port 0, or that start again on the port that they had.
//!
//! The kernel gives a port to whoever asks next, so a port that is free now may soon be the one of a client's connection
//! or of another test's server, above all while its own server is down. These ports are below those that the kernel
//! gives away, and each is handed out once: a process locks a block of them, and takes the next one when it is used up.

use std::{
    fs::{self, File},
    net::TcpStream,
    ops::Range,
    sync::Mutex,
};

/// A node of a Redis Cluster also listens 10,000 ports higher, which is below the kernel's ports as well.
const PORTS: Range<u16> = 10_000..20_000;

const BLOCK: u16 = 500;

/// The ports of this process that were not handed out, and the locks of their blocks.
#[derive(Debug)]
struct OwnPorts {
    left: Range<u16>,
    blocks: Vec<File>,
}

static OWN: Mutex<OwnPorts> = Mutex::new(OwnPorts {
    left: 0..0,
    blocks: Vec::new(),
});

/// A port that no server listens on, and that no other caller gets.
pub fn free_port() -> u16 {
    let mut own = OWN.lock().unwrap();
    loop {
        let Some(port) = own.left.next() else {
            own.take_block();
            continue;
        };
        if [port, port + 10_000].into_iter().all(is_free) {
            return port;
        }
    }
}

/// Asks without listening there: a process that another test starts at that moment would have the listener as well,
/// until it executes its program.
fn is_free(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err()
}

impl OwnPorts {
    fn take_block(&mut self) {
        let folder = std::env::temp_dir().join("tollgate-test-ports");
        fs::create_dir_all(&folder).unwrap();
        for first in PORTS.step_by(BLOCK.into()) {
            let file = File::options()
                .create(true)
                .append(true)
                .open(folder.join(first.to_string()));
            let file = file.unwrap();
            // Unlocked when the process ends, however that happens.
            if file.try_lock().is_ok() {
                self.blocks.push(file);
                self.left = first..first + BLOCK;
                return;
            }
        }
        panic!("all ports for tests are in use");
    }
}
