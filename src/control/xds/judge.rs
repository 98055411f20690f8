//! Judges pushes: a valid one is taken into use completely, and an invalid one changes nothing. Each text of a refusal
//! is bounded, because a push of thousands of rules can have an error in each.

use std::fmt::Write as _;

use crate::{
    config::{
        self,
        fault::{Fault, Problem},
        message::Push,
    },
    control::{reload::Intake, xds::options::OnEmptyPush},
    foundation::{
        lock::blocking,
        log_throttle::{BurstThrottle, Omitted},
    },
};

/// Judges pushes, and remembers the last ones.
#[derive(Debug)]
pub(super) struct PushJudge {
    empty: OnEmptyPush,
    rules: config::rule_defaults::Options,
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
    pub(super) fn new(
        empty: OnEmptyPush,
        rules: config::rule_defaults::Options,
        intake: Intake,
    ) -> Self {
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

/// Bound on the text for the control plane, in bytes. It is sent again each time that the push comes again.
const MAX_REFUSAL_BYTES: usize = 16 << 10;

/// Bounds on the text for the log: errors, and bytes.
const MAX_LOGGED: usize = 10;
const MAX_LOGGED_BYTES: usize = 4 << 10;

/// A control plane can push as often as it likes.
static REFUSED: BurstThrottle = BurstThrottle::new(30);

/// The errors for the control plane, one per line.
pub(super) fn refusal(problems: &[Problem]) -> String {
    joined(&errors(problems), "\n", usize::MAX, MAX_REFUSAL_BYTES)
}

/// Logs a refused push in one line, with its first errors.
pub(super) fn log(problems: &[Problem]) {
    let Some(omitted) = REFUSED.may_log() else {
        return;
    };
    let errors = errors(problems);
    let count = match errors.iter().map(|error| error.count()).sum() {
        1_usize => "1 error".to_owned(),
        count => format!("{count} errors"),
    };
    let text = joined(&errors, "; ", MAX_LOGGED, MAX_LOGGED_BYTES);
    tracing::error!(
        "the push is refused for {count}, and the rules stay as they are: {text}{}",
        Omitted(omitted, "refused pushes")
    );
}

fn errors(problems: &[Problem]) -> Vec<&Problem> {
    let errors = problems.iter();
    errors
        .filter(|problem| !problem.fault.is_warning())
        .collect()
}

/// The first errors, at most `count`, in about `bytes`, and how many more there are.
fn joined(errors: &[&Problem], separator: &str, count: usize, bytes: usize) -> String {
    let mut text = String::new();
    let mut shown = 0;
    let is_listed = |error: &&&Problem| !matches!(error.fault, Fault::More { .. });
    for error in errors.iter().filter(is_listed) {
        if shown == count || text.len() >= bytes {
            break;
        }
        if shown > 0 {
            text.push_str(separator);
        }
        shown += 1;
        let error = error.to_string();
        let room = bytes.saturating_sub(text.len());
        if error.len() <= room {
            text.push_str(&error);
        } else {
            text.push_str(&error[..error.floor_char_boundary(room)]);
            text.push('…');
        }
    }
    let all: usize = errors.iter().map(|error| error.count()).sum();
    if all > shown {
        let _ = write!(text, "{separator}and {} more", all - shown);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::config::message::Push;

    use super::*;

    fn problems(count: usize) -> Vec<Problem> {
        let push = Push {
            type_url: String::new(),
            resources: Vec::new(),
        };
        (0..count)
            .map(|number| push.problem(Fault::OtherType(format!("{number:0>100}"))))
            .collect()
    }

    #[test]
    fn few_errors_are_all_in_the_refusal() {
        let problems = problems(50);
        let text = refusal(&problems);
        let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn however_many_errors_there_are_the_refusal_is_bounded() {
        let text = refusal(&problems(20_000));
        assert!(text.len() < MAX_REFUSAL_BYTES + 100, "{}", text.len());
        let (_, last) = text.rsplit_once('\n').unwrap();
        let complete = text.lines().count() - 1;
        assert_eq!(last, format!("and {} more", 20_000 - complete));
    }

    #[test]
    fn one_long_error_is_cut() {
        let problem = Push {
            type_url: String::new(),
            resources: Vec::new(),
        }
        .problem(Fault::OtherType("ö".repeat(MAX_REFUSAL_BYTES)));
        let text = refusal(&[problem]);
        assert!(text.ends_with("ö…"), "{}", text.len());
        assert!(text.len() < MAX_REFUSAL_BYTES + 10);
    }
}
