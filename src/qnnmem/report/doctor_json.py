"""A diagnosis as JSON, schema `qnnmem.doctor/1`; one incident on each line."""

from __future__ import annotations

import json

TYPE_CHECKING = False  # true for type checkers; importing typing is dear beside a small log
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from qnnmem.report.doctor_read import Read

SCHEMA = "qnnmem.doctor/1"


def render(
    incidents: Iterable[str], read: Read, groups: list[dict[str, Any]] | None = None
) -> Iterator[str]:
    """One JSON object, piece by piece; incidents come as JSON texts."""
    yield f'{{"schema": "{SCHEMA}", "incidents": ['
    between = "\n"
    for text in incidents:
        yield between + text
        between = ",\n"
    end = "\n]" if between != "\n" else "]"
    stats = {"lines": read.lines, "bytes": read.bytes, "seconds": read.seconds}
    rest: dict[str, Any] = {
        "stats": stats,
        "noise": {entry: seen for entry, _, seen in read.noise},
        "notes": list(read.notes),
        "files": list(read.files),
    }
    if groups is not None:
        rest["groups"] = groups
    yield f"{end}, {json.dumps(rest)[1:]}\n"


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered diagnosis satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/doctor-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
