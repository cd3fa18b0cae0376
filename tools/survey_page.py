"""The page about real models, from what a survey kept."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import models

from qnnmem import __version__

Row = Mapping[str, Any]
AS_IT_IS = "as it is"
WIDTHS = ("int8", "int16")
WAYS = (AS_IT_IS, *WIDTHS)

_METHOD = """\
# Real models

Written by `python tools/survey.py --page`. Models as public packages ship them \
(`tools/models.toml` names each file), met with the command line alone: nothing is told that the \
program does not ask for.

1. `qnnmem plan FILE`. Where it refuses and suggests options, these are pasted; they stand in \
the column *given*. They are the program's guess, not what the model's makers use, so the sizes \
are examples.
2. `qnnmem prepare FILE --quantize int8` and `int16` with the same options, from random data; a \
model that is quantized already is prepared as it is. The column shows the largest difference \
from the float model on these samples, which says little about accuracy on real ones. A TFLite \
model becomes a *layout*: its memory can be tried, not run; with `--float` where it has no \
integers.
3. `qnnmem net-run` with what was prepared, as the answer recommends it.
4. Every other command that an answer recommends, as it stands.
"""

# Columns narrower than a sentence: a reason is cut at a word once it is this long.
_REASON = 300


def page(rows: Iterable[tuple[models.Entry, Row]], seconds: int) -> str:
    """The whole page."""
    found = list(rows)
    parts = [_introduction(found, seconds), _table(found), _reasons(found)]
    return "\n".join(parts)


def _introduction(rows: Sequence[tuple[models.Entry, Row]], seconds: int) -> str:
    tried = [row for _, row in rows]
    planned = [row for row in tried if not row["plan"]["refusal"]]
    asked = [row for row in tried if row["given"]]
    proven = sum(row["plan"]["optimal"] for row in planned)
    commands = [command for row in tried for command in row.get("pasted", ())]
    failed = sum(command["code"] not in (0, 1) for command in commands)
    lines = [
        _METHOD,
        f"Each command was a process of its own that could take {seconds} s. Measured with "
        f"qnnmem {__version__}, Python {platform.python_version()}, {platform.machine()}.",
        "",
        f"- {len(tried)} models from {len({e.package for e, _ in rows})} packages, "
        f"{sum(e.suffix == '.onnx' for e, _ in rows)} ONNX and "
        f"{sum(e.suffix == '.tflite' for e, _ in rows)} TFLite.",
        f"- {len(planned)} planned, {proven} of these minimal for their order; "
        f"{len(asked)} needed options, {sum(r in planned for r in asked)} of these were planned "
        "with the suggestion pasted.",
        *(f"- {_prepared(tried, width)}" for width in WAYS),
        f"- {len(commands)} other commands recommended and pasted, {failed} failed.",
    ]
    return "\n".join([*lines, ""])


def _prepared(rows: Sequence[Row], width: str) -> str:
    tried = [row[width] for row in rows if width in row]
    made = [one for one in tried if not one["refusal"]]
    layouts = sum(one["layout"] for one in made)
    ran = sum("run" in one and not one["run"]["refusal"] for one in made)
    what = f"{layouts} of these as a layout, {ran} run" if layouts else f"{ran} of these run"
    return f"{width}: {len(tried)} tried, {len(made)} prepared, {what}."


def _table(rows: Sequence[tuple[models.Entry, Row]]) -> str:
    head = [
        "## Models",
        "",
        "Scratch and persistent memory in bytes, for the types as they are in the file; `≥` stands "
        "before the proven lower bound where the plan is not minimal for its order. "
        "*For a placeholder*: the file stores sizes that stand in for open ones, "
        "which the answer says first.",
        "",
        "| model | package | format | file bytes | given | scratch | persistent "
        "| as it is | int8 | int16 |",
        "|---|---|---|--:|---|--:|--:|---|---|---|",
    ]
    return "\n".join([*head, *(_line(entry, row) for entry, row in rows), ""])


def _line(entry: models.Entry, row: Row) -> str:
    given = f"`{row['given']}`".replace("|", "\\|") if row["given"] else ""
    cells = [
        entry.id,
        f"{entry.package} {entry.version}",
        entry.suffix.removeprefix("."),
        f"{entry.bytes:,}",
        given,
        *_memory(row["plan"]),
        *(_cell(row.get(way)) for way in WAYS),
    ]
    return f"| {' | '.join(cells)} |"


def _memory(plan: Mapping[str, Any]) -> tuple[str, str]:
    if plan["refusal"]:
        return "refused", ""
    scratch = f"{plan['scratch_bytes']:,}"
    if not plan["optimal"]:
        scratch += f" ≥ {plan['lower_bound_bytes']:,}"
    if plan.get("placeholder"):
        scratch += " for a placeholder"
    return scratch, f"{plan['persistent_bytes']:,}"


def _cell(made: Mapping[str, Any] | None) -> str:
    """What became of one way to prepare, in a few words."""
    if made is None:
        return ""
    if made["refusal"]:
        return "not done" if made["refusal"].startswith("not done") else "refused"
    words = ["layout"] if made["layout"] else []
    words += ["float"] if made["float"] else []
    words += [_percent(made["error_percent"])] if made["error_percent"] is not None else []
    if "run" in made:
        words.append("not run" if made["run"]["refusal"] else "runs")
    return ", ".join(words)


def _percent(value: float) -> str:
    """Two digits after the point where they say something."""
    return f"{value:.2f} %" if value < 100 else f"{value:,.0f} %"


def _reasons(rows: Sequence[tuple[models.Entry, Row]]) -> str:
    head = ["## What is refused, and why", "", "In the program's own words, shortened.", ""]
    lines = [
        f"- **{entry.id}**, {what}: {text}" for entry, row in rows for what, text in _refusals(row)
    ]
    return "\n".join([*head, *lines, ""])


def _refusals(row: Row) -> Iterator[tuple[str, str]]:
    """Each refusal once, with the steps that it ended."""
    steps = [("plan", row["plan"]["refusal"])]
    for way in WAYS:
        made = row.get(way, {"refusal": ""})
        steps.append((f"prepare {way}", made["refusal"]))
        steps.append((f"run {way}", made.get("run", {}).get("refusal", "")))
    for command in row.get("pasted", ()):
        # Exit code 1 is an answer: it does not fit.
        steps.append((f"`{command['words']}`", command["refusal"] if command["code"] != 1 else ""))
    texts: dict[str, list[str]] = {}
    for step, refusal in steps:
        if refusal:
            texts.setdefault(_short(refusal), []).append(step)
    yield from ((" and ".join(ended), text) for text, ended in texts.items())


def _short(text: str) -> str:
    """A sentence on one line, without the file's name before it, cut at a word."""
    plain = " ".join(text.split())
    plain = re.sub(r"^\S+\.(?:onnx|tflite|bin|ort): ", "", plain)
    if len(plain) > _REASON:
        plain = plain[:_REASON].rpartition(" ")[0] + " …"
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
