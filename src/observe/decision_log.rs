//! The log of decisions: which requests are recorded, and where the records go.
//!
//! Off unless asked for, and then it costs one branch per decision. [`record`] says what a record holds,
//! [`line`](mod@line) writes one as text.

use std::str::FromStr;

use crate::{
    core::{
        counter::CounterState,
        decision::{Code, Decision},
        matcher::Matcher,
        plan::Plan,
        request::Request,
    },
    foundation::random,
};

mod line;
mod record;

use record::DecisionRecord;

/// The target of the lines, by which the log lets them pass at every level.
pub(crate) const TARGET: &str = "tollgate::decision";

/// The decisions that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum DecisionChoice {
    #[default]
    Off,
    /// Those with a limit that is over, even if shadow mode lets the request pass.
    Refused,
    /// This share of all, from 0 to 1.
    Sampled(f64),
    All,
}

/// The text is none of the choices.
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

/// Logs the decisions of a choice; by default none.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecisionLog(DecisionChoice);

impl DecisionLog {
    pub(crate) fn new(choice: DecisionChoice) -> Self {
        Self(choice)
    }

    /// Logs a decision if it is one of the choice.
    #[inline]
    pub(crate) fn log(
        self,
        matcher: &Matcher,
        request: &Request<'_>,
        plan: &Plan<'_>,
        counts: &[CounterState],
        decision: &Decision,
    ) {
        if self.0 != DecisionChoice::Off && self.takes(decision) {
            let record = DecisionRecord::new(matcher, request, plan, counts, decision);
            tracing::debug!(target: TARGET, "{record}");
        }
    }

    fn takes(self, decision: &Decision) -> bool {
        match self.0 {
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
        let takes = |share| DecisionLog(DecisionChoice::Sampled(share)).takes(&decision);
        for _ in 0..1000 {
            assert!(takes(1.0) && !takes(0.0));
        }
    }
}
