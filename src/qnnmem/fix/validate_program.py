"""Child program that runs a model as it was, as it is now, and in planned memory, on the same data.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input
from qnnmem.child import describe_limit, limit_memory, open_replies, read_frame, write_frame
from qnnmem.fix.prove_program import Tensors, difference, feeds, is_same, open_session, run_parts
from qnnmem.text import sentence

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_FINDINGS = 20


def validate(options: Mapping[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    """What comes out of each, output by output."""
    inputs = [Input(name, kind, tuple(shape), *of) for name, kind, shape, *of in options["inputs"]]
    before, after = open_session(blobs[0]), [open_session(blob) for blob in blobs[1:]]
    found: dict[str, dict[str, Any]] = {}
    findings: list[str] = []
    samples = 0
    with _Planned(options["binary"]) as planned:
        for feed in feeds(options, inputs):
            samples += 1
            wanted, changed = run_parts([before], feed), run_parts(after, feed)
            ran = planned.run(feed)
            for name, value in wanted.items():
                row = found.setdefault(name, _empty())
                _note(row, value, changed[name], None if ran is None else ran[name])
        findings += planned.findings()
    return {"samples": samples, "outputs": found, "findings": findings[:_MOST_FINDINGS]}


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
    """Answer one request."""
    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    frame = read_frame(sys.stdin.buffer, limit)
    if frame is None:
        return 1
    options, payload = frame
    blobs, start = [], 0
    for size in options["sizes"]:
        blobs.append(payload[start : start + size])
        start += size
    try:
        header = validate(options, blobs)
    except MemoryError:
        header = {"error": f"{describe_limit(limit)} are used up"}
    except Exception as exc:  # the parent reports it
        header = {"error": sentence(exc)}
    write_frame(replies, header)
    return 0


if __name__ == "__main__":
    sys.exit(main())
