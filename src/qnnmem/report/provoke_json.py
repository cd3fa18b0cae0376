"""The record of a provoked failure as JSON, schema `qnnmem.provoked/1`."""

from __future__ import annotations

import json
from typing import Any

from qnnmem.htp.provoke import Provoked

SCHEMA = "qnnmem.provoked/1"


def render(provoked: Provoked, stem: str, tool: str) -> str:
    """One JSON object; `stem` names the files beside it."""
    return json.dumps(as_values(provoked, stem, tool), indent=1, ensure_ascii=True) + "\n"


def as_values(provoked: Provoked, stem: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    cause = provoked.log.cause
    kind, soc = provoked.kind.value, provoked.soc.name
    return {
        "schema": SCHEMA,
        "tool": tool,
        "kind": kind,
        "soc": soc,
        "soc_model": provoked.soc.model_id,
        "library": provoked.library,
        "library_version": provoked.log.library_version,
        "command": f"qnnmem provoke {kind} --soc {soc} -o .",
        "as_expected": provoked.as_expected,
        "stage": provoked.stage,
        "code": provoked.code,
        "sentence": provoked.sentence,
        "cause": None if cause is None else cause.cause.value,
        "need": None if cause is None else cause.need,
        "limit": None if cause is None else cause.limit,
        "lines": list(provoked.lines),
        "log_file": log_name(stem),
        "input_file": input_name(provoked, stem),
        "attempts": [
            {"what": one.what, "outcome": one.outcome, "code": one.code}
            for one in provoked.attempts
        ],
        "seconds": round(provoked.seconds, 3),
        "peak_rss": provoked.peak_rss,
    }


def record_name(stem: str) -> str:
    """File name of the record."""
    return f"{stem}.json"


def log_name(stem: str) -> str:
    """File name of the whole log."""
    return f"{stem}.log"


def input_name(provoked: Provoked, stem: str) -> str:
    """File name of the input that the library failed on."""
    return f"{stem}.{provoked.input_name.rpartition('.')[2]}"


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every record satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/provoked-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
