"""Validates rule files by the JSON Schema of `tollgate schema`, with PyYAML and jsonschema.

Reads a JSON map from its input, with the `schema` and a list of `texts`, and writes a JSON list: for each text its first fault,
or null.
"""

import json
import re
import sys

import jsonschema
import yaml


class Loader(yaml.SafeLoader):
    """YAML 1.1 as envoyproxy/ratelimit reads it: `y` and `n` are booleans, and no text is a date."""


Loader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith((":timestamp", ":bool"))]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
BOOL = re.compile(r"^(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$")
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", BOOL, list("yYnNtTfFoO"))


def wrong_key(value):
    """A key that is no text. JSON has none, and metadata may have any."""
    if isinstance(value, list):
        return next((found for found in map(wrong_key, value) if found), None)
    if not isinstance(value, dict):
        return None
    for key, below in value.items():
        if not isinstance(key, str):
            return f"the key {key}"
        if key != "metadata" and (found := wrong_key(below)):
            return found
    return None


def first_fault(validator, documents):
    for document in documents:
        error = jsonschema.exceptions.best_match(validator.iter_errors(document))
        if error is not None:
            return f"{error.json_path}: {error.message}"
    return None


def judge(validator, text):
    """The fault of a text."""
    try:
        documents = [document for document in yaml.load_all(text, Loader=Loader) if document is not None]
    except (yaml.YAMLError, ValueError) as error:
        return f"YAML: {error}"
    if not documents:
        return "nothing"
    if found := next(filter(None, map(wrong_key, documents)), None):
        return found
    return first_fault(validator, documents)


def main():
    asked = json.load(sys.stdin)
    jsonschema.Draft7Validator.check_schema(asked["schema"])
    validator = jsonschema.Draft7Validator(asked["schema"])
    json.dump([judge(validator, text) for text in asked["texts"]], sys.stdout)


main()
