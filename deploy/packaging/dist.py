#!/usr/bin/env python3
"""Writes the packages: an archive, a Debian package and a Python wheel for each processor.

All hold the program that the image holds, bit for bit. Each format is a few small texts around it, written by
`archives.py`, so that two runs give equal bits.
"""

import argparse
import base64
import datetime
import functools
import hashlib
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True

import archives
import program
import project
import sbom
from archives import Entry
from project import DIST, ROOT, STATIC, Problem

# Names of processors in wheels.
WHEELS = {"amd64": "x86_64", "arm64": "aarch64"}
# Where each shell looks for completions.
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/tollgate",
    "zsh": "usr/share/zsh/vendor-completions/_tollgate",
    "fish": "usr/share/fish/vendor_completions.d/tollgate.fish",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path, default=STATIC, help="the folder that build.py fills")
    parser.add_argument("--to", type=pathlib.Path, default=DIST, help="where the packages go")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    programs = program.read_all(options.programs)
    texts = Texts(options.programs)
    for architecture, data in programs.items():
        for name, package in packages(architecture, data, texts):
            (options.to / name).write_bytes(package)
            print(f"{options.to / name}: {len(package) / 1e6:.2f} MB")
    project.write_checksums(options.to)


def packages(architecture, data, texts):
    """The name and the bytes of each package for one processor."""
    version = project.version()
    folder = f"tollgate-{version}-linux-{architecture}"
    yield f"{folder}.tar.gz", archives.compressed(archives.tar(archive(data, texts), project.epoch(), f"{folder}/"))
    yield f"tollgate_{version}_{architecture}.deb", deb(architecture, data, texts)
    tags = wheel_tags(architecture)
    yield f"tollgate-{version}-py3-none-{'.'.join(tags)}.whl", wheel(tags, data)


