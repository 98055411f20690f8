//! `tollgate lint-envoy`: reports the findings of all files of a run, or shows a request. Files are read as rules are:
//! never a pipe or a device, for which the command would have to wait.

use std::{path::Path, process::ExitCode};

use serde_json::json;

use super::{
    LintRules, Linted,
    document::Unreadable,
    finding::{Finding, Trap},
    lint,
    matching::LintRequest,
    show,
};
use crate::{
    cli::{
        print::print,
        report::{Report, ReportEntry},
    },
    config::{
        fault::{Fault, FaultLevel},
        file::File,
        files::Files,
        source::Source,
    },
    foundation::printable::{CountOf, file_name},
    settings::command_line::lint_envoy::LintEnvoy,
};

/// Most findings of a file that are listed.
const MAX_LISTED: usize = 100;

/// Prints every finding, and a summary of what was checked. The exit code is 0 without findings, 1 with findings, and 2
/// if a file could not be checked.
///
/// # Errors
///
/// If the rules or the request cannot be read, or the findings cannot be printed.
pub(crate) fn lint_files(lint: &LintEnvoy) -> anyhow::Result<ExitCode> {
    let loaded = lint.rules.as_ref().map(|folder| {
        let files = Files::read(&Source::Paths(vec![folder.clone()]));
        files.compile(lint.reading.options())
    });
    let loaded = loaded.transpose().map_err(|problems| {
        let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", lines.join("\n"))
    })?;
    let mut run = LintRun {
        lint,
        rules: loaded.as_ref().map(|loaded| &loaded.matcher),
        entries: Vec::new(),
        summary: Vec::new(),
        findings: 0,
        has_unread: false,
        passed_over: 0,
    };
    if let Some(request) = &lint.request {
        return run.show(&LintRequest::parse(request, &lint.headers)?);
    }
    lint.paths.iter().for_each(|path| run.path(path));
    let (checked, passed_over) = (run.summary.len(), CountOf(run.passed_over, "file"));
    if run.passed_over > 0 {
        let text = format!("passed over: {passed_over} without a rate limit filter");
        run.summary.push(text);
    }
    let report = Report {
        tool: "tollgate lint-envoy",
        is_ok: run.findings == 0 && !run.has_unread,
        entries: run.entries,
        summary: run.summary,
        facts: json!({ "files": checked, "passed_over": run.passed_over }),
    };
    report.print(lint.format)?;
    Ok(match run.findings {
        _ if run.has_unread => ExitCode::from(2),
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Reads the file or the files of the folder at a path. Names in folders are relative to the current one.
fn read(path: &Path) -> Files {
    if path == Path::new("-") {
        let mut files = Files::none();
        files.add_standard_input();
        return files;
    }
    let mut read = Files::read(&Source::Paths(vec![path.to_owned()]));
    // A folder without files is reported as one in which nothing was checked.
    let problems = &mut read.problems;
    problems.retain(|problem| !matches!(problem.fault, Fault::NoFiles));
    if path.is_dir() {
        let files = read.files.iter_mut().map(|file| &mut file.name);
        let problems = read.problems.iter_mut().map(|problem| &mut problem.file);
        for name in files.chain(problems) {
            *name = path.join(&*name).to_string_lossy().into_owned();
        }
    }
    read
}

/// The report of a run while it grows.
struct LintRun<'a> {
    lint: &'a LintEnvoy,
    rules: LintRules<'a>,
    entries: Vec<ReportEntry>,
    /// A line for each file.
    summary: Vec<String>,
    findings: usize,
    /// Whether some file could not be checked.
    has_unread: bool,
    /// How many files in folders have nothing to check.
    passed_over: usize,
}

impl LintRun<'_> {
    fn show(&self, request: &LintRequest) -> anyhow::Result<ExitCode> {
        let mut shown = Vec::new();
        for path in &self.lint.paths {
            let read = read(path);
            if let Some(problem) = read.problems.first() {
                anyhow::bail!("{problem}");
            }
            for file in &read.files {
                let text = show(&file.text, request, self.rules);
                match text.map_err(|error| unreadable(file, &error, path.is_dir())) {
                    Ok(text) => shown.extend(text),
                    Err(Some(entry)) => anyhow::bail!(entry.line),
                    Err(None) => {}
                }
            }
        }
        anyhow::ensure!(
            !shown.is_empty(),
            "no connection manager with routes is in it; name a bootstrap, or the output of Envoy's /config_dump"
        );
        print(&shown.join("\n\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    fn path(&mut self, path: &Path) {
        let (read, before) = (read(path), self.summary.len());
        for problem in &read.problems {
            self.has_unread = true;
            let entry = ReportEntry::of_problem(problem, problem.file.clone());
            self.entries.push(entry);
        }
        let files = read.files.iter();
        files.for_each(|file| self.file(file, path.is_dir()));
        if path.is_dir() && self.summary.len() == before && !self.has_unread {
            self.nothing_checked(&path.to_string_lossy(), "the whole folder");
        }
    }

    /// Checks a file. One in a folder need not be an Envoy configuration.
    fn file(&mut self, file: &File, is_in_folder: bool) {
        let linted = lint(&file.text, self.rules);
        match linted.map_err(|error| unreadable(file, &error, is_in_folder)) {
            Ok(linted) if linted.seen != [0, 0] => self.linted(&file.name, linted),
            Ok(_) if !is_in_folder => self.nothing_checked(&file.name, "the whole file"),
            Ok(_) | Err(None) => self.passed_over += 1,
            Err(Some(entry)) => {
                self.has_unread = true;
                self.entries.push(entry);
            }
        }
    }

    fn nothing_checked(&mut self, name: &str, path: &str) {
        let text = "no rate limit filter in it: nothing was checked; name the file with \
                    envoy.filters.http.ratelimit";
        let (level, trap) = (FaultLevel::Warning, Trap::NothingChecked);
        let finding = Finding::new(level, trap, path, text.to_owned());
        let mut linted = Linted::default();
        linted.findings.push(finding);
        self.linted(name, linted);
    }

    /// Adds the findings of a file.
    fn linted(&mut self, name: &str, linted: Linted) {
        let (mut wanted, [filters, items]) = (linted.findings, linted.seen);
        let (filters, items) = (CountOf(filters, "filter"), CountOf(items, "item"));
        let seen = format!("{filters}, {items} of `rate_limits`");
        let min = self.lint.min_severity.level();
        let is_wanted = |level, trap| level <= min && !self.lint.allowed.contains(&trap);
        let all = wanted.len() + linted.others.values().sum::<usize>();
        wanted.retain(|found| is_wanted(found.level, found.trap));
        let others = linted.others.iter();
        let others = others.filter(|((level, trap), _)| is_wanted(*level, *trap));
        let findings = wanted.len() + others.map(|(_, count)| count).sum::<usize>();
        let left_out = all - findings;
        let listed = wanted.into_iter().take(MAX_LISTED).map(|found| {
            let (place, code) = ((name, found.position), found.trap.to_string());
            ReportEntry::at(place, &found.path, found.level, &code, &found.message)
        });
        self.entries.extend(listed);
        self.findings += findings;
        let name = file_name(name);
        self.summary.push(match (findings, left_out) {
            (0, 0) => format!("ok: {name}: {seen}, no finding"),
            (0, _) => format!("ok: {name}: {seen}, no finding ({left_out} left out)"),
            (1..=MAX_LISTED, _) => format!("{name}: {seen}: {}", CountOf(findings, "finding")),
            _ => format!("{name}: {seen}: {MAX_LISTED} of {findings} findings"),
        });
    }
}

/// The report of a file that cannot be checked; `None` for one in a folder that is no Envoy configuration.
fn unreadable(file: &File, error: &Unreadable, is_in_folder: bool) -> Option<ReportEntry> {
    let is_reported = !is_in_folder || error.position.is_some() && is_meant(&file.text);
    let place = (&*file.name, error.position);
    is_reported.then(|| ReportEntry::at(place, "", FaultLevel::Error, "unreadable", &error.text))
}

/// Whether a text was probably meant to be an Envoy configuration, and is no Go template, as in Helm charts.
fn is_meant(text: &str) -> bool {
    let words = ".googleapis.com/envoy. static_resources staticResources EnvoyFilter";
    let is_template = text.lines().any(|line| line.trim_start().starts_with("{{"));
    !is_template && words.split(' ').any(|word| text.contains(word))
}
