"""Results of files that came alone: what is wrong with one only because of that.

The workbench keeps every file by itself. A config file that names another is not wrong for that:
the other one is to be dropped as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CURE = "drop the other file, too: it is checked by itself"


def without_neighbours(result: dict[str, Any], exit_code: int) -> tuple[dict[str, Any], int]:
    """The result and its exit code, with errors about a file that cannot be here as notes."""
    if result.get("schema") != "qnnmem.lint/1":
        return result, exit_code
    found = [_note(one) for one in result["findings"]]
    lost = sum(one.get("check") == "missing-file" for one in found)
    if not lost:
        return result, exit_code
    errors = result["errors"] - lost
    passes = errors == 0 and not (result["strict"] and result["warnings"])
    counts = {"errors": errors, "notes": result["notes"] + lost, "passes": passes}
    return {**result, "findings": found, **counts}, 0 if passes else exit_code


def _note(finding: Mapping[str, Any]) -> dict[str, Any]:
    if finding.get("check") != "missing-file":
        return dict(finding)
    return {**finding, "severity": "note", "cure": _CURE}


def why_unreadable(result: Mapping[str, Any]) -> str:
    """Why nothing could be checked; empty where something was."""
    if result.get("schema") != "qnnmem.lint/1" or result["findings"]:
        return ""
    files = result["files"]
    reasons = [f"{one['path']}: {one['unreadable']}" for one in files if one["unreadable"]]
    return reasons[0] if reasons and len(reasons) == len(files) else ""
