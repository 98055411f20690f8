//! `tollgate healthcheck`: asks the server on this machine for its health. It is made for probes that run a command.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr},
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Status;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    net::{
        dial::{Dial, DialError},
        endpoint::Endpoint,
    },
    settings::command_line::HealthCheck,
};

/// Most bytes of an HTTP reply that are read. Its first line is shorter.
const FIRST_LINE_BYTES: u64 = 64;

/// Why the server does not count as healthy.
#[derive(Debug, thiserror::Error)]
pub(super) enum HealthError {
    #[error("{0} is 0, which lets `serve` choose a port: give the one that its log names")]
    UnknownPort(&'static str),
    #[error("unhealthy: {place} answers {answer}")]
    Unhealthy { place: Place, answer: String },
    #[error("unhealthy: cannot reach {0}")]
    Unreachable(Place, #[source] Box<DialError>),
    #[error("unhealthy: {0} does not answer")]
    Unanswered(Place, #[source] io::Error),
    #[error("unhealthy: {place} answers {:?}: {}", status.code(), status.message())]
    Refused { place: Place, status: Status },
    #[error("unhealthy: {0} did not answer within --timeout")]
    TimedOut(Place),
}

/// Where to ask for health.
#[derive(Clone, Debug)]
pub(super) struct Place {
    endpoint: Endpoint,
    is_http: bool,
}

impl Place {
    /// The place that the server's settings name.
    fn new(settings: &HealthCheck) -> Result<Self, HealthError> {
        if let Some(path) = settings.grpc_socket().filter(|_| !settings.http) {
            return Ok(Self {
                endpoint: Endpoint::Unix(path.to_owned()),
                is_http: false,
            });
        }
        let is_http = settings.http || settings.grpc_tls;
        let (host, port, name) = if is_http {
            (&settings.host, settings.port, "--port")
        } else {
            (&settings.grpc_host, settings.grpc_port, "--grpc-port")
        };
        if port == 0 {
            return Err(HealthError::UnknownPort(name));
        }
        let endpoint = Endpoint::Tcp {
            host: reachable(host),
            port,
        };
        Ok(Self { endpoint, is_http })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.is_http { "HTTP" } else { "gRPC" };
        write!(f, "{} ({protocol})", self.endpoint)
    }
}

/// An address that reaches a server that listens on `host`, from its own machine.
fn reachable(host: &str) -> String {
    match host.trim_start_matches('[').trim_end_matches(']') {
        "" | "0.0.0.0" => Ipv4Addr::LOCALHOST.to_string(),
        "::" => Ipv6Addr::LOCALHOST.to_string(),
        host => host.to_owned(),
    }
}

/// Asks for health, and returns the line to print if it is good.
///
/// # Errors
///
/// If health is bad, or there is no answer in time.
pub(super) async fn healthcheck(settings: HealthCheck) -> Result<String, HealthError> {
    let place = Place::new(&settings)?;
    let asked = tokio::time::timeout(settings.timeout, ask(&place, &settings));
    match asked.await {
        Ok(answer) => answer.map(|()| format!("healthy: {place}")),
        Err(_) => Err(HealthError::TimedOut(place)),
    }
}

async fn ask(place: &Place, settings: &HealthCheck) -> Result<(), HealthError> {
    let unreachable = |error| HealthError::Unreachable(place.clone(), Box::new(error));
    let dial = Dial::plain(place.endpoint.clone());
    let unhealthy = |answer: &str| HealthError::Unhealthy {
        place: place.clone(),
        answer: answer.to_owned(),
    };
    if place.is_http {
        let line = status_line(&dial).await.map_err(|error| match error {
            DialError::Stream(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                HealthError::Unanswered(place.clone(), source)
            }
            error => unreachable(error),
        })?;
        return match line.split(' ').nth(1) {
            Some("200") => Ok(()),
            _ => Err(unhealthy(&line)),
        };
    }
    let channel = dial.channel(settings.timeout).await.map_err(unreachable)?;
    let reply = HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await;
    let reply = reply.map_err(|status| HealthError::Refused {
        place: place.clone(),
        status,
    })?;
    match reply.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        other => Err(unhealthy(other.as_str_name())),
    }
}

/// The first line of the reply to `/healthcheck`.
async fn status_line(dial: &Dial) -> Result<String, DialError> {
    let mut stream = dial.stream().await?;
    let request = format!(
        "GET /healthcheck HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        dial.authority()
    );
    let mut reply = Vec::new();
    let exchanged = async {
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut first = stream.take(FIRST_LINE_BYTES);
        first.read_to_end(&mut reply).await
    };
    exchanged.await.map_err(DialError::Stream)?;
    let text = String::from_utf8_lossy(&reply);
    match text.split_once("\r\n") {
        Some((line, _)) => Ok(line.to_owned()),
        None => Err(DialError::Stream(io::ErrorKind::UnexpectedEof.into())),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, FromArgMatches as _};

    use super::*;
    use crate::settings::command_line::{Cli, Command};

    /// `arguments` make the probe ask at `expected`.
    #[track_caller]
    fn check(arguments: &[&str], expected: &str) {
        let arguments = [&["tollgate", "healthcheck"], arguments].concat();
        // The environment of this process must not matter.
        let command = Cli::command().mut_subcommands(|command| {
            command.mut_args(|argument| argument.env(clap::builder::Resettable::Reset))
        });
        let matches = command.try_get_matches_from(arguments).unwrap();
        let Command::Healthcheck(settings) = Cli::from_arg_matches(&matches).unwrap().command
        else {
            panic!("another command");
        };
        let place = Place::new(&settings);
        let found = place.map_or_else(|error| error.to_string(), |place| place.to_string());
        assert_eq!(found, expected);
    }

    #[test]
    fn the_settings_of_the_server_say_where_to_ask() {
        check(&[], "127.0.0.1:8081 (gRPC)");
        check(&["--grpc-host", "::"], "[::1]:8081 (gRPC)");
        check(&["--grpc-host", "[::]"], "[::1]:8081 (gRPC)");
        check(&["--grpc-host", ""], "127.0.0.1:8081 (gRPC)");
        check(&["--grpc-host", "10.0.0.7"], "10.0.0.7:8081 (gRPC)");
        check(&["--grpc-uds", "/run/x"], "/run/x (gRPC)");
        check(&["--grpc-uds", ""], "127.0.0.1:8081 (gRPC)");
        check(&["--grpc-tls"], "127.0.0.1:8080 (HTTP)");
        // A Unix socket never has TLS.
        check(&["--grpc-tls", "--grpc-uds", "/run/x"], "/run/x (gRPC)");
        check(&["--http"], "127.0.0.1:8080 (HTTP)");
        check(&["--http", "--grpc-uds", "/run/x"], "127.0.0.1:8080 (HTTP)");
        let port = "--port is 0, which lets `serve` choose a port: give the one that its log names";
        check(&["--http", "--port", "0"], port);
        check(&["--grpc-port", "0"], &port.replace("--", "--grpc-"));
    }
}
