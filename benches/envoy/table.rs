//! Formats rows as a table.

use crate::{figures::shown, run::Row};

/// Prints the table and the meaning of its columns.
pub fn print(rows: &[Row]) {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    println!(
        "{:width$} {:>9} {:>8} {:>8} {:>8} {:>10} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
        "case",
        "per sec",
        "p50 ms",
        "p99",
        "p99.9",
        "undecided",
        "%",
        "late",
        "Envoy",
        "service",
        "Redis",
        "bench",
    );
    for row in rows {
        let figures = match &row.medians {
            Ok(figures) => figures,
            Err(failure) => {
                println!("{:width$} failed: {failure}", row.name);
                continue;
            }
        };
        let undecided = row.asked.map(|asked| asked.error as f64);
        let late = row.asked.map(|asked| asked.late as f64);
        let share = row
            .asked
            .map(|asked| 100.0 * asked.error as f64 / asked.all() as f64);
        println!(
            "{:width$} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>10} {:>7} {:>7} {:>7.1} {:>7} {:>7} {:>7.1}",
            row.name,
            figures.requests_per_sec,
            figures.p50_millis,
            figures.p99_millis,
            figures.p999_millis,
            shown(undecided, 0),
            shown(share, 3),
            shown(late, 0),
            figures.envoy_cpu,
            shown(figures.service_cpu, 1),
            shown(figures.redis_cpu, 1),
            figures.bench_cpu,
        );
    }
    println!(
        "\nundecided: calls in all turns that brought Envoy no decision; these requests passed without a \
         limit. %: their share of all calls. late: those of them that Envoy gave up after 20 ms. Envoy, service, Redis, bench: seconds of \
         processor time for a million requests, of each process; bench is the callers and the upstream."
    );
}
