//! Runs the cases: each has its own processes, and they take turns.

use std::{
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    Options, PATIENCE,
    callers::{Callers, Load},
    cases::{self, Case, Service},
    figures::median,
    foreign::Foreign,
    front::{self, Asked, Front},
    http::try_get,
    processes::{Pid, Process, Redis},
    upstream::Upstream,
};

/// Time for connections and caches to settle before a measurement.
const SETTLING: Duration = Duration::from_millis(500);

/// The figures of one turn of a case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub requests_per_sec: f64,
    pub p50_millis: f64,
    pub p99_millis: f64,
    pub p999_millis: f64,
    /// Seconds of processor time per million requests.
    pub envoy_cpu: f64,
    pub service_cpu: Option<f64>,
    pub redis_cpu: Option<f64>,
    /// Of the callers and the upstream, which run in this process.
    pub bench_cpu: f64,
}

/// A row: a case with the medians of its turns, or the error that ended it.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    pub medians: Result<Figures, String>,
    /// Calls of the rate limit service in all turns; `None` without a service.
    pub asked: Option<Asked>,
}

#[derive(Debug)]
pub struct Contest {
    entrants: Vec<Entrant>,
    _upstream: Upstream,
}

impl Contest {
    /// Starts the processes of each case that `options` select.
    ///
    /// # Errors
    ///
    /// If a process does not start, or if Envoy does not call its service.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let chosen = cases::chosen(options);
        ensure!(!chosen.is_empty(), "no case has such a name");
        let upstream = Upstream::start()?;
        let mut entrants = Vec::new();
        for case in chosen {
            let name = case.name.clone();
            let entrant = Entrant::start(case, options, &upstream);
            entrants.push(entrant.with_context(|| format!("case `{name}`"))?);
        }
        Ok(Self {
            entrants,
            _upstream: upstream,
        })
    }

    /// Runs a turn of each case, in an order that changes from round to round.
    pub fn round(&mut self, round: usize, time: Duration) {
        let count = self.entrants.len();
        for index in 0..count {
            self.entrants[(index + round) % count].turn(time);
        }
    }

    pub fn rows(&self) -> Vec<Row> {
        let row = |entrant: &Entrant| Row {
            name: entrant.case.name.clone(),
            medians: entrant.medians(),
            asked: entrant.is_limited().then_some(entrant.asked),
        };
        self.entrants.iter().map(row).collect()
    }
}

/// A case with its processes and its figures so far.
#[derive(Debug)]
struct Entrant {
    case: Case,
    load: Load,
    turns: Vec<Figures>,
    asked: Asked,
    failure: Option<String>,
    // Fields drop in order: Envoy ends first, Redis last.
    front: Front,
    server: Server,
    redis: Option<Redis>,
}

/// The rate limit service of a case.
#[derive(Debug)]
enum Server {
    None,
    Tollgate(Process),
    Foreign(Foreign),
}

impl Server {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::None => None,
            Self::Tollgate(process) => Some(process.address),
            Self::Foreign(foreign) => Some(foreign.address),
        }
    }

    fn cpu_secs(&self) -> anyhow::Result<Option<f64>> {
        Ok(match self {
            Self::None => None,
            Self::Tollgate(process) => Some(process.pid().cpu_secs()?),
            Self::Foreign(foreign) => Some(foreign.cpu_secs()?),
        })
    }

    /// Checks that the service runs.
    ///
    /// # Errors
    ///
    /// If it has ended: Envoy would let everything pass, at the lowest cost of all.
    fn must_run(&mut self) -> anyhow::Result<()> {
        match self {
            Self::None => Ok(()),
            // A process that has ended has no memory.
            Self::Tollgate(process) => match process.pid().resident_bytes() {
                Ok(_) => Ok(()),
                Err(_) => bail!("tollgate has ended"),
            },
            Self::Foreign(foreign) => foreign.must_run(),
        }
    }
}

impl Entrant {
    fn start(case: Case, options: &Options, upstream: &Upstream) -> anyhow::Result<Self> {
        let has_redis = matches!(case.service, Service::Redis | Service::Foreign);
        let redis = has_redis.then(Redis::start).transpose()?;
        let redis_address = redis.as_ref().map(|redis| redis.address);
        let rules = case.layout.rules();
        let own = Path::new(env!("CARGO_BIN_EXE_tollgate"));
        let program = options.server.as_deref().unwrap_or(own);
        let server = match (case.service, redis_address) {
            (Service::None, _) => Server::None,
            (Service::Foreign, Some(redis)) => {
                let command = options.foreign.as_deref().context("no --foreign")?;
                Server::Foreign(Foreign::start(command, rules, redis)?)
            }
            (_, redis) => {
                let url = redis.map(|redis| format!("--redis-url=redis://{redis}"));
                let more: Vec<_> = url.into_iter().collect();
                Server::Tollgate(Process::tollgate(program, rules, &more)?)
            }
        };
        let installed = front::installed();
        let envoy = options.envoy.as_deref().unwrap_or(&installed);
        ensure!(
            envoy.exists(),
            "{} is missing: run `make tools`",
            envoy.display()
        );
        let front = Front::start(envoy, &upstream.path(), server.address(), case.layout)?;
        let mut entrant = Self {
            case,
            load: options.load(),
            turns: Vec::new(),
            asked: Asked::default(),
            failure: None,
            front,
            server,
            redis,
        };
        entrant.get_ready()?;
        Ok(entrant)
    }

