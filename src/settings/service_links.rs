//! Variables that the kubelet sets for each Service of a namespace ("service links").
//!
//! A Service called `tollgate` causes `TOLLGATE_PORT=tcp://10.0.0.1:8081` and others to be set. One called `statsd`
//! causes `STATSD_PORT=tcp://…`, whose name is that of a setting. None of them is meant as a setting.

use std::{ffi::OsStr, net::IpAddr};

/// Whether the kubelet set this variable for a Service.
pub(super) fn is_service_link(name: &OsStr, value: &OsStr) -> bool {
    let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else {
        return false;
    };
    is_of_port(name, value) || is_of_service(name, value)
}

/// `NAME_PORT`; `NAME_PORT_80_TCP`; and the latter followed by `_PROTO`, `_PORT` or `_ADDR`.
fn is_of_port(name: &str, value: &str) -> bool {
    if name.ends_with("_PORT") && is_url(value) {
        return true;
    }
    let (name, fits) = if let Some(name) = name.strip_suffix("_PROTO") {
        (name, protocol(value).is_some())
    } else if let Some(name) = name.strip_suffix("_ADDR") {
        (name, is_address(value))
    } else if let Some(name) = name.strip_suffix("_PORT") {
        (name, is_port(value))
    } else {
        (name, is_url(value))
    };
    let Some((name, transport)) = name.rsplit_once('_') else {
        return false;
    };
    let Some((name, port)) = name.rsplit_once('_') else {
        return false;
    };
    let is_named = name
        .strip_suffix("_PORT")
        .is_some_and(|name| !name.is_empty());
    fits && is_named && is_port(port) && protocol(&transport.to_ascii_lowercase()).is_some()
}

/// `NAME_SERVICE_HOST`; `NAME_SERVICE_PORT`; and the latter followed by `_` and the name of a port.
fn is_of_service(name: &str, value: &str) -> bool {
    if let Some(service) = name.strip_suffix("_SERVICE_HOST") {
        return !service.is_empty() && is_address(value);
    }
    let Some((service, port_name)) = name.split_once("_SERVICE_PORT") else {
        return false;
    };
    let is_end = port_name.is_empty() || (port_name.starts_with('_') && port_name.len() > 1);
    !service.is_empty() && is_end && is_port(value)
}

/// `tcp://10.0.0.1:80`
fn is_url(value: &str) -> bool {
    let Some((scheme, address)) = value.split_once("://") else {
        return false;
    };
    let Some((host, port)) = address.rsplit_once(':') else {
        return false;
    };
    protocol(scheme).is_some() && is_address(host) && is_port(port)
}

fn is_address(value: &str) -> bool {
    let bare = value
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(value).parse::<IpAddr>().is_ok()
}

fn is_port(value: &str) -> bool {
    value.parse::<u16>().is_ok()
}

fn protocol(name: &str) -> Option<&str> {
    ["tcp", "udp", "sctp"]
        .into_iter()
        .find(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::settings::command_line::Cli;

    /// The variables of a Service with this cluster IP and one port (kubelet, `envvars.FromServices`).
    fn links(service: &str, host: &str) -> Vec<(String, String)> {
        let name = service.to_uppercase().replace('-', "_");
        let url = match host.contains(':') {
            true => format!("tcp://[{host}]:8081"),
            false => format!("tcp://{host}:8081"),
        };
        [
            ("SERVICE_HOST", host),
            ("SERVICE_PORT", "8081"),
            ("SERVICE_PORT_GRPC", "8081"),
            ("PORT", &url),
            ("PORT_8081_TCP", &url),
            ("PORT_8081_TCP_PROTO", "tcp"),
            ("PORT_8081_TCP_PORT", "8081"),
            ("PORT_8081_TCP_ADDR", host),
        ]
        .map(|(end, value)| (format!("{name}_{end}"), value.to_owned()))
        .into()
    }

    #[test]
    fn every_variable_of_a_service_is_recognised() {
        for service in [
            "tollgate",
            "tollgate-http",
            "tollgate-reuse",
            "statsd",
            "grpc",
        ] {
            for host in ["10.0.0.1", "fd00::1"] {
                for (name, value) in links(service, host) {
                    let is_link = is_service_link(name.as_ref(), value.as_ref());
                    assert!(is_link, "{name}={value}");
                }
            }
        }
    }

    #[test]
    fn a_setting_is_none_unless_its_value_is_that_of_a_link() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for name in serve.get_arguments().filter_map(clap::Arg::get_env) {
            for value in ["8081", "0", "true", "10.0.0.1", "tcp", "tcp://collector"] {
                assert!(!is_service_link(name, value.as_ref()), "{name:?}={value}");
            }
        }
        for (name, value) in [
            ("TOLLGATE_PORT", "8081"),
            ("TOLLGATE_SERVICE_HOST", "here"),
            ("_SERVICE_HOST", "10.0.0.1"),
            ("TOLLGATE_SERVICE_PORTS", "80"),
            ("TOLLGATE_PORT_X_TCP", "tcp://10.0.0.1:80"),
        ] {
            assert!(!is_service_link(name.as_ref(), value.as_ref()), "{name}");
        }
    }
}
