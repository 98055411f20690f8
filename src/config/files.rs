//! Rules: from files to a [`Matcher`], or every reason why they are refused.

use crate::{
    config::{
        fault::{Fault, Problem, unlocated},
        file::{File, ParsedFile},
        problems::Problems,
        rule_defaults::Options,
        source::{STDIN, Source, read, read_input},
    },
    core::matcher::Matcher,
};

use std::{io, path::Path};

use sha2::{Digest as _, Sha256};

/// Valid rules.
#[derive(Debug)]
pub struct Loaded {
    pub matcher: Matcher,
    /// Settings that are accepted, as in the reference, but are probably mistakes.
    pub warnings: Vec<Problem>,
    pub files: usize,
    /// A digest of the sources: equal on every replica that has the same.
    pub digest: [u8; 32],
}

/// A load takes at most about this many bytes of memory for a byte of rules, measured with one rule a line.
const LOAD_BYTES_PER_BYTE: usize = 96;

/// The bytes of `text` without comments of whole lines and without the space around lines.
fn content_bytes(text: &str) -> usize {
    let lines = text.lines().map(str::trim);
    let content = lines.filter(|line| !line.starts_with('#'));
    content.map(str::len).sum()
}

/// Rule files as they were at one moment.
#[derive(Debug)]
pub struct Files {
    pub(crate) files: Vec<File>,
    pub(crate) problems: Vec<Problem>,
}

impl Files {
    /// Reads all rule files of `source`.
    pub fn read(source: &Source) -> Self {
        let mut problems = Vec::new();
        let files = read(source, &mut problems);
        if files.is_empty() && problems.is_empty() {
            problems.push(problem_of(source, Fault::NoFiles));
        }
        Self { files, problems }
    }

    pub(crate) fn none() -> Self {
        Self {
            files: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Adds standard input as a file.
    pub(crate) fn add_standard_input(&mut self) {
        match read_input(io::stdin().lock()) {
            Ok(text) => self.files.push(File::new(STDIN.to_owned(), text)),
            Err((position, fault)) => self.problems.push(Problem {
                position,
                ..unlocated(Path::new(STDIN), *fault)
            }),
        }
    }

    /// One file held in memory, with its name in messages.
    pub fn of(name: &str, text: &str) -> Self {
        Self {
            files: vec![File::new(name.to_owned(), text.to_owned())],
            problems: Vec::new(),
        }
    }

    /// A digest of the names, texts and read errors; it changes when the files do.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        let mut add = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        for file in &self.files {
            add(&file.name);
            add(&file.text);
        }
        for problem in &self.problems {
            add(&problem.to_string());
        }
        digest.finalize().into()
    }

    /// About the most bytes of memory that [`Self::compile`] takes, the rules that it returns included.
    pub(crate) fn load_bytes(&self) -> usize {
        self.content_bytes() * LOAD_BYTES_PER_BYTE
    }

    fn content_bytes(&self) -> usize {
        let texts = self.files.iter().map(|file| &*file.text);
        texts.map(content_bytes).sum()
    }

    /// Compiles the files, in the order of their names.
    ///
    /// # Errors
    ///
    /// All problems of all files, in the order of their names.
    pub fn compile(self, options: Options) -> Result<Loaded, Vec<Problem>> {
        let digest = self.digest();
        let Self { files, problems } = self;
        let mut problems = Problems::from(problems);
        let sources: Vec<_> = files
            .iter()
            .flat_map(|file| {
                let documents = super::yaml::read(file, &mut problems);
                documents
                    .into_iter()
                    .map(move |rules| ParsedFile { file, rules })
            })
            .collect();
        let counted = SourceCount {
            files: files.len(),
            digest,
        };
        finish(&sources, counted, options, problems)
    }
}

/// A problem with a source as a whole.
pub(crate) fn problem_of(source: &Source, fault: Fault) -> Problem {
    unlocated(Path::new(&source.to_string()), fault)
}

/// The number of files or resources, and their digest.
pub(super) struct SourceCount {
    pub(super) files: usize,
    pub(super) digest: [u8; 32],
}

/// Compiles the rules read from `sources`; `problems` are the problems found so far.
pub(super) fn finish(
    sources: &[ParsedFile<'_>],
    SourceCount { files, digest }: SourceCount,
    options: Options,
    mut problems: Problems,
) -> Result<Loaded, Vec<Problem>> {
    let matcher = super::compile::compile(sources, options, &mut problems);
    // Rules with an error are missing, and need no second problem.
    if !problems.has_error() {
        super::no_effect::warn(sources, &matcher, &mut problems);
    }
    let problems = problems.sorted();
    if problems.iter().any(|problem| !problem.fault.is_warning()) {
        return Err(problems);
    }
    Ok(Loaded {
        matcher,
        warnings: problems,
        files,
        digest,
    })
}
