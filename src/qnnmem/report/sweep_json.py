"""The table of `qnnmem sweep` as JSON, schema `qnnmem.sweep/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qnnmem.htp.sweep import Largest, SweepRow

SCHEMA = "qnnmem.sweep/1"


def render(
    rows: Sequence[SweepRow],
    largest: Sequence[Largest],
    file: str,
    soc: str,
    library: str,
    tool: str,
) -> str:
    """One JSON object."""
    values = as_values(rows, largest, file, soc, library, tool)
    return json.dumps(values, indent=1, ensure_ascii=True) + "\n"


def as_values(
    rows: Sequence[SweepRow],
    largest: Sequence[Largest],
    file: str,
    soc: str,
    library: str,
    tool: str,
) -> dict[str, Any]:
    """The object behind the JSON text; numbers of rows are measured by `library`."""
    return {
        "schema": SCHEMA,
        "tool": tool,
        "file": file,
        "soc": soc,
        "library": library,
        "rows": [
            {"setting": dict(row.setting), "from_cache": row.from_cache, **asdict(row.result)}
            for row in rows
        ],
        "largest": [
            {
                "name": one.name,
                "setting": dict(one.setting),
                "value": one.value,
                "next_value": one.next_value,
                "next_reason": one.next_reason,
            }
            for one in largest
        ],
    }


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered table satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/sweep-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
