//! A master, a replica, and three sentinels for them.

use std::{fs, path::Path};

use super::{
    redis::{PROGRAMS, Redis},
    wait_until,
};

/// Killed on drop.
#[derive(Debug)]
pub struct Watched {
    /// The first was the master at the start.
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
}

pub const MASTER: &str = "mymaster";

impl Watched {
    #[track_caller]
    pub fn start() -> Self {
        Self::with_passwords(None, None)
    }

    /// The servers require one password, the sentinels another.
    #[track_caller]
    pub fn with_passwords(servers: Option<&str>, sentinels: Option<&str>) -> Self {
        let start = |more: &[String]| {
            let mut options = vec!["--repl-diskless-sync-delay".to_owned(), "0".to_owned()];
            if let Some(password) = servers {
                for option in ["--requirepass", "--masterauth"] {
                    options.extend([option.to_owned(), password.to_owned()]);
                }
            }
            options.extend_from_slice(more);
            let mut redis = Redis::with_made(PROGRAMS[0], |_| options.clone());
            redis.password = servers.map(str::to_owned);
            redis
        };
        let master = start(&[]);
        let port = master.port().to_string();
        let replica = start(&["--replicaof".to_owned(), format!("127.0.0.1 {port}")]);
        wait_until("the replica is up to date", || {
            let info = replica.cli(&["INFO", "replication"]);
            info.contains("master_link_status:up")
        });
        let watched = Self {
            servers: vec![master, replica],
            sentinels: [(); 3].map(|()| sentinel(&port, servers, sentinels)).into(),
        };
        wait_until("the sentinels know each other and the replica", || {
            watched.sentinels.iter().all(|sentinel| {
                let info = sentinel.cli(&["INFO", "sentinel"]);
                info.contains("status=ok,") && info.contains("slaves=1,sentinels=3")
            })
        });
        watched
    }

    /// `redis+sentinel://…`
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{MASTER}", self.addresses())
    }

    /// The sentinels, separated by commas.
    pub fn addresses(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(Redis::address).collect();
        addresses.join(",")
    }

    /// The index in `servers` of the master that the sentinels report.
    pub fn master(&self) -> usize {
        let reported = self.sentinels[0].cli(&["SENTINEL", "get-master-addr-by-name", MASTER]);
        let port = reported.lines().nth(1).unwrap_or_default().to_owned();
        let servers = self.servers.iter();
        let mut ports = servers.map(|server| server.port().to_string());
        ports.position(|known| known == port).expect("one of ours")
    }
}

/// A sentinel of the master at `master_port`, with the password of its servers and its own.
#[track_caller]
pub fn sentinel(master_port: &str, servers: Option<&str>, own: Option<&str>) -> Redis {
    let text = |folder: &Path| {
        let mut text = format!(
            "bind 127.0.0.1\n\
             dir {}\n\
             sentinel monitor {MASTER} 127.0.0.1 {master_port} 2\n\
             sentinel down-after-milliseconds {MASTER} 700\n\
             sentinel failover-timeout {MASTER} 6000\n",
            folder.display()
        );
        if let Some(password) = servers {
            text += &format!("sentinel auth-pass {MASTER} {password}\n");
        }
        if let Some(password) = own {
            text += &format!("requirepass {password}\nsentinel sentinel-pass {password}\n");
        }
        text
    };
    let mut redis = Redis::with_made(PROGRAMS[0], |folder| {
        let path = folder.join("sentinel.conf");
        fs::write(&path, text(folder)).unwrap();
        vec![path.to_str().unwrap().to_owned(), "--sentinel".to_owned()]
    });
    redis.password = own.map(str::to_owned);
    redis
}
