//! Rows of limits with slices: who shares a limit, and how its demand comes.

use std::{fmt::Write as _, time::Duration};

use crate::leases::{Counter, Counts, Spread, Turnover, simulate};

/// Runs of each row.
const SEEDS: u64 = 5;

/// The worst of several runs.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    over: u64,
    /// A share of the limit, in percent.
    under: f64,
    /// To Redis, for each decision.
    commands: f64,
    /// The share of decisions that waited for Redis, in percent.
    waited: f64,
}

impl Worst {
    fn of(counter: Counter, has_slices: bool, seed: u64) -> Self {
        let runs = (seed..seed + SEEDS).map(|seed| simulate(counter, has_slices, seed));
        runs.fold(Self::default(), |worst, run| worst.max(run, counter.limit))
    }

    fn max(self, run: Counts, limit: u64) -> Self {
        let under = 100.0 * run.under as f64 / limit as f64;
        let share = |of: u64| of as f64 / run.decisions.max(1) as f64;
        Self {
            over: self.over.max(run.over),
            under: self.under.max(under),
            commands: self.commands.max(share(run.commands)),
            waited: self.waited.max(100.0 * share(run.waited)),
        }
    }
}

fn counters() -> Vec<(&'static str, Counter)> {
    let counter = |holders, spread| Counter {
        limit: 20_000,
        window: Duration::from_secs(20),
        holders,
        demand: 1.1,
        spread,
        turnover: Turnover::None,
    };
    let four = counter(4, Spread::Bursty);
    vec![
        ("1 holder", counter(1, Spread::Uniform)),
        ("4", counter(4, Spread::Uniform)),
        ("4, bursty", four),
        ("100", counter(100, Spread::Uniform)),
        ("100, Zipf", counter(100, Spread::Zipf)),
        ("1,000", counter(1_000, Spread::Uniform)),
        (
            "4, bursty, 10,000 in 1 s",
            Counter {
                limit: 10_000,
                window: Duration::from_secs(1),
                ..four
            },
        ),
        (
            "4, 3 killed, 1 % of replies lost",
            Counter {
                turnover: Turnover::Killed,
                ..counter(4, Spread::Uniform)
            },
        ),
        (
            "100, bursty, each replaced once",
            Counter {
                turnover: Turnover::Drained,
                ..counter(100, Spread::Bursty)
            },
        ),
    ]
}

/// A table of all rows, and whether no hit passed above a limit.
pub(crate) fn slices(seed: u64) -> (String, bool) {
    let mut table = String::from(
        "| holders | over | under, % of the limit | commands a decision | waited for Redis, % |\n\
         |---|---|---|---|---|\n",
    );
    let mut is_exact = true;
    for (name, counter) in counters() {
        let slices = Worst::of(counter, true, seed);
        let exact = Worst::of(counter, false, seed);
        is_exact &= slices.over == 0 && exact.over == 0;
        let Worst {
            over,
            under,
            commands,
            waited,
        } = slices;
        let _ = writeln!(
            table,
            "| {name} | {over} | {under:.2}, {:.2} | {commands:.3}, {:.3} | {waited:.1}, {:.1} |",
            exact.under, exact.commands, exact.waited,
        );
    }
    (table, is_exact)
}
