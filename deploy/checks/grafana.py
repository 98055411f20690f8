"""Grafana dashboards: whether Grafana can load them, and whether they look tidy."""

import copy
import functools
import json
import re

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from .documents import DEPLOY

DASHBOARDS = DEPLOY / "grafana"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

register_default_plugins()


def dashboards():
    return {path.name: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def is_kept(dashboard):
    """Whether Grafana's own types keep every field of a dashboard; they drop those that they do not know."""
    try:
        again = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return has_all(again, dashboard)


def has_all(again, before):
    if isinstance(before, dict) and isinstance(again, dict):
        return all(key in again and has_all(again[key], value) for key, value in before.items())
    if isinstance(before, list) and isinstance(again, list) and len(before) == len(again):
        return all(has_all(one, other) for one, other in zip(again, before))
    return before == again


def misspellings(dashboard):
    """How many fields of a dashboard were misspelt, and which misspellings passed."""
    count, passed = 0, []
    for path in paths(dashboard):
        # Those of targets are free in Grafana's types; `panel_errors` compares them.
        if path[-2:-1] == ("datasource",) and "targets" in path:
            continue
        body = copy.deepcopy(dashboard)
        parent = functools.reduce(lambda part, key: part[key], path[:-1], body)
        parent[f"{path[-1]}x"] = parent.pop(path[-1])
        count += 1
        if is_kept(body):
            passed.append(".".join(map(str, path)))
    return count, passed


def paths(part, path=()):
    if isinstance(part, list):
        for place, item in enumerate(part):
            yield from paths(item, (*path, place))
    elif isinstance(part, dict):
        for key in part:
            yield (*path, key)
            yield from paths(part[key], (*path, key))


def dashboard_errors():
    """Mistakes for which Grafana would not load a dashboard, or would show it badly."""
    errors, uids = [], set()
    for name, dashboard in dashboards().items():
        errors += [f"{name}: no {key}" for key in ("title", "uid", "panels", "schemaVersion", "time")
                   if not dashboard.get(key)]
        if dashboard["uid"] in uids:
            errors.append(f"{name}: two dashboards are called {dashboard['uid']}")
        uids.add(dashboard["uid"])
        if dashboard.get("id") is not None:
            errors.append(f"{name}: has the id of one installation")
        if not is_kept(dashboard):
            errors.append(f"{name}: Grafana's own types do not know a field of it")
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        errors += [f"{name}: {error}" for error in panel_errors(list(panels(dashboard)), variables)]
    return errors


def panel_errors(found, variables):
    errors, ids, cells = [], set(), set()
    for panel in found:
        title = panel.get("title") or f"panel {panel.get('id')}"
        if panel["id"] in ids:
            errors.append(f"{title}: its id is not unique")
        ids.add(panel["id"])
        grid = panel["gridPos"]
        own = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        if cells & own or grid["x"] + grid["w"] > 24:
            errors.append(f"{title}: lies over another panel or beyond the edge")
        cells |= own
        if panel["type"] == "row":
            continue
        if not panel.get("targets"):
            errors.append(f"{title}: shows nothing")
        if not panel.get("description"):
            errors.append(f"{title}: has no description")
        if "unit" not in panel["fieldConfig"]["defaults"]:
            errors.append(f"{title}: has no unit")
        if panel.get("datasource") != SOURCE:
            errors.append(f"{title}: its data source is not the variable")
        for target in panel.get("targets", []):
            if target.get("datasource") != panel["datasource"]:
                errors.append(f"{title}: a target has another data source")
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "__range"}
            errors += [f"{title}: no variable ${name}" for name in sorted(used - variables)]
    return errors
