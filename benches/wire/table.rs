//! Formats rows as a table for people, or as one JSON object per line for records.

use serde_json::json;

use crate::{
    figures::shown,
    run::{Figures, Row},
};

/// Prints the table and the meaning of its columns.
pub fn print(rows: &[Row]) {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    println!(
        "{:width$} {:>9} {:>5} {:>7} {:>7} {:>7} {:>6} {:>5} {:>6} {:>6} {:>5} {:>6} {:>7}",
        "case",
        "per sec",
        "of",
        "p50 µs",
        "p99",
        "p99.9",
        "CPU",
        "of",
        "Redis",
        "RSS MB",
        "cmds",
        "trips",
        "callers",
    );
    for row in rows {
        let figures = match &row.medians {
            Ok(figures) => figures,
            Err(failure) => {
                println!("{:width$} failed: {failure}", row.name);
                continue;
            }
        };
        let floor = row.floor.as_ref();
        println!(
            "{:width$} {:>9.0} {:>5} {:>7.0} {:>7.0} {:>7.0} {:>6} {:>5} {:>6} {:>6} {:>5} {:>6} {:>7.2}",
            row.name,
            figures.decisions_per_sec,
            shown(rate_of_floor(figures, floor), 2),
            figures.p50_micros,
            figures.p99_micros,
            figures.p999_micros,
            shown(figures.server_cpu, 2),
            shown(cpu_of_floor(figures, floor), 2),
            shown(figures.redis_cpu, 2),
            shown(figures.resident_bytes.map(|bytes| bytes as f64 / 1e6), 1),
            shown(figures.commands, 2),
            shown(figures.pipelines, 3),
            figures.callers_cpu,
        );
    }
    for row in rows {
        if let Ok(Figures {
            ping_micros: Some(ping),
            ..
        }) = row.medians
        {
            print!("{}: one PING of its Redis takes {ping:.0} µs", row.name);
            if let Some(floor) = &row.floor {
                print!(", with the floor's p50 {:.0} µs", floor.p50_micros + ping);
            }
            println!();
        }
    }
    println!(
        "\nCPU, Redis, callers: seconds of processor time for a million decisions, of the server, \
         its Redis and the callers. of: the share of the floor's figure under the same load. cmds, \
         trips: commands and reads from sockets in Redis for each decision."
    );
}

fn rate_of_floor(figures: &Figures, floor: Option<&Figures>) -> Option<f64> {
    Some(figures.decisions_per_sec / floor?.decisions_per_sec)
}

fn cpu_of_floor(figures: &Figures, floor: Option<&Figures>) -> Option<f64> {
    Some(figures.server_cpu? / floor?.server_cpu?)
}

/// Prints one object per row.
pub fn print_json(rows: &[Row]) {
    for row in rows {
        let shape = row.case.shape;
        let mut object = json!({
            "case": row.name,
            "limits": row.case.limits,
            "streams": shape.streams,
            "connections": shape.connections,
            "descriptors": shape.descriptors,
            "keys": shape.keys.count(),
        });
        match &row.medians {
            Ok(figures) => {
                let floor = row.floor.as_ref();
                object["decisions_per_sec"] = figures.decisions_per_sec.into();
                object["rate_of_floor"] = rate_of_floor(figures, floor).into();
                object["p50_micros"] = figures.p50_micros.into();
                object["p99_micros"] = figures.p99_micros.into();
                object["p999_micros"] = figures.p999_micros.into();
                object["server_cpu_secs_per_million"] = figures.server_cpu.into();
                object["cpu_of_floor"] = cpu_of_floor(figures, floor).into();
                object["redis_cpu_secs_per_million"] = figures.redis_cpu.into();
                object["callers_cpu_secs_per_million"] = figures.callers_cpu.into();
                object["resident_bytes"] = figures.resident_bytes.into();
                object["commands_per_decision"] = figures.commands.into();
                object["pipelines_per_decision"] = figures.pipelines.into();
                object["ping_micros"] = figures.ping_micros.into();
            }
            Err(failure) => object["failure"] = failure.clone().into(),
        }
        println!("{object}");
    }
}
