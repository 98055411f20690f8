//! Load that goes on while something breaks, and what its callers saw.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, task::JoinSet};

use super::ask::{self, Client, connect};

/// Callers that ask all the time.
pub const STREAMS: usize = 64;

/// Between an answer and the next question of the same stream: what is measured is how long
/// answers take, and not how many a busy machine can give.
pub const PAUSE: Duration = Duration::from_millis(4);

/// One answer.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it was asked for.
    pub at: Instant,
    pub took: Duration,
    pub what: What,
    /// It was answered without the store.
    pub is_degraded: bool,
}

impl Seen {
    /// Whether it was an error, or was answered without the store.
    fn lacked_store(&self) -> bool {
        self.is_degraded || matches!(self.what, What::Error(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Ok,
    OverLimit,
    /// The status' text.
    Error(&'static str),
}

/// 64 streams on four connections, dealt out to the servers, each of which asks again as soon as
/// it was answered. They have a thread of their own, so that nothing else holds them up.
#[derive(Debug)]
pub struct Storm {
    over: Arc<AtomicBool>,
    seen: oneshot::Receiver<Vec<Seen>>,
}

impl Storm {
    /// The callers ask for one of `values` each, in turn. Returns once all are connected.
    pub async fn start(servers: &[SocketAddr], values: &[&str]) -> Self {
        Self::paced(servers, values, PAUSE).await
    }

    /// The same with another pause.
    pub async fn paced(servers: &[SocketAddr], values: &[&str], pause: Duration) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (answer, seen) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let servers = servers.to_vec();
        let values: Vec<_> = values.iter().map(|&value| value.to_owned()).collect();
        let is_over = over.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut clients = Vec::new();
                for number in 0..4.max(servers.len()) {
                    clients.push(connect(servers[number % servers.len()]).await);
                }
                let mut callers = JoinSet::new();
                for caller in 0..STREAMS {
                    let client = clients[caller % clients.len()].clone();
                    let value = values[caller % values.len()].clone();
                    callers.spawn(call(client, value, pause, is_over.clone()));
                }
                let _ = ready.send(());
                let seen = callers.join_all().await.into_iter().flatten().collect();
                let _ = answer.send(seen);
            });
        });
        is_ready.await.unwrap();
        Self { over, seen }
    }

    /// Ends it, and returns all answers.
    pub async fn end(self) -> Answers {
        self.over.store(true, Relaxed);
        let mut seen = self.seen.await.unwrap();
        seen.sort_by_key(|seen| seen.at);
        Answers(seen)
    }
}

async fn call(
    mut client: Client,
    value: String,
    pause: Duration,
    over: Arc<AtomicBool>,
) -> Vec<Seen> {
    let mut seen = Vec::new();
    while !over.load(Relaxed) {
        let at = Instant::now();
        let response = ask::ask(&mut client, "d", &[("k", &value)]).await;
        let what = match &response {
            Ok(_) if ask::is_ok(&response) => What::Ok,
            Ok(_) => What::OverLimit,
            Err(status) => What::Error(known(status.message())),
        };
        seen.push(Seen {
            at,
            took: at.elapsed(),
            what,
            is_degraded: response.is_ok_and(|reply| ask::is_degraded(&reply)),
        });
        tokio::time::sleep(pause).await;
    }
    seen
}

/// The texts that a caller may see.
fn known(message: &str) -> &'static str {
    const TEXTS: [&str; 5] = [
        "the counter store did not answer in time",
        "the counter store is not reachable",
        "the counter store refused a command",
        "too many requests are waiting for the counter store",
        "no rate limit configuration loaded",
    ];
    TEXTS
        .into_iter()
        .find(|text| *text == message)
        .unwrap_or("another error")
}

/// All answers of a storm, in the order of the questions.
#[derive(Debug)]
pub struct Answers(pub Vec<Seen>);

impl Answers {
    pub fn count(&self, what: What) -> usize {
        self.0.iter().filter(|seen| seen.what == what).count()
    }

    pub fn ok(&self) -> usize {
        self.count(What::Ok)
    }

    /// Those that were answered without the store.
    pub fn degraded(&self) -> Self {
        let degraded = self.0.iter().filter(|seen| seen.is_degraded);
        Self(degraded.cloned().collect())
    }

    pub fn errors(&self) -> BTreeMap<&'static str, usize> {
        let mut errors = BTreeMap::new();
        for seen in &self.0 {
            if let What::Error(text) = seen.what {
                *errors.entry(text).or_default() += 1;
            }
        }
        errors
    }

    pub fn error_count(&self) -> usize {
        self.errors().values().sum()
    }

    pub fn longest(&self) -> Duration {
        self.0
            .iter()
            .map(|seen| seen.took)
            .max()
            .unwrap_or_default()
    }

    pub fn later_than(&self, time: Duration) -> usize {
        self.0.iter().filter(|seen| seen.took > time).count()
    }

    /// The answers to what was asked between two moments.
    pub fn between(&self, from: Instant, to: Instant) -> Self {
        let within = self.0.iter().filter(|seen| (from..to).contains(&seen.at));
        Self(within.cloned().collect())
    }

    /// The time in which `share` of the answers came, such as 0.99 of them.
    pub fn quantile(&self, share: f64) -> Duration {
        let mut times: Vec<_> = self.0.iter().map(|seen| seen.took).collect();
        times.sort_unstable();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place among some thousand answers"
        )]
        let at = (times.len() as f64 * share) as usize;
        times
            .get(at.min(times.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }

    /// How long after `moment` a decision was made in the store again. Nothing if none was.
    pub fn recovery(&self, moment: Instant) -> Option<Duration> {
        let is_decision = |seen: &&Seen| !seen.lacked_store();
        let after = self.0.iter().filter(|seen| seen.at >= moment);
        let answered = after.filter(is_decision).map(|seen| seen.at + seen.took);
        Some(answered.min()? - moment)
    }

    /// When the last error was seen, or the last answer without the store, after `moment`.
    pub fn last_lack_after(&self, moment: Instant) -> Option<Duration> {
        let after = self.0.iter().filter(|seen| seen.at >= moment);
        let lacking = after.filter(|seen| seen.lacked_store());
        let ended = lacking.map(|seen| seen.at + seen.took);
        Some(ended.max()? - moment)
    }
}
