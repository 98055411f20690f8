//! The process as the kernel sees it: the `process_*` families that dashboards expect.

use std::{fmt::Write as _, fs};

/// The families that [`render`] writes; no sample may use these names.
pub(super) const NAMES: [&str; 5] = [
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
];

/// `USER_HZ`, the unit of times in /proc: 100 on every Linux architecture that Rust supports, except Alpha.
const TICKS_PER_SEC: f64 = 100.0;

/// The families in Prometheus' text format, without values that the kernel does not provide.
pub(crate) fn render() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    // The folder itself is open while it is read.
    let open_fds = fs::read_dir("/proc/self/fd").map(|fds| fds.count().saturating_sub(1));
    page(
        &read("/proc/self/stat"),
        &read("/proc/self/status"),
        &read("/proc/stat"),
        open_fds.ok(),
    )
}

/// The memory in use, in bytes; `None` if the kernel does not tell.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = value(&status, "VmRSS:")?.trim_end_matches("kB").trim();
    Some(kilobytes.parse::<u64>().ok()? * 1024)
}

fn page(stat: &str, status: &str, machine: &str, open_fds: Option<usize>) -> String {
    // The second field is the name of the program in parentheses, and may contain any character.
    let fields: Vec<&str> = match stat.rsplit_once(')') {
        Some((_, behind)) => behind.split_whitespace().collect(),
        None => Vec::new(),
    };
    // Numbered as in proc(5), where the first field after the name is 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let seconds = |number| Some(field(number)? / TICKS_PER_SEC);
    let bytes = |key: &str| {
        Some(
            value(status, key)?
                .trim_end_matches("kB")
                .trim()
                .parse::<f64>()
                .ok()?
                * 1024.0,
        )
    };
    let booted = value(machine, "btime").and_then(|text| text.parse::<f64>().ok());
    let mut page = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(
                page,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
            );
        }
    };
    add(
        "process_cpu_seconds_total",
        "counter",
        "Processor time in user and kernel mode, in seconds.",
        seconds(14)
            .zip(seconds(15))
            .map(|(user, kernel)| user + kernel),
    );
    add(
        "process_open_fds",
        "gauge",
        "Open file descriptors.",
        open_fds.map(|count| count as f64),
    );
    add(
        "process_resident_memory_bytes",
        "gauge",
        "Memory in use, in bytes.",
        bytes("VmRSS:"),
    );
    add(
        "process_start_time_seconds",
        "gauge",
        "When the process started, in seconds since the Unix epoch.",
        booted
            .zip(seconds(22))
            .map(|(booted, started)| booted + started),
    );
    add(
        "process_virtual_memory_bytes",
        "gauge",
        "Address space in use, in bytes.",
        bytes("VmSize:"),
    );
    page
}

/// The text after a key at the start of a line.
fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, name: &str, expected: Option<&str>) {
        let prefix = format!("{name} ");
        assert_eq!(
            page.lines().find_map(|line| line.strip_prefix(&prefix)),
            expected
        );
    }

    #[test]
    fn the_files_of_the_kernel_are_understood() {
        let page = page(
            "42 (a) b (c) S 1 42 42 0 -1 4194304 500 0 0 0 250 75 0 0 20 0 3 0 12345 9999 77 1",
            "Name:\ta) b (c\nVmSize:\t    2048 kB\nVmRSS:\t     100 kB\n",
            "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n",
            Some(9),
        );
        check(&page, "process_cpu_seconds_total", Some("3.25"));
        check(&page, "process_open_fds", Some("9"));
        check(&page, "process_resident_memory_bytes", Some("102400"));
        check(&page, "process_start_time_seconds", Some("1700000123.45"));
        check(&page, "process_virtual_memory_bytes", Some("2097152"));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        assert_eq!(page("", "", "", None), "");
        assert_eq!(page("42 (a) S 1", "VmRSS: much", "btime", None), "");
    }

    #[test]
    fn this_process_is_known() {
        let page = render();
        for name in NAMES {
            let line = page
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            assert!(line.trim().parse::<f64>().unwrap() >= 0.0, "{name} {line}");
        }
    }
}
