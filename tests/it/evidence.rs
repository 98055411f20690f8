//! `evidence.txt`: the tests that `make evidence` runs, and `make test` leaves out by their names.

use std::{env, fs, path::Path, process::Command};

/// A name that begins none is of a test that is gone, and hides nothing; one within other names would hide those, too.
#[test]
fn every_name_in_the_list_of_evidence_begins_the_names_of_tests() {
    let output = Command::new(env::current_exe().unwrap())
        .arg("--list")
        .output()
        .unwrap();
    let tests = String::from_utf8(output.stdout).unwrap();
    let tests: Vec<_> = tests
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    assert!(tests.len() > 100, "{tests:?}");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/evidence.txt");
    let list = fs::read_to_string(list).unwrap();
    for line in list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (name, promise) = line.split_once(' ').expect("a name and a promise");
        assert!(!promise.trim().is_empty(), "{name} has no promise");
        let mut found = tests.iter().filter(|test| test.contains(name)).peekable();
        assert!(found.peek().is_some(), "no test is called {name}");
        for test in found {
            assert!(test.starts_with(name), "{name} is within {test}");
        }
    }
}
