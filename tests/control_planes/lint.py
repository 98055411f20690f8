"""What `tollgate lint-envoy` finds in the configuration of an Envoy."""

import json

from sandbox import expect, run


def expect_lint(tollgate, file, dump, expected):
    """The findings above notes, as pairs of severity and name."""
    file.write_text(dump)
    # It ends with 1 if there are findings.
    output = run(tollgate, "lint-envoy", "--min-severity", "warning", "--format", "json", file, codes=(0, 1))
    findings = json.loads(output)["problems"]
    seen = sorted({(finding["severity"], finding["code"]) for finding in findings})
    messages = "; ".join(f"{finding['path']}: {finding['message']}" for finding in findings)[:600]
    expect(seen == sorted(expected), f"lint-envoy finds {seen}, not {expected}: {messages}")


def without_drained(dump):
    """The configuration as it is once old listeners have gone."""
    document = json.loads(dump)
    for part in document["configs"]:
        for listener in part.get("dynamic_listeners", []):
            listener.pop("draining_state", None)
    return json.dumps(document, indent=1)
