//! Settings of `serve` that other commands need in order to read rule files as it does.

use clap::Args;

use crate::{config::options::Options, settings::shapes::ArgShape as _};

/// The settings of `serve` that change the meaning of rule files.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Reading {
    /// Let several files name one domain, as `serve --merge-domains` does
    #[arg(
        long,
        env = "MERGE_DOMAIN_CONFIG",
        boolean = false,
        require_equals = true
    )]
    pub(crate) merge_domains: bool,

    /// Match keys and values separately, as `serve --strict-matching` does
    #[arg(
        long,
        env = "TOLLGATE_STRICT_MATCHING",
        boolean = false,
        require_equals = true
    )]
    pub(crate) strict_matching: bool,
}

impl Reading {
    /// The options of the rule compiler. Those that depend on other settings keep their defaults.
    pub(crate) fn options(self) -> Options {
        Options {
            merge_domains: self.merge_domains,
            strict_matching: self.strict_matching,
            ..Options::default()
        }
    }
}
