//! The settings in use and where each comes from, for people who inspect a running server.

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

/// A setting of `serve`.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedSetting {
    /// The group in the help.
    pub(crate) group: String,
    pub(crate) flag: String,
    pub(crate) variable: Option<String>,
    pub(crate) value: ResolvedValue,
    pub(crate) source: SettingSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResolvedValue {
    /// The setting has no value.
    Unset,
    /// The value could contain a password.
    Secret,
    Text(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingSource {
    Default,
    Variable,
    Flag,
}

impl SettingSource {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Variable => "variable",
            Self::Flag => "flag",
        }
    }
}

/// The group of the flags that have no heading in the help.
const FIRST_GROUP: &str = "Rules";

/// The settings of `serve` in `matches`, in the order of its help. Secrets are left out; these are the settings whose
/// variables have hidden values in the help.
pub(super) fn resolved(serve: &Command, matches: &ArgMatches) -> Vec<ResolvedSetting> {
    let settings = serve.get_arguments().filter_map(|argument| {
        let flag = argument.get_long()?;
        let id = argument.get_id().as_str();
        // Help and version are not settings.
        if matches.try_contains_id(id).is_err() || argument.get_env().is_none() {
            return None;
        }
        let source = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => SettingSource::Flag,
            Some(ValueSource::EnvVariable) => SettingSource::Variable,
            _ => SettingSource::Default,
        };
        Some(ResolvedSetting {
            group: argument
                .get_help_heading()
                .unwrap_or(FIRST_GROUP)
                .to_owned(),
            flag: format!("--{flag}"),
            variable: argument
                .get_env()
                .map(|name| name.to_string_lossy().into_owned()),
            value: value(argument, matches),
            source,
        })
    });
    settings.collect()
}

fn value(argument: &Arg, matches: &ArgMatches) -> ResolvedValue {
    let raw = matches.get_raw(argument.get_id().as_str());
    let values: Vec<_> = raw
        .into_iter()
        .flatten()
        .map(|value| value.to_string_lossy())
        .filter(|value| !value.is_empty())
        .collect();
    if values.is_empty() {
        ResolvedValue::Unset
    } else if argument.is_hide_env_values_set() {
        ResolvedValue::Secret
    } else {
        ResolvedValue::Text(values.join(","))
    }
}
