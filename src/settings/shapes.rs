//! Shapes that many flags of `serve` and other commands share, as attributes for `#[arg(…)]`.
//!
//! Wherever [`ArgShape`] is in scope, its methods can be used as attributes: `#[arg(long, boolean = false)]`.

use clap::{
    Arg, ArgAction,
    builder::{PossibleValuesParser, TypedValueParser},
};

use super::values::{boolean, file_path};
use crate::foundation::named::Named;

/// Shapes of flags.
pub(super) trait ArgShape: Sized {
    /// Accepts `--flag`, `--flag true` and `--flag false`. `default` applies if the flag is left out.
    fn boolean(self, default: bool) -> Self;

    /// A duration, with a default. `value_parser` says which durations are valid.
    fn time(self, default: &'static str) -> Self;

    /// One of the values of an enum, in upper or lower case. `name` stands for the value in the help.
    fn one_of(self, name: &'static str) -> Self;

    /// [`Self::one_of`] with a default.
    fn choice(self, name_and_default: (&'static str, &'static str)) -> Self;

    /// A text with a default.
    fn text(self, name_and_default: (&'static str, &'static str)) -> Self;

    /// A secret, which the help never shows.
    fn hidden(self, name: &'static str) -> Self;

    /// The path of a file that contains the value of another flag.
    fn file_instead_of(self, flag: &'static str) -> Self;
}

impl ArgShape for Arg {
    fn boolean(self, default: bool) -> Self {
        // Otherwise a field of type `bool` would be a flag without a value.
        self.action(ArgAction::Set)
            .value_parser(boolean)
            .num_args(0..=1)
            .default_value(if default { "true" } else { "false" })
            .default_missing_value("true")
            .value_name("BOOL")
    }

    fn time(self, default: &'static str) -> Self {
        // Only an attribute `default_value` makes clap's derive accept that the flag is left out.
        self.required(false)
            .default_value(default)
            .value_name("DURATION")
    }

    fn one_of(self, name: &'static str) -> Self {
        self.ignore_case(true).value_name(name)
    }

    fn choice(self, name_and_default: (&'static str, &'static str)) -> Self {
        self.text(name_and_default).ignore_case(true)
    }

    fn text(self, (name, default): (&'static str, &'static str)) -> Self {
        self.required(false).default_value(default).value_name(name)
    }

    fn hidden(self, name: &'static str) -> Self {
        self.hide_env_values(true).value_name(name)
    }

    fn file_instead_of(self, flag: &'static str) -> Self {
        self.value_parser(file_path)
            .conflicts_with(flag)
            .value_name("FILE")
    }
}

/// Parses the name of a value, in upper or lower case if the flag ignores case.
pub(super) fn named<T: Named>() -> impl TypedValueParser<Value = T> {
    let names = T::NAMES.iter();
    PossibleValuesParser::new(names.map(|(name, _)| *name)).map(|given: String| {
        let mut names = T::NAMES.iter();
        let found = names.find(|(name, _)| name.eq_ignore_ascii_case(&given));
        found.expect("clap accepts only these names").1
    })
}
