//! Runs the cases: each has its own server, and they take turns.

use std::{net::SocketAddr, path::Path, thread, time::Duration};

use anyhow::{Context as _, ensure};

use crate::{
    Options,
    cases::{self, Case, Expected, Observed, Server, Shape},
    cores::{self, Cores},
    figures::median,
    load::{self, Callers},
    page::OpenPage,
    processes::{Pid, Process, Redis},
};

/// The figures of one turn of a case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub decisions_per_sec: f64,
    pub p50_micros: f64,
    pub p99_micros: f64,
    pub p999_micros: f64,
    /// Seconds of processor time per million decisions.
    pub server_cpu: Option<f64>,
    pub redis_cpu: Option<f64>,
    pub callers_cpu: f64,
    pub resident_bytes: Option<u64>,
    /// Per decision.
    pub commands: Option<f64>,
    pub pipelines: Option<f64>,
    /// Median time of a PING to Redis from the worker's core.
    pub ping_micros: Option<f64>,
}

/// A row: a case with the medians of its turns, or the error that ended it.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    pub case: Case,
    pub medians: Result<Figures, String>,
    /// The figures of the floor under an equal load.
    pub floor: Option<Figures>,
}

/// A case with its processes and its figures so far.
#[derive(Debug)]
struct Entrant {
    name: String,
    case: Case,
    address: SocketAddr,
    server: Option<Pid>,
    redis: Option<Pid>,
    /// The cores of its workers, if they are bound.
    cores: Option<Cores>,
    /// Whether no key has been used yet.
    is_new: bool,
    turns: Vec<Figures>,
    failure: Option<String>,
    own_redis: Option<Redis>,
    _page: Option<OpenPage>,
    _own_server: Option<Process>,
}

#[derive(Debug)]
pub struct Contest(Vec<Entrant>);

impl Contest {
    /// Starts a server for each case that `options` select, and for the floors of all of them.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let mut chosen = chosen(options);
        ensure!(!chosen.is_empty(), "no case has such a name");
        for shape in missing_floors(&chosen) {
            chosen.push(Case {
                name: "floor of the above",
                server: Server::Floor,
                shape,
                ..cases::all()[0]
            });
        }
        let mut entrants = Vec::new();
        for case in chosen {
            let own = Path::new(env!("CARGO_BIN_EXE_tollgate"));
            entrants.push(Entrant::start(case, case.name.to_owned(), options, own)?);
            let is_tollgate = matches!(
                case.server,
                Server::Memory | Server::Redis | Server::RedisAndCache
            );
            for other in options.other.iter().filter(|_| is_tollgate) {
                let file = other.file_name().unwrap_or_default().to_string_lossy();
                let name = format!("{file}: {}", case.name);
                entrants.push(Entrant::start(case, name, options, other)?);
            }
        }
        Ok(Self(entrants))
    }

    /// The rows after all rounds that `options` ask for.
    pub fn run(mut self, options: &Options) -> Vec<Row> {
        for round in 0..options.repeats {
            self.round(round, Duration::from_secs_f64(options.seconds));
        }
        self.rows()
    }

    /// Runs a turn of each case, in an order that changes from round to round.
    fn round(&mut self, round: usize, time: Duration) {
        let count = self.0.len();
        for index in 0..count {
            self.0[(index + round) % count].turn(time);
        }
    }

    fn rows(&self) -> Vec<Row> {
        let floor = |shape: Shape| {
            let is_floor = |entrant: &&Entrant| {
                entrant.case.server == Server::Floor && is_alike(entrant.case.shape, shape)
            };
            self.0.iter().find(is_floor)?.medians().ok()
        };
        let row = |entrant: &Entrant| Row {
            name: entrant.name.clone(),
            case: entrant.case,
            medians: entrant.medians(),
            floor: floor(entrant.case.shape),
        };
        self.0.iter().map(row).collect()
    }
}

