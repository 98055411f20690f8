//! Pages that the program itself can write: the test fails unless they match the program.
//! `UPDATE_GOLDEN=1 cargo test --test it papers` writes them again.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use clap::{Arg, CommandFactory as _};
use tollgate::{Cli, Treatment, VARIABLES};

#[track_caller]
pub(crate) fn check(page: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, expected).unwrap();
    }
    let is_so = fs::read_to_string(&path).unwrap() == expected;
    assert!(is_so, "{page} is not what UPDATE_GOLDEN=1 writes");
}

#[track_caller]
fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Flags of `serve` in the order of its help.
fn flags() -> Vec<Arg> {
    let mut command = Cli::command();
    command.build();
    let serve = command.find_subcommand("serve").unwrap();
    let has_env = |flag: &&Arg| flag.get_env().is_some();
    serve.get_arguments().filter(has_env).cloned().collect()
}

fn name(flag: &Arg) -> String {
    format!("--{}", flag.get_long().unwrap())
}

fn variable(flag: &Arg) -> &str {
    flag.get_env().unwrap().to_str().unwrap()
}

fn default(flag: &Arg) -> String {
    let defaults: Vec<_> = flag.get_default_values().iter().collect();
    match defaults.first() {
        Some(default) if !default.is_empty() => format!(" (`{}`)", default.to_str().unwrap()),
        _ => String::new(),
    }
}

/// The help of a flag, or for the second Redis the flag of the first one, unless the help says how they differ.
fn meaning(flag: &Arg) -> String {
    let help = flag.get_help().unwrap().to_string();
    let first = name(flag).replace("--redis-per-second-", "--redis-");
    let is_of_the_second = first != name(flag) && flags().iter().any(|flag| name(flag) == first);
    if is_of_the_second && !help.contains("the first") {
        return format!("As `{first}`");
    }
    help
}

#[test]
fn the_readme_asks_with_the_program_that_make_run_builds() {
    let [makefile, readme] = ["Makefile", "README.md"].map(read);
    let (_, rest) = makefile.split_once("run --profile ").unwrap();
    let profile = rest.split(' ').next().unwrap();
    let words = readme.split_whitespace();
    let paths = words.filter_map(|word| word.split_once("target/"));
    let programs = paths.filter_map(|(_, path)| path.strip_suffix("/tollgate"));
    let programs: BTreeSet<_> = programs.collect();
    assert_eq!(programs, BTreeSet::from([profile]));
}

#[test]
fn the_settings_page_is_the_help_of_serve() {
    let mut page = String::from(
        "# Settings\n\nThe flags of `tollgate serve`, the default command, each with its environment variable \
         (envoyproxy/ratelimit's name where that\nservice has one) and, in brackets, its default. Flags win over \
         variables. Booleans and durations are written as in Go: `true`, `1`,\n`10ms`, `1h30m`. This page is made of \
         `tollgate serve --help`.\n",
    );
    let mut heading = None;
    for flag in &flags() {
        let under = flag.get_help_heading().unwrap_or("Rules").to_owned();
        if heading.as_ref() != Some(&under) {
            let _ = write!(page, "\n## {under}\n\n");
            heading = Some(under);
        }
        let (name, variable) = (name(flag), variable(flag));
        let (default, help) = (default(flag), meaning(flag));
        let _ = writeln!(page, "- `{name}`, `{variable}`{default}: {help}");
    }
    check("docs/run/settings.md", &page);
}

/// Whether `name` is one of those that the pattern stands for, in which a `*` is any text.
fn is_meant(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(begin) else {
        return false;
    };
    (0..=name.len()).any(|at| is_meant(rest, &name[at..]))
}

