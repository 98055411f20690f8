//! An Envoy process.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::{
    Process,
    http::{get, try_get},
    tool, wait_until,
};

#[derive(Debug)]
pub struct Envoy {
    _process: Process,
    /// Its working folder; a `pipe` may be a file name in it.
    _folder: TempDir,
    pub admin: SocketAddr,
}

impl Envoy {
    /// Starts it with a bootstrap in YAML, in which port 0 stands for a free port.
    ///
    /// `bootstrap` is called again for each attempt: if a port was not free after all, it can choose another one.
    #[track_caller]
    pub fn start(bootstrap: impl Fn() -> String) -> Self {
        let mut said = String::new();
        for _ in 0..10 {
            match try_start(&bootstrap()) {
                Ok(envoy) => return envoy,
                Err(log) if log.contains("Address already in use") => said = log,
                Err(log) => panic!("Envoy ended:\n{log}"),
            }
        }
        panic!("Envoy finds no free port:\n{said}");
    }

    /// Starts the one of a page in `docs/`: its own ports stand for 8000, tollgate's for 8081 and the service's for 9000.
    #[track_caller]
    pub fn of_page(page: &str, grpc: SocketAddr, service: SocketAddr) -> Self {
        let address = "{ socket_address: { address: 127.0.0.1, port_value: 0 } }";
        let mut page = format!("admin: {{ address: {address} }}\n{page}");
        for (known, own) in [(8000, 0), (8081, grpc.port()), (9000, service.port())] {
            let port = |port: u16| format!("port_value: {port}");
            page = page.replace(&port(known), &port(own));
        }
        Self::start(|| page.clone())
    }

    /// Starts one that passes on all calls to `port`, in its default settings.
    pub fn before(port: u16) -> Self {
        let bootstrap = format!(
            r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }} }}
static_resources:
  listeners:
  - name: all
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: all
          http_filters: [{ROUTER}]
          route_config:
            virtual_hosts:
            - {{ name: all, domains: ["*"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: debug }} }}] }}
  clusters:
  - name: debug
    load_assignment:
      cluster_name: debug
      endpoints:
      - lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}]
"#
        );
        Self::start(|| bootstrap.clone())
    }

    #[track_caller]
    pub fn listener(&self, name: &str) -> SocketAddr {
        let listeners = get(self.admin, "/listeners").body;
        let mut lines = listeners.lines();
        let address = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix("::"));
        let address = address.unwrap_or_else(|| panic!("no listener `{name}`:\n{listeners}"));
        let address: SocketAddr = address.parse().expect("it listens on a port");
        SocketAddr::from(([127, 0, 0, 1], address.port()))
    }

    /// The counter or gauge with this name; 0 if it never changed.
    #[track_caller]
    pub fn stat(&self, name: &str) -> u64 {
        // All of them together are a page of a megabyte.
        let page = get(self.admin, &format!("/stats?filter=^{name}$")).body;
        let value = page.trim().strip_prefix(&format!("{name}: "));
        value.map_or(0, |value| value.parse().expect("a number"))
    }
}

/// A bootstrap with an upstream `service` that answers each request with 200, in the places of `$UPSTREAM_LISTENER` and
/// `$UPSTREAM_CLUSTER`.
pub fn with_upstream(bootstrap: &str) -> String {
    let bootstrap = bootstrap.replace("    $UPSTREAM_LISTENER\n", UPSTREAM_LISTENER);
    bootstrap.replace("    $UPSTREAM_CLUSTER\n", UPSTREAM_CLUSTER)
}

const ROUTER: &str = "{ name: envoy.filters.http.router, typed_config: \
    { \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }";

const UPSTREAM_LISTENER: &str = r#"    - name: service
      address: { pipe: { path: service.sock } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: service
                # A client that reads to the end would wait for it.
                delayed_close_timeout: 0s
                route_config:
                  virtual_hosts:
                    - name: service
                      domains: ["*"]
                      routes: [{ match: { prefix: / }, direct_response: { status: 200 } }]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
"#;

const UPSTREAM_CLUSTER: &str = r#"    - name: service
      type: STATIC
      load_assignment:
        cluster_name: service
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: service.sock } } } }] }]
"#;

/// Returns its output if it ended instead of becoming ready.
fn try_start(bootstrap: &str) -> Result<Envoy, String> {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("envoy.yaml"), bootstrap).unwrap();
    let mut command = Command::new(tool("envoy"));
    command.args([
        "--concurrency",
        "2",
        "--disable-hot-restart",
        "--config-path",
        "envoy.yaml",
    ]);
    command
        .args(["--admin-address-path", "admin"])
        .current_dir(folder.path());
    let log = File::create(file("log")).unwrap();
    let mut process = Process::start(command.stdout(Stdio::null()).stderr(log));
    let mut admin = None;
    let mut has_ended = false;
    wait_until("Envoy is ready", || {
        has_ended = process.has_ended();
        let written = fs::read_to_string(file("admin")).ok();
        admin = written.and_then(|text| text.parse().ok());
        let is_ready = || Some(try_get(admin?, "/ready", &[]).ok()?.status == 200);
        has_ended || is_ready().unwrap_or(false)
    });
    if has_ended {
        return Err(fs::read_to_string(file("log")).unwrap());
    }
    Ok(Envoy {
        _process: process,
        _folder: folder,
        admin: admin.expect("it was asked there"),
    })
}
