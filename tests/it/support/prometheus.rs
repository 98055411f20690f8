//! A real Prometheus.

use std::{fs, net::SocketAddr, process::Command};

use serde_json::Value;
use tempfile::TempDir;

use super::{
    Process, free_port,
    http::{get, try_get},
    tool, wait_until,
};

#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Prometheus {
    #[track_caller]
    pub fn start(config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("prometheus.yaml");
        fs::write(&file, config).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(tool("prometheus"));
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--storage.tsdb.path={}", folder.path().display()));
        let process = Process::start_quietly(&mut command);
        wait_until("Prometheus is ready", || {
            let ready = try_get(address, "/-/ready", &[]);
            ready.is_ok_and(|reply| reply.status == 200)
        });
        Self {
            address,
            _process: process,
            _folder: folder,
        }
    }

    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let bytes = expression.bytes();
        let encoded: String = bytes.map(|byte| format!("%{byte:02X}")).collect();
        let reply = get(self.address, &format!("/api/v1/query?query={encoded}"));
        assert_eq!(reply.status, 200, "{expression}: {}", reply.body);
        let reply: Value = serde_json::from_str(&reply.body).unwrap();
        reply["data"]["result"].as_array().unwrap().clone()
    }

    /// Waits until every target was read so many times more.
    #[track_caller]
    pub fn await_scrapes(&self, count: usize) {
        for _ in 0..count {
            let last = self.query("max(timestamp(up))");
            wait_until("the next scrape", || {
                let now = self.query("min(timestamp(up))");
                let moment = |series: &[Value]| {
                    let text = series.first()?["value"][1].as_str()?;
                    text.parse::<f64>().ok()
                };
                moment(&now) > moment(&last)
            });
        }
    }
}
