//! What to answer while Redis does not.

use clap::{Args, ValueEnum};

use crate::limit;

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "While Redis does not answer")]
pub struct StoreLoss {
    /// What rules answer that do not say it themselves: `error` leaves it to Envoy's
    /// failure_mode_deny, `local` counts this replica's share of each limit in memory
    #[arg(
        long,
        env = "TOLLGATE_ON_STORE_LOSS",
        default_value = "error",
        value_enum,
        ignore_case = true,
        value_name = "ANSWER"
    )]
    pub on_store_loss: OnStoreLoss,

    /// Replicas that share the limits, for counting locally; 0 counts those that use this Redis
    /// with the same --key-prefix, by a counter of ten seconds in it
    #[arg(long, env = "TOLLGATE_REPLICAS", default_value_t = 0, value_name = "N")]
    pub replicas: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnStoreLoss {
    Error,
    Allow,
    Deny,
    Local,
}

impl From<OnStoreLoss> for limit::OnStoreLoss {
    fn from(answer: OnStoreLoss) -> Self {
        match answer {
            OnStoreLoss::Error => Self::Error,
            OnStoreLoss::Allow => Self::Allow,
            OnStoreLoss::Deny => Self::Deny,
            OnStoreLoss::Local => Self::Local,
        }
    }
}
