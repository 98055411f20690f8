"""Prometheus rules: the metrics that they and the dashboards name, and the unit tests of the alerts."""

import re

import yaml

from .documents import DEPLOY
from .grafana import dashboards, panels

RULES = DEPLOY / "prometheus" / "rules.yaml"
CASES = DEPLOY / "prometheus" / "cases.yaml"
# As in rules.yaml; the chart has a value for it.
RUNBOOK = "https://github.com/YOURS/tollgate/blob/main/docs/run/runbook.md"
# Operators and modifiers of PromQL; every other word that is no function is a metric.
KEYWORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
# Variables of a dashboard, as a query needs them.
VARIABLES = {"$__rate_interval": "1m", "$__range": "1h", '"$job"': '".*"', '"$instance"': '".*"', '"$domain"': '".*"'}


def rules():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


def metrics(expression):
    """The names of metrics, and patterns of names, in an expression."""
    patterns = re.findall(r'__name__=~"([^"]*)"', expression)
    text = re.sub(r"\{[^}]*\}", " {} ", expression)
    text = re.sub(r"\[[^]]*\]", " ", text)
    text = re.sub(r'"[^"]*"', " ", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\b\s*(\([^)]*\))?", " ", text)
    text = re.sub(r"\b[0-9][0-9a-z.]*\b", " ", text)
    words = re.finditer(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text)
    names = {
        word.group() for word in words
        if word.group() not in KEYWORDS and not re.match(r"\s*\(", text[word.end():])
    }
    return names, set(patterns)


def expressions():
    """Every expression with its place."""
    found = {}
    for rule in rules():
        found[f"rules.yaml {rule.get('alert') or rule['record']}"] = rule["expr"]
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel.get("targets", []):
                found[f"{name} {panel['title']} {target['refId']}"] = plain(target["expr"])
        for variable in dashboard["templating"]["list"]:
            query = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"])
            if variable["type"] == "query":
                found[f"{name} ${variable['name']}"] = plain(query.group(1))
    return found


def plain(expression):
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def unknown_metrics(exported):
    """The metrics in expressions that nothing exports: neither `exported` nor a recording rule."""
    known = set(exported) | {rule["record"] for rule in rules() if "record" in rule}
    problems = []
    for place, expression in expressions().items():
        names, patterns = metrics(expression)
        if not names and not patterns:
            problems.append(f"{place}: names no metric")
        problems += [f"{place}: nothing exports {name}" for name in sorted(names - known)]
        for pattern in patterns:
            if not any(re.fullmatch(pattern, name) for name in known):
                problems.append(f"{place}: nothing exports a metric like {pattern}")
    return problems


def rule_errors():
    """Mistakes in the alerts that promtool does not look for."""
    errors = []
    for rule in alerts():
        name = rule["alert"]
        notes = rule.get("annotations", {})
        if rule.get("labels", {}).get("severity") not in ("critical", "warning"):
            errors.append(f"rules.yaml {name}: its severity is neither critical nor warning")
        if not notes.get("summary", "").endswith("."):
            errors.append(f"rules.yaml {name}: its summary is no sentence")
        if notes.get("runbook_url") != f"{RUNBOOK}#{name.lower()}":
            errors.append(f"rules.yaml {name}: no runbook")
    cases = [case["alert"] for case in yaml.safe_load(CASES.read_text())]
    if cases != [rule["alert"] for rule in alerts()]:
        errors.append("cases.yaml: not a case for each alert, in the order of rules.yaml")
    return errors


def unit_tests():
    """promtool's tests: each alert fires with one set of series, and not with another."""
    rule_of = {rule["alert"]: rule for rule in alerts()}
    tests = []
    for case in yaml.safe_load(CASES.read_text()):
        rule = rule_of[case["alert"]]
        fires = {
            "exp_labels": case["fires"]["labels"] | rule["labels"],
            "exp_annotations": rule["annotations"],
        }
        for name, expected in (("fires", [fires]), ("quiet", [])):
            series = case[name]["series"].items()
            tests.append({
                "name": f"{case['alert']} {name}",
                "interval": "1m",
                "input_series": [{"series": key, "values": str(values)} for key, values in series],
                "alert_rule_test": [{
                    "eval_time": case[name]["at"], "alertname": case["alert"], "exp_alerts": expected,
                }],
            })
    order = [group["name"] for group in yaml.safe_load(RULES.read_text())["groups"]]
    return {"rule_files": [str(RULES)], "evaluation_interval": "1m", "group_eval_order": order, "tests": tests}
