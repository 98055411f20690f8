#!/usr/bin/env python3
"""Checks that a version can be released, and writes its packages, checksums and notes.

`--check` ends after the checks. A release is a tag vX.Y.Z on the commit; this program neither makes nor pushes it.
"""

import argparse
import datetime
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True

import advisories
import project
from project import DIST, ROOT, Problem

# In this order; the tests come last, for they read what the others write.
STEPS = ["build.py", "image.py", "sbom.py", "dist.py", "image_test.py", "dist_test.py"]
# Files that name the version, each with the text around it.
NAMED = {
    "Cargo.lock": 'name = "tollgate"\nversion = "{}"\n',
    "deploy/helm/tollgate/Chart.yaml": "\nappVersion: {}\n",
    "deploy/compose/compose.yaml": "tollgate:{}",
    "deploy/kustomize/base/deployment.yaml": "tollgate:{}",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help="as in Cargo.toml, such as 1.2.3")
    parser.add_argument("--check", action="store_true", help="only check; build nothing")
    advisories.add_today(parser)
    options = parser.parse_args()
    section, exception = check(options.version, options.today)
    print(f"ok    {options.version} can be released")
    if exception:
        print(f"WARN  {exception}")
    if options.check:
        return
    # The database itself, or advisories.yaml for an exception.
    if subprocess.run(["make", "deny"], cwd=ROOT, check=False).returncode != 0:
        raise Problem("make deny failed")
    # Packages of another version would be in the checksums.
    shutil.rmtree(DIST, ignore_errors=True)
    here = ROOT / "deploy" / "packaging"
    for step in ["install build", *STEPS[:4], "install try", *STEPS[4:]]:
        if subprocess.run([here / step.split()[0], *step.split()[1:]], cwd=ROOT, check=False).returncode != 0:
            raise Problem(f"{step} failed")
    # Beside the packages and not among them: it has their checksums.
    notes = DIST.with_name(f"release-notes-{options.version}.md")
    notes.write_text(release_notes(options.version, section, (DIST / "SHA256SUMS").read_text(), exception))
    print(f"{notes}\ntag it: git tag -s v{options.version} -m 'tollgate {options.version}'")


def check(version, today):
    """The section of the changelog and the exception for the advisories, if nothing stands against the release.

    Otherwise all reasons against it.
    """
    problems = []
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[0-9A-Za-z.-]+)?", version):
        problems.append(f"{version!r} is no version of the form 1.2.3")
    if version != project.version():
        problems.append(f"Cargo.toml has version {project.version()}, not {version}")
    for path, text in NAMED.items():
        if text.format(version) not in (ROOT / path).read_text():
            problems.append(f"{path} does not name version {version}")
    section = changelog_section(version, problems)
    exception = None
    try:
        exception = advisories.exception(today)
    except Problem as problem:
        problems.append(str(problem))
    if not project.git("rev-parse", "HEAD"):
        problems.append("this is no clone of a repository: the commit is unknown")
    changed = project.git("status", "--porcelain")
    if changed:
        problems.append(f"the tree is not clean:\n{changed}")
    tag = f"v{version}"
    tagged = project.git("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}")
    if tagged not in ("", project.git("rev-parse", "HEAD")):
        problems.append(f"the tag {tag} is on another commit")
    if problems:
        raise Problem("\nERROR ".join(problems))
    return section, exception


def changelog_section(version, problems):
    """The text under `## [version] - date` in CHANGELOG.md."""
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    found = [section for section in sections if section.startswith(f"[{version}]")]
    if len(found) != 1:
        problems.append(f"CHANGELOG.md has {len(found)} sections `## [{version}] - YYYY-MM-DD`")
        return ""
    title, _, text = found[0].partition("\n")
    try:
        datetime.date.fromisoformat(title.partition(" - ")[2])
    except ValueError:
        problems.append(f"CHANGELOG.md: `## {title}` has no date of the form YYYY-MM-DD")
    if not re.search("^- ", text, re.MULTILINE):
        problems.append(f"CHANGELOG.md: `## {title}` lists no change")
    waiting = [section for section in sections if section.startswith("[Unreleased]")]
    if any(re.search("^- ", section, re.MULTILINE) for section in waiting):
        problems.append("CHANGELOG.md: changes are still under [Unreleased]")
    return text.strip()


def release_notes(version, section, sums, exception):
    commit = project.git("rev-parse", "HEAD")
    advice = f"### Advisories\n\n{exception}\n\n" if exception else ""
    return (
        f"{section}\n\n{advice}### Files\n\n"
        f"docs/start/install.md describes each file. `make image dist` at commit {commit} gives equal bits.\n\n"
        f"```text\n{sums}```\n"
    )


if __name__ == "__main__":
    project.run(main)
