"""Child program that runs a model and changed ones on the same data and compares the results.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input, random_sample, read_sample
from qnnmem.child import Frame, serve
from qnnmem.quiet_onnxruntime import exact_session

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = dict[str, "NDArray[Any]"]

_KEPT: list[tuple[Tensors, Tensors]] = []  # inputs and outputs of the model as it was


def keep(options: Mapping[str, Any], payload: bytes) -> Frame:
    """Run the model as it was and keep what it is given and gives."""
    inputs = [Input(name, kind, tuple(shape), *of) for name, kind, shape, *of in options["inputs"]]
    _KEPT.clear()
    sessions = _sessions(options["sizes"], payload)
    for feed in _feeds(options, inputs):
        _KEPT.append((feed, _run(sessions, feed)))
    return {}, b""


def _feeds(options: Mapping[str, Any], inputs: list[Input]) -> Iterator[Tensors]:
    for sample in options["samples"]:
        yield read_sample(tuple((name, path) for name, path in sample), inputs)
    if not options["samples"]:
        for number in range(options["count"]):
            yield random_sample(inputs, options["seed"], number)


def compare(options: Mapping[str, Any], payload: bytes) -> Frame:
    """Run a changed model on the same data."""
    sessions = _sessions(options["sizes"], payload)
    differing: dict[str, None] = {}
    largest = relative = 0.0
    for feed, wanted in _KEPT:
        found = _run(sessions, feed)
        for name, value in wanted.items():
            if name not in found:
                raise ValueError(f"the changed model has no output {name!r}")
            if not _is_same(value, found[name]):
                differing[name] = None
                gap, part = _difference(value, found[name])
                largest, relative = max(largest, gap), max(relative, part)
    header = {
        "samples": len(_KEPT),
        "outputs": len(_KEPT[0][1]) if _KEPT else 0,
        "differing": list(differing),
        "largest": largest,
        "relative": relative,
    }
    return header, b""


def _run(sessions: list[Any], feed: Tensors) -> Tensors:
    """Outputs of all parts by name; each part reads inputs and what parts before it gave."""
    known: Tensors = dict(feed)
    given: Tensors = {}
    for session in sessions:
        names = [item.name for item in session.get_outputs()]
        wanted = {item.name: known[item.name] for item in session.get_inputs()}
        results = dict(zip(names, session.run(names, wanted), strict=True))
        known.update(results)
        given.update(results)
    return given


def _is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()


def _difference(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """Largest difference, and the same as part of the largest value."""
    import numpy

    endless = float("inf")
    if one.shape != other.shape or one.dtype.kind not in "fiub":
        return endless, endless
    exact, rough = one.astype(numpy.float64), other.astype(numpy.float64)
    odd = ~(numpy.isfinite(exact) & numpy.isfinite(rough))
    same = (exact == rough) | (numpy.isnan(exact) & numpy.isnan(rough))
    if (odd & ~same).any():
        return endless, endless
    gap = float(abs(exact - rough)[~odd].max(initial=0.0))
    top = float(abs(exact)[~odd].max(initial=0.0))
    return gap, gap / top if top else (endless if gap else 0.0)


def _sessions(sizes: list[int], payload: bytes) -> list[Any]:
    """Sessions on the models that stand one after the other in the payload."""
    ends = accumulate(sizes)
    return [exact_session(payload[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    return serve({"keep": keep, "compare": compare})


if __name__ == "__main__":
    sys.exit(main())
