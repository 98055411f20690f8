//! Pages that the program itself can write: the test fails unless they match the program.
//! `UPDATE_GOLDEN=1 cargo test --test it papers` writes them again.

use std::{fmt::Write as _, fs, path::Path};

use clap::{Arg, CommandFactory as _};
use tollgate::{Cli, Costs, Treatment, VARIABLES};

use crate::support::tollgate::program;

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
        "# Settings\n\nEvery flag of `tollgate serve`, which is the default command, with the environment variable \
         that says the same:\nenvoyproxy/ratelimit's name if that service has one. Flags win over variables. Booleans and \
         durations are written as\nin Go: `true`, `1`, `10ms`, `1h30m`. This page is made of `tollgate serve --help`.\n",
    );
    let short = program().args(["serve", "-h"]).output().unwrap();
    let short = String::from_utf8(short.stdout).unwrap();
    let is_short = |flag: &Arg| short.split_whitespace().any(|word| word == name(flag));
    let (often, rarely): (Vec<_>, Vec<_>) = flags().into_iter().partition(is_short);
    assert!(!often.is_empty() && !rarely.is_empty());
    let head = "\n\n| flag, variable | default | meaning |\n|---|---|---|\n";
    let row = |page: &mut String, flag: &Arg| {
        let (name, variable) = (name(flag), variable(flag));
        let (default, help) = (default(flag), help(flag));
        let _ = writeln!(page, "| `{name}`, `{variable}` | {default} | {help} |");
    };
    let _ = write!(page, "\n## Most installations{head}");
    often.iter().for_each(|flag| row(&mut page, flag));
    page.push_str("\n## Rarely\n");
    let mut heading = None;
    for flag in &rarely {
        let under = flag.get_help_heading().unwrap_or("Rules").to_owned();
        if heading.as_ref() != Some(&under) {
            let _ = write!(page, "\n### {under}{head}");
            heading = Some(under);
        }
        row(&mut page, flag);
    }
    check("docs/settings.md", &page);
}

/// The block of a page between two comments, which the program writes.
#[track_caller]
fn check_block(page: &str, name: &str, block: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(path).unwrap();
    let [begin, end] = ["begin", "end"].map(|edge| format!("<!-- {name}: {edge} -->\n"));
    let (before, rest) = text.split_once(&begin).expect("a first line");
    let (_, after) = rest.split_once(&end).expect("a last line");
    check(page, &format!("{before}{begin}{block}{end}{after}"));
}

#[test]
fn the_sizing_page_shows_the_costs_that_sizes_are_computed_from() {
    let mut table = String::from("| cost | value | of |\n|---|---|---|\n");
    for cost in Costs::measured().all() {
        let value = format!("{} {}", cost.value, cost.unit);
        let _ = writeln!(
            table,
            "| `{}` | {} | {} |",
            cost.name,
            value.trim(),
            cost.meaning
        );
    }
    check_block("docs/sizing.md", "costs", &table);
}

/// A copy of a figure in another page would go on when the measurement changes.
#[test]
fn the_costs_stand_in_the_pages_that_they_are_from() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for cost in Costs::measured().all() {
        let Some((page, _)) = cost.source.split_once(".md") else {
            continue;
        };
        let text = fs::read_to_string(root.join(format!("docs/{page}.md"))).unwrap();
        let value = cost.value.to_string();
        let is_there = text
            .split(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')
            .any(|word| word.trim_end_matches(['.', ',']) == value);
        // The others are computed, and their source says of which figures.
        if is_there {
            found += 1;
        } else {
            assert!(cost.source.chars().any(|c| c.is_ascii_digit()), "{cost:?}");
        }
    }
    assert!(found > 14, "{found}");
}

#[test]
fn the_page_of_the_reference_s_variables_is_the_table_of_the_program() {
    let flags = flags();
    let mut page = String::from(
        "# The environment of envoyproxy/ratelimit\n\nWhat becomes of each of its variables. This \
         page is made of the table that the program itself goes\nby.\n\n## Without effect\n\nOne \
         that is set has a line in the log.\n\n| variable | reason |\n|---|---|\n",
    );
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    let mut honoured = Vec::new();
    for (variable_name, treatment) in VARIABLES {
        match treatment {
            Treatment::Honoured => {
                let flag = flags.iter().find(|flag| variable(flag) == variable_name);
                honoured.push(format!("- `{variable_name}`: `{}`", name(flag.unwrap())));
            }
            Treatment::Instead(why) => {
                let variable_name = format!("`{variable_name}`");
                match reasons.iter_mut().find(|(reason, _)| *reason == why) {
                    Some((_, names)) => names.push(variable_name),
                    None => reasons.push((why, vec![variable_name])),
                }
            }
        }
    }
    for (why, names) in reasons {
        let _ = writeln!(page, "| {} | {why} |", names.join(", "));
    }
    let _ = writeln!(
        page,
        "\n## Honoured\n\nEach as the flag beside it, of which [settings.md](settings.md) has the meaning.\n\n{}",
        honoured.join("\n")
    );
    check("docs/environment.md", &page);
}
