//! Settings for the time in which Redis does not answer.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};

use super::values::{file_path, number};
use crate::core::limit;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "While Redis does not answer")]
pub(crate) struct StoreLoss {
    /// Answer of rules that set no on_store_loss themselves: `error` leaves it to Envoy's failure_mode_deny, `local`
    /// counts this replica's share of each limit in memory
    #[arg(
        long,
        env = "TOLLGATE_ON_STORE_LOSS",
        default_value = "error",
        value_enum,
        ignore_case = true,
        value_name = "ANSWER"
    )]
    pub on_store_loss: OnStoreLossFlag,

    #[command(flatten)]
    pub replicas: ReplicaSettings,

    /// Share of its part of a limit, in per cent, that a replica may grant to a value whose earlier hits it does not
    /// know; at least one hit
    #[arg(
        long,
        env = "TOLLGATE_UNSEEN_SHARE",
        default_value_t = 0,
        value_parser = number::<u8>(0..=100),
        value_name = "PERCENT"
    )]
    pub unseen_share: u8,
}

/// Counting locally needs one of these.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "While Redis does not answer")]
pub(crate) struct ReplicaSettings {
    /// Number of replicas that share the limits, for counting locally; 0 detects those that use this Redis with the
    /// same --key-prefix, by a counter in Redis that each replica updates every ten seconds
    #[arg(
        long,
        env = "TOLLGATE_REPLICAS",
        default_value_t = 0,
        value_parser = number::<u32>(0..=u32::MAX.into()),
        value_name = "N"
    )]
    pub replicas: u32,

    /// With --replicas 0, the number of replicas to assume until they are detected
    #[arg(
        long,
        env = "TOLLGATE_REPLICAS_UNTIL_KNOWN",
        value_parser = number::<u32>(1..=u32::MAX.into()),
        value_name = "N"
    )]
    pub replicas_until_known: Option<u32>,

    /// With --replicas 0, a file that keeps their number across a restart; each process needs its own
    #[arg(long, env = "TOLLGATE_STATE_FILE", value_parser = file_path, value_name = "FILE")]
    pub state_file: Option<PathBuf>,
}

impl ReplicaSettings {
    /// The configured number.
    pub(crate) fn fixed(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.replicas)
    }

    /// The number to assume until it is detected.
    pub(crate) fn until_known(&self) -> Option<NonZeroU32> {
        self.replicas_until_known.and_then(NonZeroU32::new)
    }

    /// The file that keeps the number, if it has to be detected.
    pub(crate) fn state_file(&self) -> Option<&Path> {
        let path = self.state_file.as_deref();
        path.filter(|path| self.replicas == 0 && !path.as_os_str().is_empty())
    }

    /// Whether rules can count locally.
    pub(crate) fn are_known(&self) -> bool {
        self.fixed().is_some() || self.until_known().is_some() || self.state_file().is_some()
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnStoreLossFlag {
    Error,
    Allow,
    Deny,
    Local,
}

impl From<OnStoreLossFlag> for limit::OnStoreLoss {
    fn from(answer: OnStoreLossFlag) -> Self {
        match answer {
            OnStoreLossFlag::Error => Self::Error,
            OnStoreLossFlag::Allow => Self::Allow,
            OnStoreLossFlag::Deny => Self::Deny,
            OnStoreLossFlag::Local => Self::Local,
        }
    }
}
