//! Ends each task in turn, by a return and by a panic, in a complete server.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use clap::Parser as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::watch,
    time::{Duration, timeout},
};

use super::*;
use crate::{
    foundation::random,
    server::{log::Log, run::serve},
    settings::command_line::{Cli, Command},
};

const ALL: [Task; 15] = [
    Task::Worker,
    Task::WorkerBatchers,
    Task::Batchers,
    Task::Probe,
    Task::Losses,
    Task::Replicas,
    Task::GrpcListener,
    Task::HttpListener,
    Task::DebugListener,
    Task::PrometheusListener,
    Task::Reload,
    Task::Certificates,
    Task::Health,
    Task::Sweep,
    Task::Statsd,
];

/// Tasks that start again.
const SINKS: [Task; 1] = [Task::Statsd];

/// How a test ends a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Returns,
    Panics,
}

/// The task that a test ends, and all tasks that its server has started.
struct PlannedEnd {
    task: Task,
    ending: Ending,
    is_due: watch::Receiver<bool>,
    started: BTreeSet<Task>,
}

thread_local! {
    /// The end that a test plans for the server on this thread.
    static PLANNED: RefCell<Option<PlannedEnd>> = const { RefCell::new(None) };
}

/// The task, which ends when a test wants it to.
pub(in crate::server) fn owned<F: Future<Output = ()> + Send>(
    task: Task,
    running: F,
) -> impl Future<Output = ()> + Send + use<F> {
    let planned = PLANNED.with_borrow_mut(|planned| {
        let planned = planned.as_mut()?;
        planned.started.insert(task);
        (planned.task == task).then(|| (planned.ending, planned.is_due.clone()))
    });
    async move {
        let Some((ending, mut is_due)) = planned else {
            return running.await;
        };
        tokio::select! {
            () = running => {}
            due = is_due.wait_for(|is_due| *is_due) => {
                drop(due);
                assert_eq!(ending, Ending::Returns, "a test ends it");
            }
        }
    }
}

/// Longest time for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// An address of this machine that is not in use: there are 16 million in 127.0.0.0/8.
fn unused_host() -> Ipv4Addr {
    let [a, b, c, ..] = random::id().to_be_bytes();
    Ipv4Addr::new(127, a, b, c)
}

async fn page(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}

/// Waits until the page has this text.
async fn shows(address: SocketAddr, path: &str, text: &str) {
    while !page(address, path)
        .await
        .is_ok_and(|page| page.contains(text))
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The files of a server with everything that has a task.
fn write_files(folder: &Path) {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    std::fs::create_dir(folder.join("rules")).unwrap();
    write("rules/rules.yaml", "domain: d\n");
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    write("certificate", &certified.cert.pem());
    write("key", &certified.signing_key.serialize_pem());
}

/// Ends `task` in a server that has all tasks. Returns the server's error, and the tasks that it had.
fn end(task: Task, ending: Ending) -> (Option<String>, BTreeSet<Task>) {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let runtime = crate::server::workers::runtime().unwrap();
    let _in_runtime = runtime.enter();
    let host = unused_host();
    let [http, debug] = [8080, 6070].map(|port| SocketAddr::from((host, port)));
    let arguments = [
        "tollgate serve --workers 1 --drain-delay 0 --grpc-host 127.0.0.1 --grpc-port 0".to_owned(),
        format!("--host {host} --debug-host {host} --prometheus --prometheus-address {host}:9090"),
        format!(
            "--config-dir {} --redis-url redis://127.0.0.1:1",
            file("rules")
        ),
        format!(
            "--grpc-tls --grpc-tls-cert {} --grpc-tls-key {}",
            file("certificate"),
            file("key")
        ),
        "--statsd --statsd-host 127.0.0.1 --statsd-port 1".to_owned(),
    ];
    let Command::Serve(settings) = Cli::parse_from(arguments.join(" ").split(' ')).command else {
        unreachable!("that is what was asked for");
    };
    let (due, is_due) = watch::channel(false);
    PLANNED.set(Some(PlannedEnd {
        task,
        ending,
        is_due,
        started: BTreeSet::new(),
    }));
    let goes_on = async {
        shows(http, "/livez", "200 OK").await;
        due.send_replace(true);
        if !SINKS.contains(&task) {
            std::future::pending::<()>().await;
        }
        // It started again, and ended again.
        shows(debug, "/metrics", "\ntollgate_tasks_ended_total 2\n").await;
        assert!(page(http, "/livez").await.unwrap().contains("200 OK"));
    };
    let error = runtime.block_on(async {
        let ended = async {
            let log = Log::unread();
            tokio::select! {
                served = serve(&settings, &log) => {
                    Some(format!("{:#}", anyhow::Error::from(served.unwrap_err())))
                }
                () = goes_on => None,
            }
        };
        timeout(PATIENCE, ended)
            .await
            .unwrap_or_else(|_| panic!("{task:?} {ending:?}: it goes on"))
    });
    runtime.shutdown_background();
    (error, PLANNED.take().unwrap().started)
}

#[test]
fn the_process_ends_with_each_of_its_tasks_but_sinks_start_again() {
    let mut started = BTreeSet::new();
    for task in ALL {
        for ending in [Ending::Returns, Ending::Panics] {
            let (error, had) = end(task, ending);
            assert!(had.contains(&task), "{task:?} did not run");
            started.extend(had);
            if SINKS.contains(&task) {
                assert_eq!(error, None, "{task:?} {ending:?}");
                continue;
            }
            // A batcher ends its worker.
            let (name, ending) = match (task, ending) {
                (Task::WorkerBatchers, ending) => (Task::Worker.name(), ending),
                _ => (task.name(), ending),
            };
            let cause = match ending {
                Ending::Returns => "it returned",
                Ending::Panics => "it panicked: ",
            };
            let error = error.unwrap();
            let expected =
                format!("{name} ended, and the process cannot go on without it: {cause}");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
    assert_eq!(started, ALL.into(), "a task is not in the list");
}

#[tokio::test]
async fn a_thread_s_end_and_panic_are_those_of_its_task() {
    let (mut tasks, ended) = (OwnedTasks::default(), watch::Sender::new(0));
    tasks.start_draining();
    let ends = ended.clone();
    let body = move || {
        ends.send_modify(|ends| *ends += 1);
    };
    let thread = on_thread("t".to_owned(), body).unwrap();
    tasks.start(Task::Statsd, thread);
    tasks.all_end(Task::Statsd).await.unwrap();
    assert_eq!(*ended.borrow(), 1);
    let thread = on_thread("t".to_owned(), || panic!("{} words", 2)).unwrap();
    tasks.start(Task::Worker, thread);
    let error = tasks.all_end(Task::Worker).await.unwrap_err();
    assert_eq!(error.cause.to_string(), "it panicked: 2 words");
}

#[tokio::test]
async fn while_the_process_drains_tasks_may_return_but_not_panic() {
    let mut tasks = OwnedTasks::default();
    tasks.start_draining();
    tasks.start(Task::Statsd, async {});
    tasks.start(Task::Reload, async {});
    tasks.start(Task::Health, std::future::pending());
    tasks.all_end(Task::Statsd).await.unwrap();
    tasks.all_end(Task::Reload).await.unwrap();
    tasks.stop(Task::Health).await.unwrap();
    tasks.start(Task::Reload, async { panic!("broken") });
    assert!(tasks.all_end(Task::Reload).await.is_err());
}
