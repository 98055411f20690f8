//! Completions and manual pages, as a shell and a reader of manuals see them.

use std::process::{Command, Output};

use crate::support::tollgate::program;

fn run(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The words that bash proposes behind `words`, the last of which is unfinished.
fn proposed(words: &[&str]) -> String {
    let script = printed(&["completions", "bash"]);
    let last = words.len() - 1;
    let ask = format!(
        "COMP_WORDS=({}); COMP_CWORD={last}; _tollgate tollgate '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words[last],
        words[last - 1]
    );
    let output = Command::new("bash")
        .args(["-c", &format!("{script}\n{ask}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

#[test]
fn bash_proposes_commands_flags_and_values() {
    assert_eq!(proposed(&["tollgate", "lint"]), "lint-envoy");
    assert_eq!(proposed(&["tollgate", "check", "--form"]), "--format");
    assert_eq!(proposed(&["tollgate", "check", "--format", "sa"]), "sarif");
    let levels = proposed(&["tollgate", "serve", "--log-level", "in"]);
    assert_eq!(levels, "info");
}

#[test]
fn each_command_has_a_manual_page_and_no_value_of_the_environment_is_in_it() {
    let page = printed(&["man"]);
    assert!(page.contains(".TH tollgate 1"), "{page}");
    let output = program()
        .env("REDIS_AUTH", "sesame")
        .args(["man", "serve"])
        .output()
        .unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.contains("REDIS_AUTH") && !page.contains("sesame"),
        "{page}"
    );
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(printed(&["completions", shell]).contains("lint-envoy"));
    }
    assert_eq!(run(&["man", "sevre"]).status.code(), Some(2));
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}
