//! Settings for the time in which Redis does not answer.

use std::num::NonZeroU32;

use clap::Args;

use super::shapes::{ArgShape as _, named};
use super::values::number;
use crate::core::limit::OnStoreLoss;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "While Redis does not answer")]
pub(crate) struct StoreLoss {
    /// Answer for rules without on_store_loss: `error` leaves it to Envoy's failure_mode_deny, `local` counts this
    /// replica's share of each limit in memory
    #[arg(long, env = "TOLLGATE_ON_STORE_LOSS", value_parser = named::<OnStoreLoss>(), choice = ("ANSWER", "error"))]
    pub on_store_loss: OnStoreLoss,

    #[command(flatten)]
    pub replicas: ReplicaSettings,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "While Redis does not answer")]
pub(crate) struct ReplicaSettings {
    /// How many replicas share the limits, for counting locally; 0 counts those that are asked for a rule's
    /// domain, through counters in this Redis that each updates every ten seconds
    #[arg(long, env = "TOLLGATE_REPLICAS", text = ("N", "0"), value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub replicas: u32,
}

impl ReplicaSettings {
    /// The configured number of replicas; `None` if it is detected.
    pub(crate) fn fixed(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.replicas)
    }
}
