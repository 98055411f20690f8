//! Carries out every attack in `tests/it/support/attack.rs` and `doors.rs`, at full size, and prints their effects as
//! tables. `make attack` runs it.
//!
//! ```text
//! attack [--only TEXT] [--server FILE] [--write FILE]
//! ```
//!
//! `--server` attacks another build. `--only` takes the attacks whose names contain the text.

#![expect(unreachable_pub, reason = "a test program has no outside")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how it fails, and a table is what it is for"
)]

use std::{fmt::Write as _, path::PathBuf};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[expect(dead_code, reason = "most of it is for the other tests")]
#[path = "../it"]
mod it {
    pub mod support;
}

#[path = "../chaos/table.rs"]
mod table;

use it::support::{
    attack::{Size, all},
    doors, flood, tollgate,
};

fn main() {
    let (mut only, mut write) = (None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("the option has a value");
        match arg.as_str() {
            "--only" => only = Some(value()),
            "--server" => tollgate::test_build(value().into()),
            "--write" => write = Some(PathBuf::from(value())),
            other => panic!("`{other}` is none of the options"),
        }
    }
    // Attackers need as many files as the attacked servers.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let mut text = "\
| attack | before | health, ms | connections, ms | calls, ms | memory, MB | drain, s |
|---|---|---|---|---|---|---|
"
    .to_owned();
    for attack in all() {
        if only
            .as_ref()
            .is_some_and(|only| !attack.name.contains(only.as_str()))
        {
            continue;
        }
        println!("{} …", attack.name);
        let outcome = attack.run(Size(100));
        let (held, failures) = (outcome.calls_while_held, outcome.failures);
        println!("{outcome}, {held:?} while held, {failures} unanswered");
        let _ = writeln!(text, "| {} | {} | {outcome} |", attack.name, attack.before);
    }
    text += &by_other_doors(only.as_deref());
    let flood = "a flood of new values";
    if only.is_none_or(|only| flood.contains(only.as_str())) {
        println!("{flood} …");
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let outcome = runtime.block_on(flood::run(10_000_000, 100_000));
        let _ = writeln!(
            text,
            "\nA flood in memory, with `--max-counters 100000`. {outcome}."
        );
    }
    println!("\n{text}");
    if let Some(path) = write {
        table::replace(&path, &text);
    }
}

/// The table of the attacks that have effects of their own.
fn by_other_doors(only: Option<&str>) -> String {
    let mut text = "
By way of proxies, web pages, files, Redis and the control plane:

| attack | before | effect |
|---|---|---|
"
    .to_owned();
    for attack in doors::all() {
        if only.is_some_and(|only| !attack.name.contains(only)) {
            continue;
        }
        println!("{} …", attack.name);
        let effect = attack.run(Size(100));
        println!("{}", effect.text);
        let doors::DoorAttack { name, before, .. } = attack;
        let _ = writeln!(text, "| {name} | {before} | {} |", effect.text);
    }
    text
}
