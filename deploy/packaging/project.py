"""Facts about the project that every package states, and the folders of what is built."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Compiled programs and everything else that is slow to make; `dist` holds only what is handed out.
STATIC = ROOT / "target" / "static"
DIST = ROOT / "target" / "dist"
TOOLS = ROOT / "target" / "packaging"

# The name of each processor in images and in Debian; the compiler's name is derived from it.
TARGETS = {"amd64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}

TITLE = "tollgate"


class Problem(Exception):
    """A reason to stop, for people."""


def package():
    """The `[package]` table of Cargo.toml."""
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]


def version():
    return package()["version"]


def git(*arguments):
    """The output of git, or an empty text: an unpacked archive has no history."""
    if not (ROOT / ".git").exists():
        return ""
    run = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else ""


def commit():
    """The commit for `--version`; empty in an archive without history."""
    given = os.environ.get("TOLLGATE_COMMIT")
    return given if given is not None else git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def epoch():
    """The time that every package states: SOURCE_DATE_EPOCH, or that of the commit, never that of the build.

    Zip files know no time before 1980.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct")
    return max(int(given or 0), 315532800)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder):
    """Lists every file of `folder` in SHA256SUMS, for `sha256sum --check`."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{sha256(path)}  {path.relative_to(folder)}\n" for path in paths]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return len(lines)


def run(main):
    """Calls `main` and exits: 0, or 1 with a line for people."""
    try:
        main()
    except Problem as problem:
        print(f"ERROR {problem}", file=sys.stderr)
        sys.exit(1)
