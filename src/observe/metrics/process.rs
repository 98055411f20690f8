//! The `process_*` families that dashboards expect, with values from the kernel, and a family that describes the build.

use std::{fmt::Write as _, fs};

use crate::foundation::build;

/// The family of the build that [`render`] writes; no sample may use this name.
pub(super) const BUILD_INFO: &str = "tollgate_build_info";

/// The other families that [`render`] writes, with their types and descriptions; no sample may use these names.
pub(super) const FAMILIES: [(&str, &str, &str); 5] = [
    (
        "process_cpu_seconds_total",
        "counter",
        "Processor time in user and kernel mode, in seconds.",
    ),
    ("process_open_fds", "gauge", "Open file descriptors."),
    (
        "process_resident_memory_bytes",
        "gauge",
        "Memory in use, in bytes.",
    ),
    (
        "process_start_time_seconds",
        "gauge",
        "When the process started, in seconds since the Unix epoch.",
    ),
    (
        "process_virtual_memory_bytes",
        "gauge",
        "Address space in use, in bytes.",
    ),
];

/// `USER_HZ`, the unit of times in /proc: 100 on every Linux architecture that Rust supports, except Alpha.
const TICKS_PER_SEC: f64 = 100.0;

/// The families in Prometheus' text format, without values that the kernel does not provide.
pub(crate) fn render() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    // One less, because the folder itself is open while it is read.
    let open_fds = fs::read_dir("/proc/self/fd").map(|fds| fds.count().saturating_sub(1));
    page(
        &read("/proc/self/stat"),
        &read("/proc/self/status"),
        &read("/proc/stat"),
        open_fds.ok(),
    ) + &build_info()
}

/// A gauge that is always 1 and carries the facts as labels.
fn build_info() -> String {
    let (version, rustc) = (build::VERSION, build::RUSTC);
    let commit = match build::COMMIT {
        "" => "unknown",
        commit => commit,
    };
    format!(
        "# HELP {BUILD_INFO} The version of this program, the commit that it was built from, and the compiler.\n\
         # TYPE {BUILD_INFO} gauge\n\
         {BUILD_INFO}{{version=\"{version}\",commit=\"{commit}\",rustc=\"{rustc}\"}} 1\n"
    )
}

/// The memory in use, in bytes; `None` if the kernel does not show it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(kilobytes(&status, "VmRSS:")? * 1024)
}

fn page(stat: &str, status: &str, machine: &str, open_fds: Option<usize>) -> String {
    // The second field is the name of the program in parentheses, and can contain any character.
    let fields: Vec<&str> = match stat.rsplit_once(')') {
        Some((_, after)) => after.split_whitespace().collect(),
        None => Vec::new(),
    };
    // Fields are numbered as in proc(5), where the first one after the name is 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let seconds = |number| Some(field(number)? / TICKS_PER_SEC);
    let bytes = |key: &str| Some(kilobytes(status, key)? as f64 * 1024.0);
    let booted = value(machine, "btime").and_then(|text| text.parse::<f64>().ok());
    let sum = |(one, other): (f64, f64)| one + other;
    let values = [
        seconds(14).zip(seconds(15)).map(sum),
        open_fds.map(|count| count as f64),
        bytes("VmRSS:"),
        booted.zip(seconds(22)).map(sum),
        bytes("VmSize:"),
    ];
    let mut page = String::new();
    for ((name, kind, help), value) in FAMILIES.iter().zip(values) {
        if let Some(value) = value {
            let _ = writeln!(
                page,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
            );
        }
    }
    page
}

fn kilobytes(status: &str, key: &str) -> Option<u64> {
    let text = value(status, key)?.trim_end_matches("kB");
    text.trim().parse().ok()
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
        for (name, ..) in FAMILIES {
            let line = page
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            assert!(line.trim().parse::<f64>().unwrap() >= 0.0, "{name} {line}");
        }
    }
}
