//! Carries out every attack in `tests/it/support/attack.rs`, at full size, and prints its effects on other clients as
//! one table. `make attack` runs it.
//!
//! ```text
//! attack [--only TEXT] [--write FILE]
//! ```

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
    flood,
};

fn main() {
    let (mut only, mut write) = (None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("the option has a value");
        match arg.as_str() {
            "--only" => only = Some(value()),
            "--write" => write = Some(PathBuf::from(value())),
            other => panic!("`{other}` is none of the options"),
        }
    }
    // Attackers need as many files as the attacked servers.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let mut text = "\
| attack | before | envoyproxy/ratelimit | health | new connections | other calls | while held | unanswered | memory | drain |
|---|---|---|---|---|---|---|---|---|---|
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
        println!("{outcome}");
        let or_dash = |text: &'static str| if text.is_empty() { "–" } else { text };
        let (before, reference) = (or_dash(attack.before), or_dash(attack.reference));
        let _ = writeln!(
            text,
            "| {} | {before} | {reference} | {outcome} |",
            attack.name
        );
    }
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
