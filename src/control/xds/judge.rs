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
        log_throttle::{BurstThrottle, LogThrottle, Omitted},
        printable::CountOf,
    },
};

/// The reason for not believing an answer without rules.
const DOUBT: &str = "(push): the rules in use stay, because this push without rules answers a request without a \
                     version; send it again to remove them";

/// A control plane can restart empty again and again.
static DOUBTED: LogThrottle = LogThrottle::new();

/// Judges pushes, and remembers the last ones.
#[derive(Debug)]
pub(super) struct PushJudge {
    empty: OnEmptyPush,
    rules: config::rule_defaults::Options,
    intake: Intake,
    /// Of the last accepted push; empty if there is none.
    pub version: String,
    accepted: Option<[u8; 32]>,
    /// The digest of the push that was refused last, and all problems with it.
    refused: Option<([u8; 32], String)>,
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
            version: String::new(),
            accepted: None,
            refused: None,
        }
    }

    /// Takes a push into use, unless it equals the rules in use or the one refused last. `asked_for_all` means that
    /// it may be the answer to a request that does not name the version in use; `digest` is that of the push.
    ///
    /// # Errors
    ///
    /// Why it is not taken into use; the rules in use then stay.
    pub(super) async fn judge(
        &mut self,
        push: Push,
        digest: [u8; 32],
        version: String,
        asked_for_all: bool,
    ) -> Result<(), String> {
        if asked_for_all && self.is_doubtful(&push) {
            if DOUBTED.may_log() {
                tracing::warn!(
                    "the control plane sent no rules when asked for all after a reconnect, as one does that has just \
                     started; the rules stay as they are until it sends others (TOLLGATE_XDS_EMPTY_PUSH=always, \
                     --xds-empty-push always, accepts such an answer)"
                );
            }
            return Err(DOUBT.to_owned());
        }
        match &self.refused {
            Some((refused, reason)) if *refused == digest => return Err(reason.clone()),
            _ => {}
        }
        if self.accepted != Some(digest)
            && let Err(reason) = self.take(push).await
        {
            self.refused = Some((digest, reason.clone()));
            return Err(reason);
        }
        self.refused = None;
        self.version = version;
        self.accepted = Some(digest);
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
fn refusal(problems: &[Problem]) -> String {
    joined(problems, "\n", usize::MAX, MAX_REFUSAL_BYTES)
}

/// Logs a refused push in one line, with its first errors.
fn log(problems: &[Problem]) {
    let Some(omitted) = REFUSED.may_log() else {
        return;
    };
    let count = CountOf(errors(problems).map(Problem::count).sum(), "error");
    let text = joined(problems, "; ", MAX_LOGGED, MAX_LOGGED_BYTES);
    tracing::error!(
        "the push is refused for {count}, and the rules stay as they are: {text}{}",
        Omitted(omitted, "refused pushes")
    );
}

fn errors(problems: &[Problem]) -> impl Iterator<Item = &Problem> {
    let errors = problems.iter();
    errors.filter(|problem| !problem.fault.is_warning())
}

/// The first errors, at most `count`, in about `bytes`, and how many more there are.
fn joined(problems: &[Problem], separator: &str, count: usize, bytes: usize) -> String {
    let (mut text, mut shown) = (String::new(), 0);
    let listed = errors(problems).filter(|error| !matches!(error.fault, Fault::More { .. }));
    for error in listed.take(count) {
        if text.len() >= bytes {
            break;
        }
        let separator = if shown > 0 { separator } else { "" };
        let _ = write!(text, "{separator}{error}");
        shown += 1;
    }
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    let all: usize = errors(problems).map(Problem::count).sum();
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