#[test]
fn the_page_of_the_migration_has_the_reference_s_variables_without_effect() {
    let flags = flags();
    let page = read("docs/start/coming-from-envoyproxy-ratelimit.md");
    let (_, page) = page.split_once("## Variables without effect").unwrap();
    let (section, _) = page.split_once("\n## ").unwrap();
    let patterns: Vec<_> = section.split('`').skip(1).step_by(2).collect();
    for (name, treatment) in VARIABLES {
        match treatment {
            Treatment::Honoured => {
                let flag = flags.iter().find(|flag| variable(flag) == name);
                // The page of traces has these.
                assert!(flag.is_some() || name.starts_with("TRACING_"), "{name}");
            }
            Treatment::Instead(_) => {
                assert!(patterns.iter().any(|one| is_meant(one, name)), "{name}");
            }
        }
    }
}

/// A row of the table of measurements behind a real Envoy: the service, processor time in seconds for a million
/// requests, and the 99th percentile in milliseconds.
struct Measured {
    service: String,
    cpu_secs: f64,
    p99_millis: f64,
}

fn measured_behind_envoy() -> Vec<Measured> {
    let page = read("docs/evidence/performance.md");
    let (_, rest) = page.split_once("<!-- chart: begin -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- chart: end -->").unwrap();
    let mut rows = table.lines().map(|line| {
        let cells = line.trim_matches('|').split('|');
        cells.map(str::trim).collect::<Vec<_>>()
    });
    let head = rows.next().unwrap();
    let column = |name: &str| head.iter().position(|cell| *cell == name).unwrap();
    let (cpu, p99) = (column("its CPU, s"), column("p99 ms"));
    let is_compared = |cells: &Vec<&str>| {
        cells[0].starts_with("tollgate, Redis") || cells[0].starts_with("envoyproxy")
    };
    let measured = rows.filter(is_compared).map(|cells| Measured {
        service: cells[0].to_owned(),
        cpu_secs: cells[cpu].parse().unwrap(),
        p99_millis: cells[p99].parse().unwrap(),
    });
    measured.collect()
}

const CHART_STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 }
.bar { fill: #0969da } .other { fill: #8c959f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .bar { fill: #58a6ff } .other { fill: #6e7681 } }";

/// Bars from zero on, one for each service, with their values.
fn panel(svg: &mut String, top: f64, title: &str, bars: &[(&str, f64, &str)]) {
    const LEFT: f64 = 190.0;
    const WIDTH: f64 = 360.0;
    let most = bars.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    let heading = top + 14.0;
    *svg += &format!("<text class=\"title\" x=\"0\" y=\"{heading}\">{title}</text>\n");
    for (row, (service, value, unit)) in (1_u8..).zip(bars) {
        let y = top + 24.0 * f64::from(row);
        let width = WIDTH * value / most;
        let is_ours = service.starts_with("tollgate");
        let kind = if is_ours { "bar" } else { "other" };
        let (base, end) = (y + 13.0, LEFT + width + 6.0);
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{base}\">{service}</text><rect class=\"{kind}\" x=\"{LEFT}\" y=\"{y}\" \
             width=\"{width:.1}\" height=\"18\"/><text x=\"{end:.1}\" y=\"{base}\">{value} {unit}</text>"
        );
    }
}

#[test]
fn the_chart_of_costs_is_drawn_from_the_table_beside_it() {
    let rows = measured_behind_envoy();
    assert_eq!(rows.len(), 3);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 212\" role=\"img\" aria-label=\"Processor time \
         and p99 of tollgate and envoyproxy/ratelimit behind one Envoy\">\n<style>{CHART_STYLE}</style>\n"
    );
    let bars = |value: fn(&Measured) -> f64, unit: &'static str| -> Vec<_> {
        let bar = |row: usize| (rows[row].service.as_str(), value(&rows[row]), unit);
        (0..rows.len()).map(bar).collect()
    };
    let cost = "Processor time of the service for a million requests";
    panel(&mut svg, 0.0, cost, &bars(|row| row.cpu_secs, "s"));
    let latency = "99 of 100 requests are answered within";
    panel(&mut svg, 110.0, latency, &bars(|row| row.p99_millis, "ms"));
    svg.push_str("</svg>\n");
    check("docs/evidence/through-envoy.svg", &svg);
}
