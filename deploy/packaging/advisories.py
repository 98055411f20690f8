#!/usr/bin/env python3
"""Prints the age of advisories.yaml, the advisories against dependencies and images that come with this commit."""

import argparse
import datetime
import os
import re
import sys

sys.dont_write_bytecode = True

import project
from project import ROOT, Problem

# Advisories of a month that has passed would otherwise first be seen by those who install the release.
MAX_DAYS = 30
# A release with older ones has to name their day and a reason here: "2026-01-31: REASON". An exception from before does
# not hold for it, because of the day.
EXCEPTION = "ADVISORIES_AS_OF"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_today(parser)
    options = parser.parse_args()
    day = as_of()
    print(f"advisories.yaml: of {day}, {days(day, options.today)} days old; a release refuses more than {MAX_DAYS}")


def add_today(parser):
    now = datetime.datetime.now(datetime.timezone.utc)
    parser.add_argument("--today", type=datetime.date.fromisoformat, default=now.date(), help="the day that it is; for tests")


def as_of():
    """The day of the older part, that on crates or that on images."""
    text = (ROOT / "advisories.yaml").read_text()
    found = re.findall(r"^(?:images_)?as_of: (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    if not found:
        raise Problem("advisories.yaml has no line `as_of: YYYY-MM-DD`")
    return min(map(datetime.date.fromisoformat, found))


def days(day, today):
    return (today - day).days


def exception(today):
    """The sentence for the release notes if the release is an exception, otherwise None.

    Raises Problem if it has to be one and is not, or if the exception is about other advisories.
    """
    day = as_of()
    age = days(day, today)
    if age < 0:
        raise Problem(f"advisories.yaml is of {day}, which is yet to come")
    given = os.environ.get(EXCEPTION)
    if given:
        reason = given.removeprefix(f"{day}: ").strip()
        if not given.startswith(f"{day}: ") or not reason or not given.isprintable():
            raise Problem(f'{EXCEPTION} is {given!r}, and not "{day}: REASON"')
        return f"The dependencies were checked against the advisories of {day} only, {age} days old: {reason}"
    if age > MAX_DAYS:
        raise Problem(
            f"advisories.yaml is of {day}, {age} days old, more than {MAX_DAYS}: write it anew (CONTRIBUTING.md), "
            f'or say why it will do: {EXCEPTION}="{day}: REASON"'
        )
    return None


if __name__ == "__main__":
    project.run(main)
