//! One hot key of several processes: how many commands Redis gets when its hits are counted one by one, and in slices.

use std::{path::Path, thread, time::Duration};

use crate::{
    Options,
    cases::{self, Keys, LEASED, MINUTE, Shape},
    load::Callers,
    processes::{Process, Redis},
};

pub const PROCESSES: usize = 4;

/// Time until slices have the size that the load wants.
const RAMP: Duration = Duration::from_secs(4);

/// Calls at a time for each process, over one connection for each of its workers.
const STREAMS: usize = 16;

/// Starts processes that share one Redis.
pub fn replicas(redis: &Redis, workers: usize, rules: &str) -> anyhow::Result<Vec<Process>> {
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let arguments = [
        format!("--workers={workers}"),
        format!("--redis-url=redis://{}", redis.address),
        "--redis-timeout=5s".to_owned(),
    ];
    (0..PROCESSES)
        .map(|_| Process::tollgate(program, rules, &arguments))
        .collect()
}

/// Prints decisions and commands a second, for both.
pub fn print(options: &Options) -> anyhow::Result<()> {
    let turn = Duration::from_secs_f64(options.seconds.max(10.0));
    for (name, limits) in [("one by one", MINUTE), ("in slices", LEASED)] {
        let mut redis = Redis::start()?;
        let servers = replicas(&redis, options.workers, &cases::rules(limits))?;
        let shape = Shape {
            streams: STREAMS,
            connections: options.workers,
            descriptors: 1,
            keys: Keys::Spread(1),
            hits: 0,
            rest: Duration::ZERO,
        };
        let callers = servers
            .iter()
            .map(|server| Callers::start(server.address, shape, true, None))
            .collect::<anyhow::Result<Vec<_>>>()?;
        for caller in &callers {
            caller.warm_up();
        }
        thread::sleep(RAMP);
        for caller in &callers {
            caller.measure();
        }
        let done = || callers.iter().map(Callers::done).sum::<u64>();
        let before = (done(), redis.counted()?.commands);
        thread::sleep(turn);
        let after = (done(), redis.counted()?.commands);
        for caller in callers {
            caller.stop()?;
        }
        let [decisions, commands] =
            [after.0 - before.0, after.1 - before.1].map(|count| count as f64 / turn.as_secs_f64());
        println!(
            "{name}: {decisions:.0} decisions and {commands:.0} commands a second, {:.4} for each",
            commands / decisions
        );
    }
    Ok(())
}