fn chosen(options: &Options) -> Vec<Case> {
    let is_named = |case: &Case| {
        options.case.iter().any(|name| name == case.name)
            || options.filter.iter().any(|text| case.name.contains(text))
    };
    let takes_names = !options.case.is_empty() || !options.filter.is_empty();
    let mut chosen: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| {
            if takes_names {
                is_named(case)
            } else {
                options.full || case.is_default
            }
        })
        .collect();
    if options.server.is_some() {
        chosen.push(cases::foreign());
    }
    chosen
}

/// Whether both loads have one floor: the floor does not depend on keys.
fn is_alike(one: Shape, other: Shape) -> bool {
    let load = |shape: Shape| (shape.streams, shape.connections, shape.descriptors);
    load(one) == load(other)
}

fn missing_floors(chosen: &[Case]) -> Vec<Shape> {
    let mut missing: Vec<Shape> = Vec::new();
    for case in chosen {
        let mut floors = chosen.iter().filter(|case| case.server == Server::Floor);
        let is_there = floors.any(|floor| is_alike(floor.shape, case.shape))
            || missing.iter().any(|floor| is_alike(*floor, case.shape));
        if !is_there {
            missing.push(case.shape);
        }
    }
    missing
}

impl Entrant {
    fn start(case: Case, name: String, options: &Options, tollgate: &Path) -> anyhow::Result<Self> {
        let own_redis = case.server.has_redis().then(Redis::start).transpose()?;
        let workers = options.workers;
        let redis = own_redis.as_ref().map(|redis| redis.address);
        let mut arguments = vec![format!("--workers={workers}")];
        if let Some(redis) = redis {
            // On a shared machine Redis may have to wait for a core.
            let url = format!("--redis-url=redis://{redis}");
            arguments.extend([url, "--redis-timeout=5s".to_owned()]);
        }
        let server = match case.server {
            Server::Floor | Server::FloorAndPing => Some(Process::rival("floor", workers, redis)?),
            Server::Stock => Some(Process::rival("stock", workers, None)?),
            Server::Naive => Some(Process::rival("naive", workers, redis)?),
            Server::Memory | Server::Redis | Server::RedisAndCache => {
                if case.server == Server::RedisAndCache {
                    arguments.push("--local-cache-bytes=1000000".to_owned());
                }
                match case.observed {
                    Observed::Default => {}
                    Observed::Everything => {
                        arguments.extend(["--log-decisions=refused".to_owned()])
                    }
                }
                Some(Process::tollgate(tollgate, &case.rules(), &arguments)?)
            }
            Server::Foreign => None,
        };
        let address = match &server {
            Some(server) => server.address,
            None => options.server.context("--server names a foreign server")?,
        };
        let page = server
            .as_ref()
            .filter(|_| case.observed == Observed::Everything);
        let page = page.and_then(|server| server.debug).map(OpenPage::at);
        let foreign = |pid: Option<u32>| pid.filter(|_| server.is_none()).map(Pid);
        Ok(Self {
            name,
            case,
            address,
            server: server.as_ref().map(Process::pid).or(foreign(options.pid)),
            redis: own_redis
                .as_ref()
                .map(Redis::pid)
                .or(foreign(options.redis_pid)),
            cores: match &server {
                Some(server) if !options.unbound => {
                    // All threads exist and have their final names once each has answered.
                    load::idle(server.address, workers)?;
                    Cores::bind(server.pid(), workers, case.shape.streams == 1)?
                }
                _ => None,
            },
            is_new: true,
            turns: Vec::new(),
            failure: None,
            own_redis,
            _page: page,
            _own_server: server,
        })
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
        /// Time for connections to settle before a measurement.
        const SETTLING: Duration = Duration::from_millis(100);
        if let (Some(cores), Some(redis)) = (&self.cores, self.redis) {
            cores.set_apart(redis)?;
        }
        let callers = Callers::start(
            self.address,
            self.case.shape,
            self.is_new,
            self.cores.as_ref(),
        )?;
        callers.warm_up();
        thread::sleep(SETTLING);
        self.is_new = false;
        callers.measure();
        let before = self.state(&callers)?;
        thread::sleep(time);
        let after = self.state(&callers)?;
        let answers = callers.stop()?;
        let (ok, over) = (answers.counts.ok, answers.counts.over_limit);
        ensure!(ok + over > 0, "no decision came");
        let is_right = match self.case.expected {
            Expected::Ok => over == 0,
            Expected::OverLimit => ok == 0,
            Expected::SomeOverLimit => ok > over && over > 0,
        };
        ensure!(is_right, "{ok} answers are OK, {over} OVER_LIMIT");

        let decisions = (after.done - before.done) as f64;
        let spent =
            |after: Option<f64>, before: Option<f64>| Some((after? - before?) / decisions * 1e6);
        // The query that closes the turn is not counted.
        let each = |after: Option<u64>, before: Option<u64>| {
            Some((after? - before? - 1) as f64 / decisions)
        };
        let quantile = |share| answers.latencies.quantile_micros(share);
        Ok(Figures {
            decisions_per_sec: decisions / (after.at - before.at).as_secs_f64(),
            p50_micros: quantile(0.5),
            p99_micros: quantile(0.99),
            p999_micros: quantile(0.999),
            server_cpu: spent(after.server_cpu, before.server_cpu),
            redis_cpu: spent(after.redis_cpu, before.redis_cpu),
            callers_cpu: spent(Some(after.callers_cpu), Some(before.callers_cpu))
                .context("always known")?,
            resident_bytes: self.server.map(Pid::resident_bytes).transpose()?,
            commands: each(after.commands, before.commands),
            pipelines: each(after.reads, before.reads),
            ping_micros: self.ping_micros()?,
        })
    }

