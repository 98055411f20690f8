//! The Envoy of a case.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::{
    cases::Layout,
    http::try_get,
    processes::{Pid, Process},
};

/// Worker threads of Envoy.
const WORKERS: &str = "2";

/// An Envoy in front of the upstream. Killed on drop.
#[derive(Debug)]
pub struct Front {
    process: Process,
    pub listener: SocketAddr,
}

/// Counts of the rate limit service's answers to Envoy so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub ok: u64,
    pub over_limit: u64,
    /// Calls without a decision: too late, refused or broken. Their requests passed.
    pub error: u64,
    /// The part of `error` that reached Envoy's timeout.
    pub late: u64,
}

impl Asked {
    pub fn all(self) -> u64 {
        self.ok + self.over_limit + self.error
    }

    /// The counts since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            ok: self.ok - earlier.ok,
            over_limit: self.over_limit - earlier.over_limit,
            error: self.error - earlier.error,
            late: self.late - earlier.late,
        }
    }
}

impl Front {
    /// Starts it in front of `upstream`, a Unix socket. It calls `service`, if given, for every request.
    pub fn start(
        program: &Path,
        upstream: &Path,
        service: Option<SocketAddr>,
        layout: Layout,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let config = folder.path().join("envoy.yaml");
        fs::write(&config, bootstrap(upstream, service, layout))?;
        let mut command = Command::new(program);
        command
            .args(["--concurrency", WORKERS, "--disable-hot-restart"])
            .arg("--config-path")
            .arg(config);
        let process = Process::start(command, folder, |line| {
            let (_, address) = line.split_once("admin address: ")?;
            Some((address.trim().parse().ok()?, None))
        });
        let process = process.context("Envoy does not start")?;
        let listeners = page(process.address, "/listeners")?;
        let listener = listeners
            .lines()
            .find_map(|line| line.strip_prefix("front::")?.parse().ok())
            .with_context(|| format!("Envoy has no listener: {listeners}"))?;
        Ok(Self { process, listener })
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    pub fn asked(&self) -> anyhow::Result<Asked> {
        let page = page(self.process.address, "/stats?filter=ratelimit")?;
        let count = |name: &str| {
            let mut lines = page.lines();
            // A counter that never changed may be missing.
            lines
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .map_or(Ok(0), str::parse)
        };
        Ok(Asked {
            ok: count("cluster.upstream.ratelimit.ok")?,
            over_limit: count("cluster.upstream.ratelimit.over_limit")?,
            error: count("cluster.upstream.ratelimit.error")?,
            late: count("cluster.ratelimit.upstream_rq_timeout")?,
        })
    }
}

fn page(admin: SocketAddr, path: &str) -> anyhow::Result<String> {
    let reply = try_get(admin, path, &[]).context("Envoy's admin port does not answer")?;
    ensure!(reply.status == 200, "{path} of Envoy: {}", reply.status);
    Ok(reply.body)
}

/// The path at which `make tools` installs Envoy.
pub fn installed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/envoy")
}

/// The bootstrap. Without a service it contains neither the filter nor its cluster.
fn bootstrap(upstream: &Path, service: Option<SocketAddr>, layout: Layout) -> String {
    let (filter, cluster, actions) = match service {
        None => (String::new(), String::new(), "[]".to_owned()),
        Some(service) => {
            let actions = layout.keys().iter().map(|key| {
                format!(
                    "{{ actions: [{{ request_headers: \
                     {{ header_name: x-user, descriptor_key: {key} }} }}] }}"
                )
            });
            let actions: Vec<_> = actions.collect();
            let cluster = CLUSTER
                .replace("$HOST", &service.ip().to_string())
                .replace("$PORT", &service.port().to_string());
            (
                FILTER.to_owned(),
                cluster,
                format!("[{}]", actions.join(", ")),
            )
        }
    };
    include_str!("bootstrap.yaml")
        .replace("$ACTIONS", &actions)
        .replace("$FILTER", &filter)
        .replace("$CLUSTER", &cluster)
        .replace("$UPSTREAM", &upstream.display().to_string())
}

/// Without a `timeout`, so that the default applies.
const FILTER: &str = r#"- name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: bench
                      failure_mode_deny: false
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: ratelimit } }"#;

const CLUSTER: &str = r#"- name: ratelimit
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: ratelimit
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: $HOST, port_value: $PORT } } }"#;
