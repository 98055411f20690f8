//! README.md and `docs/`: their links lead somewhere, README.md names every page, and they are short.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

/// A first page that is read in two screens, code and table of links included.
const MOST_WORDS_OF_README: usize = 1_200;

/// Of all pages together, so that each fact has room on one of them only.
const MOST_WORDS_OF_DOCS: usize = 29_000;
const MOST_PAGES: usize = 34;

#[test]
fn the_front_page_and_the_documents_are_short() {
    // As `wc -w` counts: marks of tables and lists are words too.
    let words = |page: &str| read(page).split_whitespace().count();
    let readme = words("README.md");
    assert!(readme <= MOST_WORDS_OF_README, "{readme} words");
    let pages = pages("docs");
    assert!((30..=MOST_PAGES).contains(&pages.len()), "{pages:?}");
    let docs: usize = pages.iter().map(|page| words(page)).sum();
    assert!(docs <= MOST_WORDS_OF_DOCS, "{docs} words");
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_of_it() {
    let papers = [
        "README",
        "SECURITY",
        "CONTRIBUTING",
        "ARCHITECTURE",
        "CHANGELOG",
    ];
    let papers = papers.map(|name| format!("{name}.md")).into_iter();
    let mut found = 0;
    for paper in papers.chain(pages("docs")).chain(pages("deploy")) {
        for link in links(&read(&paper)) {
            found += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => paper.clone(),
                file => beside(&paper, file),
            };
            assert!(root().join(&target).exists(), "{paper}: {link}");
            if target.ends_with(".md") && !heading.is_empty() {
                let headings = headings(&read(&target));
                assert!(headings.contains(heading), "{paper}: {link}");
            }
        }
    }
    assert!(found > 200, "{found}");
}

#[test]
fn the_front_page_has_every_page() {
    let index: BTreeSet<_> = links(&read("README.md")).collect();
    for page in pages("docs") {
        assert!(index.contains(&page), "{page}");
    }
}

#[test]
fn links_and_headings_are_found() {
    let page = "# A `b`, c\n[x](y.md#z) ![p](p.svg) <img src=\"q.png\">\n```\n# no\n[no](no.md)\n```\n[w](https://a.b)\n";
    let found: Vec<_> = links(page).collect();
    assert_eq!(found, ["y.md#z", "p.svg", "q.png"]);
    assert_eq!(headings(page), BTreeSet::from(["a-b-c".to_owned()]));
    assert_eq!(beside("docs/run/a.md", "../b.md"), "docs/b.md");
}

/// The pages of a folder and of those in it.
fn pages(folder: &str) -> Vec<String> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if root().join(&path).is_dir() {
            pages.extend(self::pages(&path));
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
    pages
}

/// The lines of a page that are not in a block of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets in this repository that a page links to or shows.
fn links(page: &str) -> impl Iterator<Item = String> {
    let after = |line: &str, mark: &str, end: char| -> Vec<String> {
        let rests = line.split(mark).skip(1);
        let texts = rests.filter_map(|rest| rest.split_once(end));
        texts.map(|(link, _)| link.to_owned()).collect()
    };
    let links = prose(page)
        .flat_map(move |line| [after(line, "](", ')'), after(line, "src=\"", '"')].concat());
    links.filter(|link| !link.contains("://"))
}

/// The headings of a page as the fragments that lead to them.
fn headings(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    let fragments = headings.map(|line| {
        let chars = line.trim_start_matches('#').trim().chars();
        let kept = chars.filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    });
    fragments.collect()
}

/// The path of `file`, as `paper` names it.
fn beside(paper: &str, file: &str) -> String {
    let mut path = PathBuf::from(paper);
    path.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{paper}: {file}"),
            part => path.push(part),
        }
    }
    path.to_str().unwrap().to_owned()
}

#[track_caller]
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
