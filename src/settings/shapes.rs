//! Shapes that many flags share, as attributes of their own for `#[arg(…)]`.
//!
//! A method of [`ArgShape`] is such an attribute wherever the trait is in scope: `#[arg(long, boolean = false)]`.

use clap::{
    Arg, ArgAction,
    builder::{PossibleValuesParser, TypedValueParser},
};

use super::values::{boolean, file_path};
use crate::foundation::named::Named;

/// Shapes of flags.
pub(super) trait ArgShape: Sized {
    /// `--flag`, `--flag true` and `--flag false`, with a default for the flag that is not given.
    fn boolean(self, default: bool) -> Self;

    /// A duration, with its default; `value_parser` says which durations there are.
    fn time(self, default: &'static str) -> Self;

    /// One of the values of an enum in any case, with the name of the value.
    fn one_of(self, name: &'static str) -> Self;

    /// Like [`Self::one_of`], with a default after the name.
    fn choice(self, name_and_default: (&'static str, &'static str)) -> Self;

    /// A text, with the name of the value and a default.
    fn text(self, name_and_default: (&'static str, &'static str)) -> Self;

    /// A secret, which no help shows, with the name of the value.
    fn hidden(self, name: &'static str) -> Self;

    /// A file that contains the value of another flag.
    fn file_instead_of(self, flag: &'static str) -> Self;
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

/// Parses a name of a value, in any case if the flag ignores it.
pub(super) fn named<T: Named>() -> impl TypedValueParser<Value = T> {
    let names = T::NAMES.iter();
    PossibleValuesParser::new(names.map(|(name, _)| *name)).map(|given: String| {
        let mut names = T::NAMES.iter();
        let found = names.find(|(name, _)| name.eq_ignore_ascii_case(&given));
        found.expect("clap accepts only these names").1
    })
}
