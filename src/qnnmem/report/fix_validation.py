"""What running a fixed model showed, as lines of text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from qnnmem.fix.proof.validate import OutputCheck, Validation
from qnnmem.text import counted, shorten

_NAME = 40
_MOST = 20  # outputs in a text


def lines(found: Validation) -> Iterator[str]:
    """A verdict, and a line for every output."""
    samples = counted(found.samples, "sample")
    verdict = "holds" if found.holds else "DOES NOT HOLD"
    yield f"validated on {samples}: {verdict}"
    heads = f"{'to the model as it was':<24}{'planned memory':<16}NaN, infinite"
    yield f"  {'output':<{_NAME}}{heads}"
    for one in found.outputs[:_MOST]:
        yield f"  {shorten(one.name, _NAME - 2):<{_NAME}}{_row(one, found)}"
    if len(found.outputs) > _MOST:
        yield f"  and {counted(len(found.outputs) - _MOST, 'other output')}"
    if found.unplanned:
        yield f"  not executed in planned memory: {shorten(found.unplanned, 200)}"
    for finding in found.findings:
        yield f"  rule broken in planned memory: {shorten(finding, 200)}"


def _row(one: OutputCheck, found: Validation) -> str:
    was = "the same" if one.identical else f"{one.largest:.2g} off, {one.relative:.2g} of it"
    ran = "-" if found.unplanned else "the same" if not one.planned else f"{one.planned:.2g} off"
    odd = f"{one.nans:,}, {one.infinities:,}" if one.nans or one.infinities else "none"
    return f"{was:<24}{ran:<16}{odd}"


def as_json(found: Validation | None) -> dict[str, Any] | None:
    """The same for programs."""
    if found is None:
        return None
    return {
        "holds": found.holds,
        "samples": found.samples,
        "planned": not found.unplanned,
        "why_not_planned": found.unplanned,
        "findings": list(found.findings),
        "outputs": [
            {
                "output": one.name,
                "identical": one.identical,
                "largest_difference": _finite(one.largest),
                "relative_difference": _finite(one.relative),
                "planned_difference": _finite(one.planned),
                "nans": one.nans,
                "infinities": one.infinities,
                "new_infinities": one.new,
            }
            for one in found.outputs
        ],
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
