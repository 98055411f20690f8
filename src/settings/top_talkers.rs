//! Settings of top talkers: the values that hit each rule most.

use clap::{Args, ValueEnum};

use super::shapes::ArgShape as _;
use crate::observe::talkers::{TalkerChoice, ValueForm};

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Statistics")]
pub(crate) struct TopTalkers {
    /// Hits that are counted by value for /top of the debug port, which shows the values with the most hits on each
    /// rule: off, refused (those over a limit) or all, which costs each decision some work
    #[arg(long, env = "TOLLGATE_TOP_TALKERS", choice = ("WHICH", "refused"))]
    pub top_talkers: CountedHits,

    /// Form of values in /top: show, hash (the first 16 digits of their SHA-256) or hide (only keys)
    #[arg(long, env = "TOLLGATE_TOP_TALKERS_VALUES", choice = ("HOW", "show"))]
    pub top_talkers_values: ShownValues,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CountedHits {
    Off,
    Refused,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShownValues {
    Show,
    Hash,
    Hide,
}

impl From<CountedHits> for TalkerChoice {
    fn from(setting: CountedHits) -> Self {
        match setting {
            CountedHits::Off => Self::Off,
            CountedHits::Refused => Self::Refused,
            CountedHits::All => Self::All,
        }
    }
}

impl From<ShownValues> for ValueForm {
    fn from(setting: ShownValues) -> Self {
        match setting {
            ShownValues::Show => Self::Show,
            ShownValues::Hash => Self::Hash,
            ShownValues::Hide => Self::Hide,
        }
    }
}
