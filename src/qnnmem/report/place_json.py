"""The answer of `qnnmem place` as JSON, schema `qnnmem.place/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from qnnmem.htp.place import DOMAINS, Admission, Placement, Residency
from qnnmem.provenance import Sourced

SCHEMA = "qnnmem.place/1"
_ANSWER = {True: "fits", False: "does-not-fit", None: "cannot-tell"}


def render(plan: Residency, checked: Sequence[Admission] | None, tool: str) -> str:
    """One JSON object."""
    return json.dumps(as_values(plan, checked, tool), indent=1, ensure_ascii=True) + "\n"


def as_values(plan: Residency, checked: Sequence[Admission] | None, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    return {
        "schema": SCHEMA,
        "tool": tool,
        "answer": _ANSWER[plan.fits],
        "budget": _part(plan.budget),
        "max_domains": _part(DOMAINS),
        "contexts": [
            {
                "file": one.name,
                "need_low": _part(one.need.low),
                "need_high": _part(one.need.high),
                "spill_fill": one.spill_fill,
            }
            for one in plan.residents
        ],
        "given": _placement(plan.given),
        "best": _placement(plan.best),
        "best_is_exact": plan.is_exact,
        "spill_fill_saving": sum(plan.sharing),
        "verified": None if checked is None else [_admission(one) for one in checked],
    }


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered answer satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/place-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _placement(placement: Placement) -> dict[str, Any]:
    return {
        "order": list(placement.order),
        "domains": [
            {"contexts": list(d.members), "used": d.used, "left": d.left} for d in placement.domains
        ],
        "too_large": list(placement.too_large),
    }


def _part(part: Sourced) -> dict[str, Any]:
    return {"value": part.value, "origin": part.origin.value, "source": part.source}


def _admission(one: Admission) -> dict[str, Any]:
    return {
        "predicted": one.predicted,
        "admitted": one.admitted,
        "code": one.code,
        "estimate": one.estimate,
    }