    fn is_limited(&self) -> bool {
        self.case.service != Service::None
    }

    /// Waits until requests are answered and, in a case with limits, decided.
    fn get_ready(&mut self) -> anyhow::Result<()> {
        const PAUSE: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reply = try_get(self.front.listener, "/", &[("x-user", b"first")]);
            let is_passed = reply.is_ok_and(|reply| reply.status == 200);
            let asked = self.front.asked()?;
            if is_passed && (asked.ok > 0 || !self.is_limited()) {
                return Ok(());
            }
            self.server.must_run()?;
            if Instant::now() > deadline {
                let said = match &self.server {
                    Server::Foreign(foreign) => foreign.said(),
                    _ => String::new(),
                };
                bail!("no request got the expected answer ({asked:?})\n{said}");
            }
            thread::sleep(PAUSE);
        }
    }

    fn turn(&mut self, time: Duration) {
        if self.failure.is_some() {
            return;
        }
        match self.measure(time) {
            Ok(figures) => self.turns.push(figures),
            Err(error) => self.failure = Some(format!("{error:#}")),
        }
    }

    fn measure(&mut self, time: Duration) -> anyhow::Result<Figures> {
        let at_first = self.front.asked()?;
        let callers = Callers::start(self.front.listener, self.load)?;
        thread::sleep(SETTLING);
        callers.measure();
        let before = self.state(&callers)?;
        thread::sleep(time);
        let after = self.state(&callers)?;
        let answers = callers.stop();
        self.server.must_run()?;
        let answers = answers?;
        let all = self.front.asked()?.since(at_first);
        ensure!(all.over_limit == 0, "{} requests refused", all.over_limit);
        let expected = if self.is_limited() { answers.count } else { 0 };
        ensure!(
            all.all() == expected,
            "the service got {} calls for {} requests",
            all.all(),
            answers.count
        );

        let asked = after.asked.since(before.asked);
        self.asked.ok += asked.ok;
        self.asked.error += asked.error;
        self.asked.late += asked.late;
        let requests = (after.done - before.done) as f64;
        ensure!(requests > 0.0, "no answer came");
        let spent = |after: f64, before: f64| (after - before) / requests * 1e6;
        let spent_if_any = |after: Option<f64>, before: Option<f64>| Some(spent(after?, before?));
        let quantile = |share| answers.latencies.quantile_micros(share) / 1e3;
        Ok(Figures {
            requests_per_sec: requests / (after.at - before.at).as_secs_f64(),
            p50_millis: quantile(0.5),
            p99_millis: quantile(0.99),
            p999_millis: quantile(0.999),
            envoy_cpu: spent(after.envoy_cpu, before.envoy_cpu),
            service_cpu: spent_if_any(after.service_cpu, before.service_cpu),
            redis_cpu: spent_if_any(after.redis_cpu, before.redis_cpu),
            bench_cpu: spent(after.bench_cpu, before.bench_cpu),
        })
    }

    fn state(&self, callers: &Callers) -> anyhow::Result<State> {
        Ok(State {
            at: Instant::now(),
            done: callers.done(),
            envoy_cpu: self.front.pid().cpu_secs()?,
            service_cpu: self.server.cpu_secs()?,
            redis_cpu: self
                .redis
                .as_ref()
                .map(|redis| redis.pid().cpu_secs())
                .transpose()?,
            bench_cpu: Pid(std::process::id()).cpu_secs()?,
            // Last, because Envoy may take some time for it.
            asked: self.front.asked()?,
        })
    }

    /// The medians, figure by figure.
    fn medians(&self) -> Result<Figures, String> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let known = |pick: fn(&Figures) -> Option<f64>| median(&self.turns, pick);
        let median = |pick: fn(&Figures) -> f64| median(&self.turns, |turn| Some(pick(turn)));
        let all = || -> Option<Figures> {
            Some(Figures {
                requests_per_sec: median(|figures| figures.requests_per_sec)?,
                p50_millis: median(|figures| figures.p50_millis)?,
                p99_millis: median(|figures| figures.p99_millis)?,
                p999_millis: median(|figures| figures.p999_millis)?,
                envoy_cpu: median(|figures| figures.envoy_cpu)?,
                service_cpu: known(|figures| figures.service_cpu),
                redis_cpu: known(|figures| figures.redis_cpu),
                bench_cpu: median(|figures| figures.bench_cpu)?,
            })
        };
        all().ok_or_else(|| "it never had a turn".to_owned())
    }
}

/// The counts at one moment of a turn.
#[derive(Debug)]
struct State {
    at: Instant,
    done: u64,
    envoy_cpu: f64,
    service_cpu: Option<f64>,
    redis_cpu: Option<f64>,
    bench_cpu: f64,
    asked: Asked,
}
