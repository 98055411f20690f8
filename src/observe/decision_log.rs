//! The decision log: which decisions are recorded, and where the records go.
//!
//! It is off by default, and then costs one branch per decision. [`record`] renders a decision as a line of JSON, which
//! goes into the log of the process, or through a [`queue`](mod@queue) that no decision waits for to a file or to
//! standard error.

use std::str::FromStr;

use crate::{
    core::{
        counter::CounterState,
        decision::{Code, Decision},
        matcher::Matcher,
        plan::Plan,
        request::Request,
    },
    foundation::{ascii_json::ascii_json, random},
};

pub(crate) mod file;
pub(crate) mod queue;
mod record;
pub(crate) mod writer;

pub(crate) use record::{LoggedValues, RequestTimes, TARGET};

use queue::DecisionSender;
use record::LoggedDecision;

/// The decisions that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum DecisionChoice {
    #[default]
    Off,
    /// Decisions over some limit, even if shadow mode lets the request pass.
    Refused,
    /// A random share of all decisions, from 0 to 1.
    Sampled(f64),
    All,
}

/// The text names no choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected off, refused, sampled=SHARE with a share from 0 to 1, or all")]
pub(crate) struct UnknownChoice;

impl FromStr for DecisionChoice {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Self, UnknownChoice> {
        match text {
            "off" => Ok(Self::Off),
            "refused" => Ok(Self::Refused),
            "all" => Ok(Self::All),
            text => {
                let share = text.strip_prefix("sampled=").ok_or(UnknownChoice)?;
                let share = share.parse::<f64>().map_err(|_| UnknownChoice)?;
                let is_share = (0.0..=1.0).contains(&share);
                is_share
                    .then_some(Self::Sampled(share))
                    .ok_or(UnknownChoice)
            }
        }
    }
}

/// Logs the chosen decisions; by default none.
#[derive(Clone, Debug, Default)]
pub struct DecisionLog {
    choice: DecisionChoice,
    values: LoggedValues,
    /// The queue of lines; without one, lines go into the log of the process.
    lines: Option<DecisionSender>,
}

impl DecisionLog {
    pub(crate) fn new(
        choice: DecisionChoice,
        values: LoggedValues,
        lines: Option<DecisionSender>,
    ) -> Self {
        Self {
            choice,
            values,
            lines,
        }
    }

    /// Logs a decision if it is one of those chosen.
    #[inline]
    pub(crate) fn log(
        &self,
        matcher: &Matcher,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
        times: RequestTimes,
    ) {
        if self.choice != DecisionChoice::Off && self.takes(decision) {
            let basis = (matcher, plan, counts);
            self.write(basis, request, decision, times);
        }
    }

    /// A function of its own, to keep it out of the path of decisions that are not logged.
    #[inline(never)]
    fn write(
        &self,
        basis: (&Matcher, &Plan<'_>, &[CounterState]),
        request: &Request<'_>,
        decision: &Decision,
        times: RequestTimes,
    ) {
        let line = LoggedDecision::new(basis, request, decision, times, self.values);
        let line = ascii_json(&line);
        match &self.lines {
            Some(lines) => lines.send(line),
            None => tracing::debug!(target: TARGET, "{line}"),
        }
    }

    fn takes(&self, decision: &Decision) -> bool {
        match self.choice {
            DecisionChoice::Off => false,
            DecisionChoice::Refused => {
                let mut bindings = decision.statuses.iter().flat_map(|status| &status.binding);
                decision.overall == Code::OverLimit || bindings.any(|binding| binding.is_over)
            }
            DecisionChoice::Sampled(share) => random::happens(share),
            DecisionChoice::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_one_word_or_a_share() {
        let check = |text: &str, expected| assert_eq!(text.parse(), expected, "{text}");
        check("off", Ok(DecisionChoice::Off));
        check("refused", Ok(DecisionChoice::Refused));
        check("all", Ok(DecisionChoice::All));
        check("sampled=0.01", Ok(DecisionChoice::Sampled(0.01)));
        check("sampled=1", Ok(DecisionChoice::Sampled(1.0)));
        for wrong in [
            "",
            "ALL",
            "sampled",
            "sampled=",
            "sampled=1.5",
            "sampled=-1",
            "sampled=NaN",
        ] {
            check(wrong, Err(UnknownChoice));
        }
    }

    #[test]
    fn a_sample_of_none_is_none_and_one_of_all_is_all() {
        let decision = Decision::default();
        let takes = |share| {
            let choice = DecisionChoice::Sampled(share);
            DecisionLog::new(choice, LoggedValues::Shown, None).takes(&decision)
        };
        for _ in 0..1000 {
            assert!(takes(1.0) && !takes(0.0));
        }
    }
}
