//! Settings of top talkers: the values that hit each rule most.

use clap::Args;

use super::shapes::{ArgShape as _, named};
use crate::observe::talkers::{TalkerChoice, ValueForm};

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Statistics")]
pub(crate) struct TopTalkers {
    /// Which hits to count by value, so that /top of the debug port lists the values with most hits: off, refused (over
    /// a limit) or all, which costs each decision some work
    #[arg(long, env = "TOLLGATE_TOP_TALKERS", value_parser = named::<TalkerChoice>(), choice = ("WHICH", "refused"))]
    pub top_talkers: TalkerChoice,

    /// How /top shows values: show, hash (the first 16 digits of their SHA-256) or hide (only keys)
    #[arg(long, env = "TOLLGATE_TOP_TALKERS_VALUES", value_parser = named::<ValueForm>(), choice = ("HOW", "show"))]
    pub top_talkers_values: ValueForm,
}
