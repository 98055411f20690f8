"""Whether documents fit the schemas of their kinds.

Kubernetes' own kinds by `kubernetes-validate --strict`, custom resources by ../schemas.yaml. To show
that the schemas look closely, every field of a document can be misspelt, one at a time.
"""

import copy
import functools
import json

import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from .documents import DEPLOY

# The oldest version that has everything in here, and the newest.
VERSIONS = ["1.29.0", "1.36.0"]
# Maps with keys of the operator's choice, and configuration of other programs.
FREE = {
    "labels", "matchLabels", "annotations", "data", "nodeSelector", "requests", "limits", "value",
}


@functools.cache
def own_schemas():
    return yaml.safe_load((DEPLOY / "schemas.yaml").read_text())["kinds"]


@functools.cache
def validator(api, kind):
    own = own_schemas().get(f"{api} {kind}")
    if own is not None:
        return jsonschema.Draft202012Validator(own)
    group, _, version = api.rpartition("/")
    # As kubernetes-validate itself: v1, apps-v1, networking-v1.
    short = f"{group.split('.')[0]}-{version}" if group else version
    folder = f"kubernetes-json-schema/v{VERSIONS[-1]}-local-strict"
    resources = [
        Resource.from_contents(schema_contents(f"{folder}/{name}.json", VERSIONS[-1]))
        for name in (f"{kind.lower()}-{short}", "_definitions")
    ]
    registry = resources[1] @ (resources[0] @ Registry())
    return jsonschema.Draft202012Validator(resources[0].contents, registry=registry)


def schema_error(document):
    """The objection of the schema to a document, or nothing."""
    if f"{document.api} {document.kind}" in own_schemas():
        error = next(validator(document.api, document.kind).iter_errors(document.body), None)
        return error and f"{error.json_path}: {error.message}"
    return next((error for version in VERSIONS if (error := kubernetes_error(document.text(), version))), None)


@functools.cache
def kubernetes_error(text, version):
    """The same for a document of one of Kubernetes' own kinds; many overlays have the same ones."""
    body = json.loads(text)
    try:
        kubernetes_validate.validate(body, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return f"Kubernetes {version} has no {body['apiVersion']} {body['kind']}"
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return None


def named_error(name, body):
    """The objection of one of our schemas to what is no Kubernetes document, or nothing."""
    error = next(jsonschema.Draft202012Validator(own_schemas()[name]).iter_errors(body), None)
    return error and f"{error.json_path}: {error.message}"


def misspellings(document):
    """How many fields of a document were misspelt, and which misspellings its schema let pass."""
    check = validator(document.api, document.kind)
    fields = [path for path in paths(document.body) if path not in (("apiVersion",), ("kind",))]
    passed = []
    for path in fields:
        body = copy.deepcopy(document.body)
        parent = functools.reduce(lambda part, key: part[key], path[:-1], body)
        parent[f"{path[-1]}x"] = parent.pop(path[-1])
        if check.is_valid(body):
            passed.append(".".join(map(str, path)))
    return len(fields), passed


def paths(part, path=()):
    """The paths of all fields whose names a schema knows."""
    if isinstance(part, list):
        for place, item in enumerate(part):
            yield from paths(item, (*path, place))
    elif isinstance(part, dict):
        # The selector of a Service is a map of labels, that of other kinds has fields.
        is_free = path and (path[-1] in FREE or path[-1] == "selector" and "matchLabels" not in part)
        for key in [] if is_free else part:
            yield (*path, key)
            yield from paths(part[key], (*path, key))
