"""What became of several models: a row for each, as text and as JSON of schema `qnnmem.fixes/1`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qnnmem.report.several import (
    overall_values,
    refused_values,
    table_lines,
)
from qnnmem.results.result import TOOL
from qnnmem.results.schema import write_json
from qnnmem.results.several import RefusedFile, worst_code
from qnnmem.text import counted, shorten

SCHEMA = "qnnmem.fixes/1"
_WIDE = 400
_TITLES = ("file", "before", "after", "ratio", "remedy", "results", "answer")
_WORDS = {True: "fits", False: "does not fit", None: "-"}


@dataclass(frozen=True, slots=True)
class FixedFile:
    """What became of one model; `values` are of schema `qnnmem.fix/1`."""

    input: str
    values: Mapping[str, Any]
    exit_code: int

    @property
    def answer(self) -> bool | None:
        """Whether it fits in the end; None without a limit."""
        fits: bool | None = self.values["fits"]
        return fits

    @property
    def is_changed(self) -> bool:
        """Whether there is another model now."""
        return bool(self.values["files"])


FixRow = FixedFile | RefusedFile


def code_of_all(rows: Sequence[FixRow]) -> int:
    """The worst of all: unreadable, then too large, then unknown."""
    return worst_code([row.exit_code for row in rows])


def render_text(rows: Sequence[FixRow]) -> str:
    """The verdict on all, a row for each, and what was written."""
    done = [row for row in rows if isinstance(row, FixedFile)]
    lines = [_verdict(rows), "", *table_lines(_TITLES, [_cells(row) for row in rows])]
    ways = [row for row in done if row.values["obstacle"]]
    lines += ["", *(_obstacle(row) for row in ways)] if ways else []
    files = [file for row in done for file in row.values["files"] if file.endswith(".onnx")]
    lines += ["", *(f"Wrote {shorten(file, _WIDE)}" for file in files)] if files else []
    return "\n".join(lines) + "\n"


def _verdict(rows: Sequence[FixRow]) -> str:
    done = [row for row in rows if isinstance(row, FixedFile)]
    parts = [f"{len(rows) - len(done)} of {len(rows)} not judged"] if len(done) < len(rows) else []
    over = sum(row.answer is False for row in done)
    fits = sum(row.answer is True for row in done)
    parts += [f"does not fit: {over} of {len(done)}"] if over else []
    parts += [f"fits: {fits} of {len(done)}"] if fits else []
    changed = sum(row.is_changed for row in done)
    return ", ".join([*parts, f"{counted(changed, 'model')} changed"])


def _cells(row: FixRow) -> tuple[str, ...]:
    if isinstance(row, RefusedFile):
        return row.input, "-", "-", "-", "-", "-", "not judged"
    values = row.values
    before, after, best = values["before_bytes"], values["after_bytes"], _best(row)
    ratio = f"{after / before:.2f}" if before and after is not None else "-"
    gap = best["largest_difference"]
    results = "the same" if best["identical"] else "off" if gap is None else f"{gap:.2g} off"
    sizes = ("-" if size is None else f"{size:,}" for size in (before, after))
    name = f"{row.input} {values['soc']}" if "soc" in values else row.input
    return name, *sizes, ratio, best["remedy"], results, _WORDS[row.answer]


def _best(row: FixedFile) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row.values["tried"][row.values["best"]]
    return found


def _obstacle(row: FixedFile) -> str:
    return f"{shorten(row.input, 80)}: in the way: {shorten(row.values['obstacle'], _WIDE)}"


def render_json(rows: Sequence[FixRow]) -> str:
    """One object, with the object of each model as it would be alone."""
    done = [row for row in rows if isinstance(row, FixedFile)]
    refused = [row for row in rows if isinstance(row, RefusedFile)]
    return write_json(
        {
            "schema": SCHEMA,
            **overall_values([row.answer for row in done], refused, code_of_all(rows)),
            "results": [_signed(row) for row in done],
            "refused": refused_values(refused),
        }
    )


def _signed(row: FixedFile) -> dict[str, Any]:
    return {"schema": row.values["schema"], "tool": TOOL, **row.values}
