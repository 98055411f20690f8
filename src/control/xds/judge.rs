//! Judges pushes: a valid one is taken into use completely, and an invalid one changes nothing.

use super::{
    options::OnEmptyPush,
    refusal::{log, refusal},
};
use crate::{
    config::{self, fault::Fault, message::Push},
    control::reload::Intake,
    foundation::blocking::blocking,
};

/// Judges pushes, and remembers the last ones.
#[derive(Debug)]
pub(super) struct PushJudge {
    empty: OnEmptyPush,
    rules: config::options::Options,
    intake: Intake,
    accepted: AcceptedPush,
    refused: Option<RefusedPush>,
    /// Whether an answer was not believed since the last accepted push.
    is_doubting: bool,
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

/// Why a push is not taken into use.
#[derive(Clone, Debug)]
pub(super) enum Objection {
    Refused(RefusedPush),
    /// It has no rules, and is perhaps the answer of a control plane that does not know its rules yet.
    Doubted {
        /// Whether it is the first since the last accepted push.
        is_first: bool,
    },
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
            is_doubting: false,
        }
    }

    /// The version in use; empty if there is none.
    pub(super) fn version(&self) -> &str {
        &self.accepted.version
    }

    /// Takes a push into use, unless it equals the rules in use or the one refused last. `asked_for_all` means that
    /// it may be the answer to a request that does not name the version in use.
    ///
    /// # Errors
    ///
    /// Why it is not taken into use; the rules in use then stay.
    pub(super) async fn judge(
        &mut self,
        push: Push,
        version: String,
        asked_for_all: bool,
    ) -> Result<(), Objection> {
        if asked_for_all && self.is_doubtful(&push) {
            let is_first = !std::mem::replace(&mut self.is_doubting, true);
            return Err(Objection::Doubted { is_first });
        }
        let digest = push.digest();
        if let Some(refused) = &self.refused
            && refused.digest == digest
        {
            return Err(Objection::Refused(refused.clone()));
        }
        if self.accepted.digest != Some(digest)
            && let Err(reason) = self.take(push).await
        {
            let refused = RefusedPush { digest, reason };
            self.refused = Some(refused.clone());
            return Err(Objection::Refused(refused));
        }
        self.refused = None;
        self.is_doubting = false;
        self.accepted = AcceptedPush {
            version,
            digest: Some(digest),
        };
        Ok(())
    }

    /// Whether a push would remove all rules. A control plane that has just started may answer a request without a
    /// version before it knows its rules. It is silent to a request that names the version in use, or means it.
    fn is_doubtful(&self, push: &Push) -> bool {
        push.is_empty() && self.empty != OnEmptyPush::Always && self.intake.has_domains()
    }

    /// Compiles a push and takes it into use.
    async fn take(&self, push: Push) -> Result<(), String> {
        let keeps = self.empty == OnEmptyPush::Keep && self.intake.has_domains();
        let (rules, intake, room) = (self.rules, self.intake.clone(), self.intake.clone());
        // Thousands of rules take a while to compile; the dispatcher has other work meanwhile.
        let compiled = tokio::task::spawn_blocking(move || {
            if push.is_empty() && keeps {
                Err(vec![push.problem(Fault::EmptyPush)])
            } else {
                let room = room.check_room(push.load_bytes());
                room.map_err(|fault| vec![push.problem(fault)])?;
                push.compile(rules)
            }
        });
        // A push comes from outside: reading it changes nothing, so that it can be refused whatever happened.
        let panicked = |_| {
            tracing::error!("reading a push panicked; it is refused");
            "reading it panicked".to_owned()
        };
        let loaded = compiled.await.map_err(panicked)?;
        let take = move || {
            intake.take(loaded).map_err(|problems| {
                log(&problems);
                refusal(&problems)
            })
        };
        blocking(take).await
    }
}
