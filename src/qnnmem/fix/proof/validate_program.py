"""Child program that runs a model as it was, as it is now, and in planned memory, on the same data.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input
from qnnmem.child import Frame, serve
from qnnmem.fix.proof.border import Tensors
from qnnmem.fix.proof.program import (
    border_of,
    difference,
    feeds,
    is_same,
    open_models,
    run_changed,
    run_parts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_FINDINGS = 20


def validate(options: Mapping[str, Any], payload: bytes) -> Frame:
    """What comes out of each, output by output."""
    inputs = [Input(name, kind, tuple(shape), *of) for name, kind, shape, *of in options["inputs"]]
    before, *after = open_models(options["sizes"], payload)
    border = border_of(after) if options["lossy"] else None
    found: dict[str, dict[str, Any]] = {}
    findings: list[str] = []
    samples = 0
    with _Planned(options["binary"]) as planned:
        for feed in feeds(options, inputs):
            samples += 1
            wanted = run_parts([before], feed)
            changed = run_changed(after, feed, wanted, border)
            ran = planned.run(feed)
            for name, value in wanted.items():
                row = found.setdefault(name, _empty())
                _note(row, value, changed[name], None if ran is None else ran[name])
        findings += planned.findings()
    header = {"samples": samples, "outputs": found, "findings": findings[:_MOST_FINDINGS]}
    return header, b""


class _Planned:
    """A binary that is executed under the contract; without a path, nothing is."""

    def __init__(self, path: str | None) -> None:
        from qnnmem.lpai.runtime.session import Session

        self._session = None if path is None else Session(path, native=True)

    def __enter__(self) -> _Planned:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._session is not None:
            self._session.close()

    def run(self, feed: Tensors) -> Tensors | None:
        """Outputs, each computed at its planned address."""
        return None if self._session is None else dict(self._session.run(feed))

    def findings(self) -> Iterator[str]:
        """Rules that were broken."""
        for one in () if self._session is None else self._session.findings:
            yield str(one)


def _empty() -> dict[str, Any]:
    zeros: dict[str, Any] = dict.fromkeys(("largest", "relative", "planned"), 0.0)
    return zeros | {"identical": True, "nans": 0, "infinities": 0, "new": 0}


def _note(
    row: dict[str, Any], was: NDArray[Any], now: NDArray[Any], ran: NDArray[Any] | None
) -> None:
    """Add one sample to what is known of an output."""
    import numpy

    if not is_same(was, now):
        gap, part = difference(was, now)
        row["identical"] = False
        row["largest"], row["relative"] = max(row["largest"], gap), max(row["relative"], part)
    if ran is not None and not is_same(now, numpy.asarray(ran)):
        row["planned"] = max(row["planned"], difference(now, numpy.asarray(ran))[0] or 5e-324)
    if now.dtype.kind == "f":
        infinite = int(numpy.isinf(now).sum())
        row["nans"] += int(numpy.isnan(now).sum())
        row["infinities"] += infinite
        row["new"] += max(0, infinite - int(numpy.isinf(was).sum()))


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    return serve({"validate": validate})


if __name__ == "__main__":
    sys.exit(main())
