//! Pages that the program itself can write: the test fails unless they match the program.
//! `UPDATE_GOLDEN=1 cargo test --test it papers` writes them again.

use std::{fmt::Write as _, fs, path::Path};

use clap::CommandFactory as _;
use tollgate::{Cli, Treatment, VARIABLES};

#[track_caller]
pub(crate) fn check(page: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, expected).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text == expected,
        "{page} is not what UPDATE_GOLDEN=1 writes"
    );
}

/// Flags of `serve` in the order of its help.
fn flags() -> Vec<clap::Arg> {
    let mut command = Cli::command();
    command.build();
    let serve = command.find_subcommand("serve").unwrap();
    let has_env = |flag: &&clap::Arg| flag.get_env().is_some();
    serve.get_arguments().filter(has_env).cloned().collect()
}

fn name(flag: &clap::Arg) -> String {
    format!("--{}", flag.get_long().unwrap())
}

fn variable(flag: &clap::Arg) -> &str {
    flag.get_env().unwrap().to_str().unwrap()
}

fn default(flag: &clap::Arg) -> String {
    let defaults: Vec<_> = flag.get_default_values().iter().collect();
    match defaults.first() {
        Some(default) if !default.is_empty() => format!("`{}`", default.to_str().unwrap()),
        _ => String::new(),
    }
}

/// The help of a flag, escaped for a cell of a table.
fn help(flag: &clap::Arg) -> String {
    flag.get_help().unwrap().to_string().replace('|', "\\|")
}

#[test]
fn the_readme_asks_with_the_program_that_make_run_builds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, rest) = makefile.split_once("run --profile ").unwrap();
    let profile = rest.split(' ').next().unwrap();
    let programs: Vec<_> = readme
        .split_whitespace()
        .filter_map(|word| {
            let (_, path) = word.split_once("target/")?;
            path.strip_suffix("/tollgate")
        })
        .collect();
    assert!(!programs.is_empty());
    assert!(
        programs.iter().all(|folder| *folder == profile),
        "{programs:?}"
    );
}

#[test]
fn the_settings_page_is_the_help_of_serve() {
    let mut page = String::from(
        "# Settings\n\nEvery flag of `tollgate serve`, and the environment variable that says the \
         same. Flags win over\nvariables. Booleans are `true` or `false`, durations are written \
         `10ms` or `1h30m`. This page is\nmade of `tollgate serve --help`.\n",
    );
    let mut heading = None;
    for flag in flags() {
        let under = flag.get_help_heading().unwrap_or("Rules").to_owned();
        if heading.as_ref() != Some(&under) {
            let _ = write!(
                page,
                "\n## {under}\n\n| flag | variable | default | |\n|---|---|---|---|\n"
            );
            heading = Some(under);
        }
        let _ = writeln!(
            page,
            "| `{}` | `{}` | {} | {} |",
            name(&flag),
            variable(&flag),
            default(&flag),
            help(&flag)
        );
    }
    check("docs/settings.md", &page);
}

#[test]
fn the_page_of_the_reference_s_variables_is_the_table_of_the_program() {
    let flags = flags();
    let mut page = String::from(
        "# The environment of envoyproxy/ratelimit\n\nWhat becomes of each of its variables. This \
         page is made of the table that the program itself goes\nby.\n\n\
         | variable | what tollgate makes of it |\n|---|---|\n",
    );
    for (variable_name, treatment) in VARIABLES {
        let meaning = match treatment {
            Treatment::Honoured => {
                let flag = flags.iter().find(|flag| variable(flag) == variable_name);
                format!("honoured, as `{}`", name(flag.unwrap()))
            }
            Treatment::Instead(why) => format!("no effect, and a line in the log: {why}"),
        };
        let _ = writeln!(page, "| `{variable_name}` | {meaning} |");
    }
    check("docs/environment.md", &page);
}
