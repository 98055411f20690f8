//! Errors for arguments that a command does not have, with a suggestion of what is probably meant. clap's own
//! suggestions only compare letters: for `--redis` it suggests `--redis-tls`.

use std::{ffi::OsString, path::Path};

use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::short_help::SETTINGS;
use crate::{config::suggest::nearest, foundation::printable::on_one_line};

/// The error to report instead of `error`, if that is about an argument that the command does not have.
pub(super) fn unexpected(
    command: &Command,
    arguments: &[OsString],
    error: &clap::Error,
) -> Option<clap::Error> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let mut command = command.clone();
    command.build();
    let mut names = arguments.iter().skip(1);
    while let Some(below) = names.next().and_then(|name| command.find_subcommand(name)) {
        command = below.clone();
    }
    let (argument, tip) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let argument = context(ContextKind::InvalidSubcommand);
            let folder = rule_folder(argument).filter(|_| Path::new(argument).exists())?;
            let tip = format!(
                "to serve the rules in it, write 'tollgate serve --config-dir {folder}'; to check them, 'tollgate \
                 check {argument}'"
            );
            (argument, Some(tip))
        }
        ErrorKind::UnknownArgument => {
            let argument = context(ContextKind::InvalidArg);
            let tip = match argument.strip_prefix("--") {
                Some(flag) => {
                    let meant = meant_flag(&command, flag);
                    meant.map(|meant| format!("a similar argument exists: '--{meant}'"))
                }
                None if argument.starts_with('-') => return None,
                None => flag_of_value(&command, argument)
                    .map(|meant| format!("write a value after its flag: '{meant}'")),
            };
            (argument, tip)
        }
        _ => return None,
    };
    let tip = tip.map_or_else(String::new, |tip| {
        format!("\n\n  tip: {}", on_one_line(&tip))
    });
    let text = format!("unexpected argument '{}' found{tip}", on_one_line(argument));
    Some(command.error(error.kind(), text))
}

/// The flag that was probably meant by one that the command does not have: a flag that differs in few letters, or else
/// the most common one that begins with as many of its words as possible.
fn meant_flag<'c>(command: &'c Command, wrong: &str) -> Option<&'c str> {
    let flags = || command.get_arguments();
    let usual = SETTINGS
        .iter()
        .filter_map(|(id, _)| flags().find(|flag| flag.get_id() == id));
    let flags: Vec<_> = usual.chain(flags()).filter_map(Arg::get_long).collect();
    let wrong = match wrong {
        // Other commands call that folder `--rules`.
        "rules" => "config-dir",
        // The flags of the HTTP port have no prefix.
        wrong => wrong.strip_prefix("http-").unwrap_or(wrong),
    };
    let few = (wrong.len() / 3).min(2);
    let close = nearest(wrong, flags.iter().copied());
    let close = close.and_then(|(distance, flag)| (distance <= few).then_some(flag));
    let find = |is_meant: &dyn Fn(&str) -> bool| flags.iter().copied().find(|flag| is_meant(flag));
    let begins = |with: &str| find(&|flag| flag.starts_with(with));
    let mut hyphens = wrong.rmatch_indices('-');
    close
        .or_else(|| begins(wrong))
        .or_else(|| hyphens.find_map(|(at, _)| begins(&wrong[..=at])))
        .or_else(|| find(&|flag| flag.ends_with(&format!("-{wrong}"))))
}

/// For a value without its flag, the flag and the value.
fn flag_of_value(command: &Command, value: &str) -> Option<String> {
    let has = |long: &str| {
        command
            .get_arguments()
            .any(|flag| flag.get_long() == Some(long))
    };
    if value.contains('=') && has("descriptor") {
        Some(format!("-d {value}"))
    } else if has("config-dir") {
        Some(format!("--config-dir {}", rule_folder(value)?))
    } else {
        has("rules").then(|| format!("--rules {value}"))
    }
}

/// The folder that an argument names: the argument itself, or the folder that contains it if it is a file.
fn rule_folder(argument: &str) -> Option<&str> {
    let path = Path::new(argument);
    if !path.is_file() {
        return Some(argument);
    }
    let folder = path.parent()?.to_str()?;
    Some(if folder.is_empty() { "." } else { folder })
}
