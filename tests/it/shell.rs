//! Completions and manual pages: clap makes them, of what the program says.

use std::process::Output;

use crate::support::tollgate::program;

fn run(args: &[&str]) -> Output {
    program()
        .env("REDIS_AUTH", "sesame")
        .args(args)
        .output()
        .unwrap()
}

#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_command_has_a_manual_page_and_no_value_of_the_environment_is_in_it() {
    assert!(printed(&["man"]).contains(".TH tollgate 1"));
    let page = printed(&["man", "serve"]);
    let has_value = page.contains("sesame");
    assert!(page.contains("REDIS_AUTH") && !has_value, "{page}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        assert!(script.contains("lint-envoy"), "{shell}");
        assert!(shell != "bash" || script.contains("sarif"), "{script}");
    }
    assert_eq!(run(&["man", "sevre"]).status.code(), Some(2));
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}