    fn state(&mut self, callers: &Callers) -> anyhow::Result<State> {
        let counted = self.own_redis.as_mut().map(Redis::counted).transpose()?;
        let state = State {
            at: std::time::Instant::now(),
            done: callers.done(),
            server_cpu: self.server.map(Pid::cpu_secs).transpose()?,
            redis_cpu: self.redis.map(Pid::cpu_secs).transpose()?,
            callers_cpu: Pid(std::process::id()).cpu_secs()?,
            commands: counted.map(|counted| counted.commands),
            reads: counted.map(|counted| counted.reads),
        };
        Ok(state)
    }

    /// Only for a load in which one call waits for one round trip.
    fn ping_micros(&mut self) -> anyhow::Result<Option<f64>> {
        /// The first thousand are faster than the others, until the cores enter deep sleep.
        const PINGS: usize = 5_000;
        let Some(redis) = self
            .own_redis
            .as_mut()
            .filter(|_| self.case.shape.streams == 1)
        else {
            return Ok(None);
        };
        let core = self.cores.as_ref().map(Cores::last);
        let times = thread::scope(|scope| {
            let asking = scope.spawn(|| -> anyhow::Result<Vec<Duration>> {
                core.map(cores::bind_here).transpose()?;
                (0..PINGS).map(|_| redis.ping()).collect()
            });
            asking.join().expect("it does not panic")
        });
        let mut times = times?;
        times.sort();
        let median = times.get(times.len() / 2);
        Ok(median.map(|time| time.as_secs_f64() * 1e6))
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
                decisions_per_sec: median(|figures| figures.decisions_per_sec)?,
                p50_micros: median(|figures| figures.p50_micros)?,
                p99_micros: median(|figures| figures.p99_micros)?,
                p999_micros: median(|figures| figures.p999_micros)?,
                server_cpu: known(|figures| figures.server_cpu),
                redis_cpu: known(|figures| figures.redis_cpu),
                callers_cpu: median(|figures| figures.callers_cpu)?,
                resident_bytes: self.turns.last().and_then(|turn| turn.resident_bytes),
                commands: known(|figures| figures.commands),
                pipelines: known(|figures| figures.pipelines),
                ping_micros: known(|figures| figures.ping_micros),
            })
        };
        all().ok_or_else(|| "it never had a turn".to_owned())
    }
}

/// The counts at one moment of a turn.
#[derive(Debug)]
struct State {
    at: std::time::Instant,
    done: u64,
    server_cpu: Option<f64>,
    redis_cpu: Option<f64>,
    callers_cpu: f64,
    commands: Option<u64>,
    reads: Option<u64>,
}
