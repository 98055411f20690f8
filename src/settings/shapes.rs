//! Shapes that many flags share, as attributes of their own for `#[arg(…)]`.
//!
//! A method of [`ArgShape`] is such an attribute wherever the trait is in scope: `#[arg(long, boolean = false)]`.

use clap::{Arg, ArgAction};

use super::values::boolean;

/// Shapes of flags.
pub(super) trait ArgShape: Sized {
    /// `--flag`, `--flag true` and `--flag false`, with a default for the flag that is not given.
    fn boolean(self, default: bool) -> Self;

    /// A duration, with its default; `value_parser` says which durations there are.
    fn time(self, default: &'static str) -> Self;
}

impl ArgShape for Arg {
    fn boolean(self, default: bool) -> Self {
        // A field of type `bool` is a flag without a value otherwise.
        self.action(ArgAction::Set)
            .value_parser(boolean)
            .num_args(0..=1)
            .default_value(if default { "true" } else { "false" })
            .default_missing_value("true")
            .value_name("BOOL")
    }

    fn time(self, default: &'static str) -> Self {
        // Only an attribute `default_value` tells clap that the flag may be left out.
        self.required(false)
            .default_value(default)
            .value_name("DURATION")
    }
}
