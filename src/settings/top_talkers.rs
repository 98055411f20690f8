//! Settings of top talkers: the values that hit each rule most.

use clap::Args;

use super::shapes::{ArgShape as _, named};
use crate::observe::talkers::{TalkerChoice, ValueForm};

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Statistics")]
pub(crate) struct TopTalkers {
    /// Hits that are counted by value, for the values with the most hits at /top of the debug port: off, refused (over
    /// a limit) or all, which costs each decision some work
    #[arg(long, env = "TOLLGATE_TOP_TALKERS", value_parser = named::<TalkerChoice>(), choice = ("WHICH", "refused"))]
    pub top_talkers: TalkerChoice,

    /// Form of values in /top: show, hash (the first 16 digits of their SHA-256) or hide (only keys)
    #[arg(long, env = "TOLLGATE_TOP_TALKERS_VALUES", value_parser = named::<ValueForm>(), choice = ("HOW", "show"))]
    pub top_talkers_values: ValueForm,
}
