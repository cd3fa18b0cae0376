"""The answer of `qnnmem fit` as JSON, schema `qnnmem.fit/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from qnnmem.htp.fit import Check, Fit, Suggestion
from qnnmem.provenance import Sourced

SCHEMA = "qnnmem.fit/1"
_ANSWER = {True: "fits", False: "does-not-fit", None: "cannot-tell"}


def render(fits: Sequence[Fit], file: str, tool: str) -> str:
    """One JSON object."""
    return json.dumps(as_values(fits, file, tool), indent=1, ensure_ascii=True) + "\n"


def as_values(fits: Sequence[Fit], file: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    answers = {fit.fits for fit in fits}
    whole = False if False in answers else None if None in answers else True
    return {
        "schema": SCHEMA,
        "tool": tool,
        "file": file,
        "answer": _ANSWER[whole],
        "socs": [_fit(fit) for fit in fits],
    }


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered answer satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/fit-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _fit(fit: Fit) -> dict[str, Any]:
    return {
        "soc": fit.soc.name,
        "answer": _ANSWER[fit.fits],
        "why": fit.why,
        "code": fit.code,
        "operator": fit.operator,
        "same_as": fit.same_as,
        "checks": [_check(check) for check in fit.checks],
        "largest": [
            {"graph": i.graph, "name": i.name, "kind": i.kind, "bytes": i.size.value}
            for i in fit.largest
        ],
        "suggestions": [_suggestion(one) for one in fit.suggestions],
        "tried": [_suggestion(one) for one in fit.tried],
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "pool": check.pool,
        "fits": check.fits,
        "need_low": _part(check.need.low if check.need else None),
        "need_high": _part(check.need.high if check.need else None),
        "limit": _part(check.limit),
        "spare": check.spare,
    }


def _part(part: Sourced | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {"bytes": part.value, "origin": part.origin.value, "source": part.source}


def _suggestion(one: Suggestion) -> dict[str, Any]:
    return {"setting": one.setting, "verified": one.verified, "reason": one.reason}
