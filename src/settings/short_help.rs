//! The short help of `serve`: the settings that most installations need. The long help has all settings.

use std::ffi::OsString;

use clap::Command;

/// The settings of `serve -h`, each with a text of one line. Within a group, the most common ones come first.
pub(super) const SETTINGS: [(&str, &str); 28] = [
    (
        "config_dir",
        "Folder of rule files, watched for changes [default: config]",
    ),
    ("merge_domains", "Let several files name one domain"),
    ("grpc_port", "gRPC port, which Envoy calls"),
    ("grpc_host", "Address of the gRPC port"),
    ("grpc_uds", "Serve gRPC on this Unix socket instead"),
    ("port", "HTTP port: /healthcheck, /json"),
    ("host", "Address of the HTTP port"),
    ("http_json", "Answer requests at /json of the HTTP port"),
    ("debug_port", "Debug port: /metrics, /stats, /rlconfig"),
    ("debug_host", "Address of the debug port"),
    ("grpc_tls", "Require TLS on the gRPC port"),
    ("grpc_tls_cert", "Certificate of the server, in PEM"),
    ("grpc_tls_key", "Its key, in PEM"),
    (
        "grpc_client_ca",
        "Require client certificates of this authority",
    ),
    ("redis_url", "Count in this Redis instead of in memory"),
    (
        "redis_url_file",
        "File with its address, if that has a password",
    ),
    (
        "redis_timeout",
        "Longest time that a decision waits for Redis",
    ),
    ("max_counters", "Most counters held in memory"),
    ("shadow_mode", "Count and report as usual, but answer OK"),
    (
        "response_headers",
        "Add RateLimit-Limit, -Remaining and -Reset to responses",
    ),
    ("retry_after", "Add Retry-After to refused requests"),
    (
        "on_store_loss",
        "Answer while Redis does not: error, allow, deny or local",
    ),
    ("statsd", "Send statistics to statsd"),
    ("prometheus", "Serve statistics for Prometheus on port 9090"),
    ("workers", "Worker threads; 0 means one per core"),
    ("drain_delay", "How long to keep serving after SIGTERM"),
    (
        "log_level",
        "Lowest level of log lines: error, warn, info, debug or trace",
    ),
    ("log_format", "Format of log lines: text or json"),
];

/// `command` with the short help of `serve`, unless `arguments` ask for the long one.
pub(super) fn unless_long(command: Command, arguments: &[OsString]) -> Command {
    let first = arguments
        .iter()
        .find(|argument| *argument == "--help" || *argument == "-h");
    if first.is_none_or(|first| first == "--help") {
        return command;
    }
    command.mut_subcommand("serve", |serve| {
        let count = serve.get_arguments().count();
        serve
            .mut_args(|argument| {
                let mut settings = SETTINGS.iter();
                match settings.find(|(id, _)| argument.get_id() == id) {
                    Some((_, text)) => argument.help(*text).hide_env(true).hide_possible_values(true),
                    None => argument.hide_short_help(true),
                }
            })
            // Each setting takes one line, however wide the terminal is.
            .term_width(0)
            .after_help(format!(
                "`tollgate serve --help` has all {count} settings, and the environment variable of each."
            ))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::settings::command_line::Cli;

    #[test]
    fn the_short_help_lists_settings_that_there_are() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for (id, _) in SETTINGS {
            assert!(
                serve.get_arguments().any(|flag| flag.get_id() == id),
                "{id}"
            );
        }
    }
}
