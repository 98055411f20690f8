//! Reports variables that begin with `TOLLGATE_` but that no setting reads, with a suggestion. For a former setting,
//! the error says what to do instead.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::service_links::is_service_link;

/// The names and values of all environment variables.
pub(super) type Environment = Vec<(OsString, OsString)>;

/// The prefix of tollgate's own variables.
const OURS: &str = "TOLLGATE_";

/// Variables that used to be settings, and what to do instead of setting them.
const REMOVED: [(&str, &str); 13] = [
    (
        "TOLLGATE_HTTP_TIMEOUT",
        "remove it; the value is always 30s",
    ),
    (
        "TOLLGATE_KEEPALIVE_TIMEOUT",
        "remove it; the value is always 20s",
    ),
    (
        "TOLLGATE_LOG_DECISIONS_KEEP",
        "remove it; the value is always 3",
    ),
    (
        "TOLLGATE_MAX_BAD_STREAMS",
        "remove it; the value is always 1024",
    ),
    (
        "TOLLGATE_MAX_DESCRIPTORS",
        "remove it; the value is always 1000",
    ),
    ("TOLLGATE_MAX_ENTRIES", "remove it; the value is always 100"),
    (
        "TOLLGATE_MAX_HEADER_BYTES",
        "remove it; the value is always 65536",
    ),
    (
        "TOLLGATE_MAX_PENDING_RESETS",
        "remove it; the value is always 256",
    ),
    (
        "TOLLGATE_REDIS_CONNECTIONS",
        "remove it; the value is always 1",
    ),
    (
        "TOLLGATE_REDIS_MAX_WAITING",
        "remove it; the value is always 10000",
    ),
    (
        "TOLLGATE_REPLICAS_UNTIL_KNOWN",
        "set TOLLGATE_REPLICAS to the number of replicas instead",
    ),
    (
        "TOLLGATE_STATE_FILE",
        "set TOLLGATE_REPLICAS to the number of replicas instead",
    ),
    (
        "TOLLGATE_UNSEEN_SHARE",
        "remove it; a replica admits one hit of each counter that it does not know",
    ),
];

/// One line for each of tollgate's variables that no setting of `command` reads. Values can be secrets, so no line
/// contains one.
pub(super) fn unknown(command: &Command, environment: &Environment) -> Vec<String> {
    let known: Vec<&str> = command
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .filter_map(Arg::get_env)
        .filter_map(|name| name.to_str())
        .collect();
    let mut lines: Vec<_> = environment
        .iter()
        .filter(|(name, value)| !is_service_link(name, value))
        .map(|(name, _)| name.to_string_lossy())
        .filter(|name| name.starts_with(OURS) && !known.contains(&name.as_ref()))
        .map(|name| match (way_out(&name), nearest(&name, &known)) {
            (Some(way_out), _) => {
                format!("the variable {name} is no longer a setting; {way_out}")
            }
            (None, Some(near)) => format!("the variable {name} is unknown; did you mean {near}?"),
            (None, None) => format!(
                "the variable {name} is unknown; `tollgate serve --help` lists all variables"
            ),
        })
        .collect();
    lines.sort();
    lines
}

fn way_out(name: &str) -> Option<&'static str> {
    let removed = REMOVED.iter().find(|(removed, _)| *removed == name);
    removed.map(|(_, way_out)| *way_out)
}

/// The known variable that `name` seems to mean: the name without the prefix, or one that differs in a few letters.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    const FEW: usize = 3;
    let bare = name.strip_prefix(OURS).unwrap_or(name);
    let foreign = known.iter().find(|known| **known == bare);
    let distances = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(name, known), *known));
    let near = distances.min().filter(|(distance, _)| *distance <= FEW);
    foreign.copied().or(near.map(|(_, known)| known))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::settings::command_line::Cli;

    #[track_caller]
    fn check(name: &str, value: &str, expected: Option<&str>) {
        let environment = vec![(name.into(), value.into())];
        let lines = unknown(&Cli::command(), &environment);
        let expected: Vec<_> = expected
            .map(|end| format!("the variable {name} is unknown; {end}"))
            .into_iter()
            .collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_misspelt_variable_is_refused_with_the_one_it_means() {
        check("TOLLGATE_MAX_COUNTERS", "5", None);
        check("PATH", "/bin", None);
        check("TOLLGATEWAY", "x", None);
        let meant = |name: &str| format!("did you mean {name}?");
        for (name, means) in [
            ("TOLLGATE_MAX_COUNTER", "TOLLGATE_MAX_COUNTERS"),
            ("TOLLGATE_CONFIGDIR", "TOLLGATE_CONFIG_DIR"),
            ("TOLLGATE_CONFIG_DRI", "TOLLGATE_CONFIG_DIR"),
            ("TOLLGATE_GRPC_PORT", "GRPC_PORT"),
            ("TOLLGATE_REDIS_URL", "REDIS_URL"),
        ] {
            check(name, "sesame", Some(&meant(means)));
        }
        let none = "`tollgate serve --help` lists all variables";
        check("TOLLGATE_FAVOURITE_COLOUR", "sesame", Some(none));
    }

    #[test]
    fn a_variable_of_a_former_setting_is_refused_with_the_way_out() {
        let command = Cli::command();
        for (name, way_out) in REMOVED {
            let lines = unknown(&command, &vec![(name.into(), "1".into())]);
            let expected = format!("the variable {name} is no longer a setting; {way_out}");
            assert_eq!(lines, [expected]);
        }
        // A service link is not reported.
        let link = vec![(
            "TOLLGATE_STATE_FILE_PORT".into(),
            "tcp://10.0.0.1:80".into(),
        )];
        assert_eq!(unknown(&command, &link), [""; 0]);
    }

    #[test]
    fn a_link_of_kubernetes_is_no_misspelt_variable() {
        check("TOLLGATE_PORT", "tcp://10.0.0.1:8081", None);
        check("TOLLGATE_SERVICE_PORT_GRPC", "8081", None);
        check("TOLLGATE_PORT", "8081", Some("did you mean PORT?"));
    }
}