class Texts:
    """The pages and completions that the program writes about itself."""

    def __init__(self, programs):
        self.program = program.of_this_machine(programs)
        listed = self.print("man", "--help")
        found = re.search(r"\[possible\s+values:\s+([^]]+)\]", listed)
        if not found:
            raise Problem("`tollgate man --help` lists no commands")
        commands = re.findall(r"[\w-]+", found[1])
        self.pages = {"tollgate.1": self.print("man")}
        self.pages |= {f"tollgate-{command}.1": self.print("man", command) for command in commands}
        self.completions = {shell: self.print("completions", shell) for shell in COMPLETIONS}

    def print(self, *arguments):
        run = subprocess.run([self.program, *arguments], env={}, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise Problem(f"tollgate {' '.join(arguments)}: {run.stderr}")
        return run.stdout


def source(path):
    return (ROOT / path).read_bytes()


def rules(folder):
    """The rule files in config/, as examples."""
    return [Entry(f"{folder}/{path.name}", path.read_bytes()) for path in sorted((ROOT / "config").glob("*.yaml"))]


def archive(data, texts):
    """The files of the archive. It can be unpacked over /usr/local."""
    return [
        Entry("bin/tollgate", data, 0o755),
        Entry("LICENSE", source("LICENSE")),
        Entry("README.md", source("README.md")),
        Entry("CHANGELOG.md", source("CHANGELOG.md")),
        Entry("tollgate.cdx.json", parts()),
        Entry("share/tollgate/tollgate.service", source("deploy/systemd/tollgate.service")),
        *rules("share/tollgate/config"),
        *(Entry(f"share/man/man1/{name}", page.encode()) for name, page in texts.pages.items()),
        *(Entry(path.removeprefix("usr/"), texts.completions[shell].encode()) for shell, path in COMPLETIONS.items()),
    ]


@functools.cache
def parts():
    return sbom.text().encode()


# --- Debian --------------------------------------------------------------------------------------

CONTROL = """\
Package: tollgate
Version: {version}
Architecture: {architecture}
Maintainer: The authors of tollgate
Section: net
Priority: optional
Installed-Size: {kibibytes}
Description: {summary}
 Envoy asks it whether a request may pass. The rules are YAML files in the format of
 envoyproxy/ratelimit. The unit tollgate.service starts it for an Envoy of this machine,
 once there are rules in /etc/tollgate/rules.
"""
# A unit is started by a person: without rules it would fail.
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # An update of a running service: the earlier program would go on.
    if [ -n "$2" ]; then systemctl try-restart tollgate.service; fi
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now tollgate.service
fi
"""
POSTRM = """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""
ENVIRONMENT = """\
# Settings of tollgate.service: NAME=value, a line for each. `man tollgate-serve` lists them.
#REDIS_URL=redis://127.0.0.1:6379
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: tollgate

Files: *
Copyright: The authors of tollgate
License: Apache-2.0
 The text is in LICENSE beside this file. The crates that are compiled into the program, and
 the licence of each, are in tollgate.cdx.json.
"""


def deb(architecture, data, texts):
    """A Debian package: an `ar` archive of a version, the control files and the files."""
    document = "usr/share/doc/tollgate"
    conffiles = {"etc/tollgate/environment": ENVIRONMENT.encode()}
    files = [
        Entry("usr/bin/tollgate", data, 0o755),
        Entry("usr/lib/systemd/system/tollgate.service", source("deploy/systemd/tollgate.service")),
        Entry("etc/tollgate/rules", mode=0o755),
        *(Entry(path, text) for path, text in conffiles.items()),
        Entry(f"{document}/LICENSE", source("LICENSE")),
        Entry(f"{document}/copyright", COPYRIGHT.encode()),
        Entry(f"{document}/changelog.gz", archives.compressed(source("CHANGELOG.md"))),
        Entry(f"{document}/README.md", source("README.md")),
        Entry(f"{document}/tollgate.cdx.json", parts()),
        *rules(f"{document}/examples"),
        *(Entry(f"usr/share/man/man1/{name}.gz", archives.compressed(page.encode()))
          for name, page in texts.pages.items()),
        *(Entry(path, texts.completions[shell].encode()) for shell, path in COMPLETIONS.items()),
    ]
    contents = [file for file in files if file.data is not None]
    sums = [f"{hashlib.md5(file.data).hexdigest()}  {file.path}\n" for file in contents if file.path not in conffiles]
    control = CONTROL.format(
        version=project.version(),
        architecture=architecture,
        kibibytes=sum(len(file.data) // 1024 + 1 for file in contents),
        summary=project.package()["description"],
    )
    scripts = {"postinst": POSTINST, "prerm": PRERM, "postrm": POSTRM}
    controls = [
        Entry("control", control.encode()),
        Entry("md5sums", "".join(sums).encode()),
        Entry("conffiles", "".join(f"/{path}\n" for path in conffiles).encode()),
        *(Entry(name, script.encode(), 0o755) for name, script in scripts.items()),
    ]
    epoch = project.epoch()
    return archives.ar([
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", archives.compressed(archives.tar(controls, epoch, "./"))),
        ("data.tar.gz", archives.compressed(archives.tar(files, epoch, "./"))),
    ], epoch)


# --- Python --------------------------------------------------------------------------------------


def wheel_tags(architecture):
    """The platforms of a static program: every Linux, whatever its C library."""
    processor = WHEELS[architecture]
    return [f"manylinux_2_17_{processor}", f"manylinux2014_{processor}", f"musllinux_1_1_{processor}"]


def wheel(tags, data):
    """A wheel without Python: the program is a script of the environment that it is installed into."""
    version, package = project.version(), project.package()
    info = f"tollgate-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.4",
        "Name: tollgate",
        f"Version: {version}",
        f"Summary: {package['description']}",
        f"License-Expression: {package['license']}",
        "License-File: LICENSE",
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
    ]
    about = ["Wheel-Version: 1.0", "Generator: deploy/packaging/dist.py", "Root-Is-Purelib: false"]
    about += [f"Tag: py3-none-{tag}" for tag in tags]
    files = [
        Entry(f"tollgate-{version}.data/scripts/tollgate", data, 0o755),
        Entry(f"{info}/METADATA", ("\n".join(metadata) + "\n\n").encode() + source("README.md")),
        Entry(f"{info}/WHEEL", ("\n".join(about) + "\n").encode()),
        Entry(f"{info}/licenses/LICENSE", source("LICENSE")),
        Entry(f"{info}/sboms/tollgate.cdx.json", parts()),
    ]
    record = "".join(f"{file.path},sha256={record_digest(file.data)},{len(file.data)}\n" for file in files)
    files.append(Entry(f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    moment = datetime.datetime.fromtimestamp(project.epoch(), datetime.UTC)
    return archives.zip_archive(files, moment.timetuple()[:6])


def record_digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    project.run(main)
