"""The results, printed one by one and at the end as a table of groups."""

import time
import traceback

from sandbox import Failed

STORES = ("in memory", "with Redis")
# What stands in a page around the table.
BEGIN = "<!-- table -->\n"
END = "<!-- end of table -->"


class Table:
    """The results so far, by control plane and group."""

    def __init__(self):
        self.groups = {}
        self.remarks = []
        self.passed = 0
        self.failed = []

    def run_all(self, control_plane, store, start, cases, subject):
        """Runs `start`, and then the cases, each with `subject`."""

        def name(group, title):
            return f"{control_plane}, {group}: {title}, {store}"

        group, title, check = start
        if self.run(name(group, title), (control_plane, group), store, check):
            for group, title, check in cases:
                self.run(name(group, title), (control_plane, group), store, lambda: check(subject))

    def run(self, name, row, store, check):
        """Whether the case passed. It may return a remark."""
        begin = time.monotonic()
        remark = reason = None
        try:
            remark = check()
        except Failed as failed:
            reason = str(failed)
        except Exception:  # Whatever a case meets is its result, and the next one runs.
            reason = traceback.format_exc()
        secs = time.monotonic() - begin
        self.groups.setdefault(row, {}).setdefault(store, []).append(reason is None)
        if remark:
            self.remarks.append(f"{store[0].upper()}{store[1:]}, {remark}.")
        if reason is None:
            self.passed += 1
        else:
            self.failed.append(name)
        print(f"FAILED: {name}: {reason}" if reason else f"passed in {secs:.1f} s: {name}", flush=True)
        return reason is None

    def markdown(self):
        lines = [f"| control plane | cases | {' | '.join(STORES)} |", "|---|---|---|---|"]
        for (control_plane, group), results in self.groups.items():
            cells = [count(results[store]) if store in results else "–" for store in STORES]
            lines.append(f"| {control_plane} | {group} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def summary(self):
        return f"{self.passed} of {self.passed + len(self.failed)} cases passed"

    def write(self, page, text):
        before, _, rest = page.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        page.write_text(f"{before}{BEGIN}{text}\n{END}{after}")


def count(cases):
    return str(len(cases)) if all(cases) else f"{sum(cases)} of {len(cases)}"
