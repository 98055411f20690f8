"""A second reader of rule files, which shares no code with tollgate: PyYAML and the rules of the format.

Reads a JSON list of texts from its input and writes a JSON list with the rules of each: the number of domains, and for each
rule its path, whether it is unlimited, and its limits as pairs of a number and seconds. It trusts the texts to be valid
rules; an exception becomes the text of an error. Texts that PyYAML does not read at all are "refused".
"""

import base64
import json
import re
import sys

import yaml

SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86400,
    "week": 604800,
    "month": 30 * 86400,
    "year": 365 * 86400,
}
WORDS = {
    "second": ("s", "sec", "secs"),
    "minute": ("m", "min", "mins"),
    "hour": ("h", "hr", "hrs"),
    "day": ("d",),
    "week": ("w", "wk", "wks"),
    "month": ("mo",),
    "year": ("y", "yr", "yrs"),
}
SHORT = {word: unit for unit, words in WORDS.items() for word in (*words, unit, unit + "s")}
LIMIT = re.compile(r"^\s*\+?(\d+)(?:\.(\d+))?([kMG]?)\s*(?:/| per )\s*(\d*)\s*([a-zA-Z]+)\s*$")
ZEROS = {"": 0, "k": 3, "M": 6, "G": 9}
TRUE = {"y", "yes", "true", "on"}


def text_of(node):
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"no text at {node.start_mark}")
    if node.tag == "tag:yaml.org,2002:binary":
        return base64.b64decode(node.value).decode()
    return node.value


def is_null(node):
    is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return is_plain and node.value in ("", "~", "null", "Null", "NULL")


def fields(node):
    """The entries of a map: the last of a repeated key; before merged ones, of which the first counts."""
    if is_null(node):
        return {}
    own, merged = {}, {}
    for key, value in node.value:
        if text_of(key) == "<<":
            maps = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for other in maps:
                for name, inherited in fields(other).items():
                    merged.setdefault(name, inherited)
        else:
            own[text_of(key)] = value
    found = {**merged, **own}
    return {name: value for name, value in found.items() if not is_null(value)}


def number(node):
    text = text_of(node).replace("_", "").lower()
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    for prefix, radix in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], radix)
    is_octal = len(digits) > 1 and digits.startswith("0")
    return sign * int(digits, 8 if is_octal else 10)


def is_true(node):
    return node is not None and node.style is None and node.value.lower() in TRUE


def limit(node):
    """A pair of a number and seconds; None if everything passes."""
    if isinstance(node, yaml.ScalarNode) and not is_null(node):
        whole, part, suffix, count, unit = LIMIT.match(node.value).groups()
        requests = int(whole + (part or "").ljust(ZEROS[suffix], "0"))
        return [requests, int(count or 1) * SECONDS[SHORT[unit.lower()]]]
    keys = fields(node)
    if is_true(keys.get("unlimited")):
        return None
    requests = number(keys["requests_per_unit"]) if "requests_per_unit" in keys else 0
    if "ttl" in keys:
        count, unit = re.match(r"(\d+)\s*([a-zA-Z]+)$", text_of(keys["ttl"])).groups()
        return [requests, int(count) * SECONDS[SHORT[unit.lower()]]]
    count = number(keys["unit_multiplier"]) if "unit_multiplier" in keys else 1
    return [requests, count * SECONDS[text_of(keys["unit"]).lower()]]


def walk(node, above, rules):
    keys = fields(node)
    key, value = text_of(keys["key"]), text_of(keys["value"]) if "value" in keys else ""
    path = f"{above}.{key}_{value}" if value else f"{above}.{key}"
    limits = None
    if "rate_limits" in keys:
        limits = [limit(item) for item in keys["rate_limits"].value]
    elif "rate_limit" in keys:
        limits = [limit(keys["rate_limit"])]
    if limits is not None:
        is_unlimited = limits == [None]
        rules.append({"path": path, "unlimited": is_unlimited, "limits": [] if is_unlimited else limits})
    for child in below(keys):
        walk(child, path, rules)


def below(keys):
    return keys["descriptors"].value if "descriptors" in keys else []


def read(text):
    domains, rules = set(), []
    for document in yaml.compose_all(text.encode(), Loader=yaml.BaseLoader):
        if is_null(document):
            continue
        keys = fields(document)
        domain = text_of(keys["domain"])
        domains.add(domain)
        for node in below(keys):
            walk(node, domain, rules)
    return {"domains": len(domains), "rules": rules}


def answer(text):
    try:
        return read(text)
    except yaml.scanner.ScannerError as error:
        # PyYAML knows no tabs between tokens, which YAML allows.
        at = error.problem_mark.index
        if text[at : at + 1] == "\t":
            return answer(text[:at] + " " + text[at + 1 :])
        return {"refused": str(error)}
    except yaml.YAMLError as error:
        return {"refused": str(error)}
    except Exception as error:  # pylint: disable=broad-except
        return {"error": f"{type(error).__name__}: {error}"}


json.dump([answer(text) for text in json.load(sys.stdin)], sys.stdout)
