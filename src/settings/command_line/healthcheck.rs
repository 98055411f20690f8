//! The flags of `tollgate healthcheck`: those of `serve` that say where its ports are, with their variables.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use crate::settings::{
    shapes::ArgShape as _,
    values::{file_path, port, some_time},
};

#[derive(Debug, Args)]
#[command(
    after_help = "It reads the variables that `serve` reads, so a probe inside the container needs no flag. Exit code: \
                  0 if the server is healthy, 1 if not or if there is no answer, 2 for a bad command line."
)]
pub(crate) struct HealthCheck {
    /// Ask /healthcheck on the HTTP port; always the case if the gRPC port has TLS
    #[arg(long)]
    pub http: bool,

    /// How long to wait for the answer; the default fits into the second that Kubernetes gives a probe
    #[arg(long, value_parser = some_time, time = "700ms")]
    pub timeout: Duration,

    /// Unix socket of the gRPC service, instead of a port
    #[arg(long, env = "GRPC_UDS", value_parser = file_path, value_name = "PATH")]
    pub grpc_uds: Option<PathBuf>,

    /// Address of the gRPC port; an address that means all of them is replaced by loopback
    #[arg(long, env = "GRPC_HOST", text = ("HOST", "0.0.0.0"))]
    pub grpc_host: String,

    /// gRPC port
    #[arg(long, env = "GRPC_PORT", default_value_t = 8081, value_parser = port, value_name = "PORT")]
    pub grpc_port: u16,

    /// The gRPC port has TLS, so the HTTP port is asked
    #[arg(long, env = "GRPC_SERVER_USE_TLS", boolean = false)]
    pub grpc_tls: bool,

    /// Address of the HTTP port; an address that means all of them is replaced by loopback
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,

    /// HTTP port
    #[arg(long, env = "PORT", default_value_t = 8080, value_parser = port, value_name = "PORT")]
    pub port: u16,
}

impl HealthCheck {
    /// The socket of the gRPC service, if it has one.
    pub(crate) fn grpc_socket(&self) -> Option<&Path> {
        // An empty variable counts as unset.
        let path = self.grpc_uds.as_deref();
        path.filter(|path| !path.as_os_str().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, CommandFactory as _};

    use crate::settings::command_line::Cli;

    /// With another variable or another default, the probe would ask somewhere else.
    #[test]
    fn each_variable_means_the_same_as_in_serve() {
        let command = Cli::command();
        let flags = |name| command.find_subcommand(name).unwrap().get_arguments();
        let shape = |flag: &Arg| {
            (
                flag.get_long().map(str::to_owned),
                flag.get_default_values().to_vec(),
            )
        };
        let mut compared = 0;
        for flag in flags("healthcheck").filter(|flag| flag.get_env().is_some()) {
            let mut others = flags("serve");
            let other = others.find(|other| other.get_env() == flag.get_env());
            assert_eq!(shape(flag), shape(other.expect("a setting of serve")));
            compared += 1;
        }
        assert_eq!(compared, 6);
    }
}
