//! Judges pushes: a valid one is taken into use completely, and an invalid one changes nothing.

use super::{options::OnEmptyPush, refusal::refusal};
use crate::{
    config::{self, fault::Fault, message::Push},
    control::reload::{Intake, report},
};

/// Judges pushes, and remembers the last ones.
#[derive(Debug)]
pub(super) struct PushJudge {
    empty: OnEmptyPush,
    rules: config::options::Options,
    intake: Intake,
    accepted: AcceptedPush,
    refused: Option<RefusedPush>,
}

/// The last accepted push.
#[derive(Debug, Default)]
struct AcceptedPush {
    /// Empty if there is none.
    version: String,
    digest: Option<[u8; 32]>,
}

/// A push that was refused.
#[derive(Clone, Debug)]
pub(super) struct RefusedPush {
    pub digest: [u8; 32],
    /// All problems with it.
    pub reason: String,
}

impl PushJudge {
    /// Nothing has been pushed yet. `rules` are the settings of all rules.
    pub(super) fn new(empty: OnEmptyPush, rules: config::options::Options, intake: Intake) -> Self {
        Self {
            empty,
            rules,
            intake,
            accepted: AcceptedPush::default(),
            refused: None,
        }
    }

    /// The version in use; empty if there is none.
    pub(super) fn version(&self) -> &str {
        &self.accepted.version
    }

    /// Accepts a push, unless it equals the rules in use or the one refused last.
    ///
    /// # Errors
    ///
    /// All problems with the push; the rules in use then stay.
    pub(super) async fn judge(&mut self, push: Push, version: String) -> Result<(), RefusedPush> {
        let digest = push.digest();
        if let Some(refused) = &self.refused
            && refused.digest == digest
        {
            return Err(refused.clone());
        }
        if self.accepted.digest != Some(digest)
            && let Err(reason) = self.take(push).await
        {
            let refused = RefusedPush { digest, reason };
            self.refused = Some(refused.clone());
            return Err(refused);
        }
        self.refused = None;
        self.accepted = AcceptedPush {
            version,
            digest: Some(digest),
        };
        Ok(())
    }

    /// Compiles a push and takes it into use.
    async fn take(&self, push: Push) -> Result<(), String> {
        let keeps = self.empty == OnEmptyPush::Keep && self.intake.has_domains();
        let (rules, intake) = (self.rules, self.intake.clone());
        // Thousands of rules take a while to compile; the dispatcher has other work meanwhile.
        let taken = tokio::task::spawn_blocking(move || {
            let loaded = if push.is_empty() && keeps {
                Err(vec![push.problem(Fault::EmptyPush)])
            } else {
                push.compile(rules)
            };
            intake.take(loaded).map_err(|problems| {
                report(&problems);
                refusal(&problems)
            })
        });
        let panicked = |_| {
            tracing::error!("reading a push panicked; it is refused");
            "reading it panicked".to_owned()
        };
        taken.await.map_err(panicked)?
    }
}
