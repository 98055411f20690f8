//! Measures callers at a constant rate over losses of Redis, in real time: who is refused during a loss and after it, and
//! how much passes in any period.

use std::time::{Duration, Instant};

use tokio::{task::JoinSet, time::interval};

use crate::it::support::{
    ask::{ask, connect, is_ok},
    redis::Redis,
    steps::{ALGORITHMS, Rate, local_rules},
    tollgate,
};

const RATE: Rate = Rate { hits: 20, secs: 10 };

/// The hits that a caller asks for, in per cent of the limit. The last one asks all the time.
const RATES: [u32; 4] = [20, 50, 95, 400];

/// Prints a table for losses of 5, 20 and 200 seconds.
pub async fn print() {
    println!(
        "\n`on_store_loss: local`, 20 per 10 s, two replicas asked in turn: refused during the loss, refused in the 30 s \
         after it, and the most that passed in any 10 s\n"
    );
    let keys = ALGORITHMS.map(|key| format!(" {key} |")).concat();
    println!(
        "| loss | asked, of the limit |{keys}\n|---|---|{}",
        "---|".repeat(ALGORITHMS.len())
    );
    for secs in [5, 20, 200] {
        let courses = lose(Duration::from_secs(secs)).await;
        for percent in RATES {
            let cells = ALGORITHMS.map(|key| {
                let is_it = |course: &&Course| course.key == key && course.percent == percent;
                let course = courses.iter().find(is_it).unwrap();
                let Course { during, after, .. } = course;
                format!(" {during}, {after}, {} |", course.densest())
            });
            println!("| {secs} s | {percent} % |{}", cells.concat());
        }
    }
}

struct Course {
    key: &'static str,
    percent: u32,
    admitted: Vec<Instant>,
    during: u32,
    after: u32,
}

impl Course {
    fn densest(&self) -> usize {
        let within = |start: &Instant| {
            let all = self.admitted.iter();
            all.filter(|at| (*start..*start + RATE.period()).contains(*at))
                .count()
        };
        self.admitted.iter().map(within).max().unwrap_or(0)
    }
}

async fn lose(loss: Duration) -> Vec<Course> {
    let mut redis = Redis::start();
    let servers = [(); 2].map(|()| {
        let builder = tollgate::with_rules(&local_rules(RATE)).redis_at(&redis.url(), "100ms");
        builder.args(["--replicas", "2"]).start()
    });
    let began = Instant::now();
    let lost_at = began + 2 * RATE.period();
    let back_at = lost_at + loss;
    let end = back_at + 3 * RATE.period();
    let mut callers = JoinSet::new();
    for key in ALGORITHMS {
        for percent in RATES {
            let mut clients = [
                connect(servers[0].grpc).await,
                connect(servers[1].grpc).await,
            ];
            callers.spawn(async move {
                let mut course = Course {
                    key,
                    percent,
                    admitted: Vec::new(),
                    during: 0,
                    after: 0,
                };
                let value = percent.to_string();
                let mut pace = interval(RATE.period() * 100 / (percent * RATE.hits));
                for number in 0_usize.. {
                    let at = pace.tick().await.into_std();
                    if at >= end {
                        break;
                    }
                    let client = &mut clients[number % 2];
                    if is_ok(&ask(client, "d", &[(&RATE.key(key), &value)]).await) {
                        course.admitted.push(Instant::now());
                    } else if at >= back_at {
                        course.after += 1;
                    } else if at >= lost_at {
                        course.during += 1;
                    }
                }
                course
            });
        }
    }
    tokio::time::sleep_until(lost_at.into()).await;
    redis.kill();
    tokio::time::sleep_until(back_at.into()).await;
    redis.restart();
    callers.join_all().await
}
