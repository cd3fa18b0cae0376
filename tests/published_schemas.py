"""Published schemas of other projects' formats, and the parts of them written down here.

The schemas are not in the repository: `make models` fetches them by package name and version.
Without them, files are checked against the parts below, and tests that need the whole schema are
skipped.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

FOLDER = Path(__file__).parents[1] / ".cache" / "models" / "schemas"

_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_MESSAGE = _TEXT | {"additionalProperties": False}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_LOCATION = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": -1},
        "message": _MESSAGE,
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "additionalProperties": False,
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "properties": {"uri": {"type": "string", "pattern": r"^[!-~]+$"}},
                    "additionalProperties": False,
                },
                "region": {
                    "type": "object",
                    "properties": {"startLine": {"type": "integer", "minimum": 1}},
                    "additionalProperties": False,
                },
            },
        },
    },
}
_STACK = {
    "type": "object",
    "required": ["frames"],
    "additionalProperties": False,
    "properties": {
        "message": _MESSAGE,
        "frames": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"location": _LOCATION, "module": {"type": "string"}},
            },
        },
    },
}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "version": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {
                                                "id": {"type": "string"},
                                                "shortDescription": _MESSAGE,
                                                "defaultConfiguration": {
                                                    "properties": {"level": _LEVEL}
                                                },
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["executionSuccessful"],
                            "properties": {
                                "executionSuccessful": {"type": "boolean"},
                                "exitCode": {"type": "integer"},
                            },
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": -1},
                                "level": _LEVEL,
                                "message": _MESSAGE,
                                "occurrenceCount": {"type": "integer", "minimum": 1},
                                "stacks": {"type": "array", "items": _STACK},
                                "locations": {"type": "array", "items": _LOCATION},
                                "relatedLocations": {
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": _LOCATION,
                                },
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string"},
                                },
                                "properties": {"type": "object"},
                            },
                        },
                    },
                },
            },
        },
    },
}

# Required and optional attributes, and allowed child elements.
_JUNIT: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        {"testcase", "properties", "system-out", "system-err"},
    ),
    "testcase": ({"name"}, {"classname", "time"}, {"failure", "error", "skipped"}),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
}
_TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")


def need(name: str) -> None:
    """Skip the test with a message if a published schema is missing."""
    if not (FOLDER / name).is_file():
        pytest.skip(f"no published schema {name} was fetched; run make models")


def against_sarif(log: dict[str, Any]) -> None:
    """Validate against the published schema, if it is present."""
    path = FOLDER / "sarif-2.1.0.json"
    if path.is_file():
        jsonschema.validate(log, json.loads(path.read_text("utf-8")))


def against_junit(text: str) -> None:
    """Validate against the published schema, if it is present; raise ValueError with the fault."""
    path = FOLDER / "junit-4.xsd"
    if path.is_file():
        from lxml import etree

        schema = etree.XMLSchema(etree.parse(path))
        if not schema.validate(etree.fromstring(text.encode())):
            raise ValueError(str(schema.error_log))


def check_sarif(text: str) -> dict[str, Any]:
    """Return the log after checking the standard's required fields and the named rules."""
    log: dict[str, Any] = json.loads(text)
    jsonschema.validate(log, SARIF)
    against_sarif(log)
    for run in log["runs"]:
        rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
        assert all(rules[one["ruleIndex"]] == one["ruleId"] for one in run["results"])
    return log


def check_junit(text: str) -> ElementTree.Element:
    """Return the root after checking that build servers know every element and attribute."""
    root = ElementTree.fromstring(text)  # noqa: S314 - trusted text
    assert root.tag in ("testsuites", "testsuite")
    for element in root.iter():
        needed, allowed, inside = _JUNIT[element.tag]
        assert needed <= element.attrib.keys() <= needed | allowed, element.tag
        assert {one.tag for one in element} <= inside, element.tag
        assert _TIME.fullmatch(element.get("time", ""))
    against_junit(text)
    for suite in [root, *root.iter("testsuite")]:
        cases = list(suite.iter("testcase"))
        counts = {"tests": len(cases)}
        counts |= {f"{tag}s": len(list(suite.iter(tag))) for tag in ("failure", "error")}
        assert {name: int(suite.attrib[name]) for name in counts} == counts
    return root
