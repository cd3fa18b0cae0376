"""Child program that runs a model and changed ones on the same data and compares the results.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input, random_sample, read_sample
from qnnmem.child import describe_limit, limit_memory, open_replies, read_frame, write_frame
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.text import sentence

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = dict[str, "NDArray[Any]"]

_KEPT: list[tuple[Tensors, Tensors]] = []  # inputs and outputs of the model as it was


def keep(options: Mapping[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    """Run the model as it was and keep what it is given and gives."""
    inputs = [Input(name, kind, tuple(shape), *of) for name, kind, shape, *of in options["inputs"]]
    _KEPT.clear()
    sessions = [open_session(blob) for blob in blobs]
    for feed in feeds(options, inputs):
        _KEPT.append((feed, run_parts(sessions, feed)))
    return {}


def feeds(options: Mapping[str, Any], inputs: list[Input]) -> Iterator[Tensors]:
    """Samples of the user, or made-up ones."""
    for sample in options["samples"]:
        yield read_sample(tuple((name, path) for name, path in sample), inputs)
    if not options["samples"]:
        for number in range(options["count"]):
            yield random_sample(inputs, options["seed"], number)


def compare(_options: Mapping[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    """Run a changed model on the same data."""
    sessions = [open_session(blob) for blob in blobs]
    differing: dict[str, None] = {}
    largest = relative = 0.0
    for feed, wanted in _KEPT:
        found = run_parts(sessions, feed)
        for name, value in wanted.items():
            if name not in found:
                raise ValueError(f"the changed model has no output {name!r}")
            if not is_same(value, found[name]):
                differing[name] = None
                gap, part = difference(value, found[name])
                largest, relative = max(largest, gap), max(relative, part)
    return {
        "samples": len(_KEPT),
        "outputs": len(_KEPT[0][1]) if _KEPT else 0,
        "differing": list(differing),
        "largest": largest,
        "relative": relative,
    }


def run_parts(sessions: list[Any], feed: Tensors) -> Tensors:
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


def is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether every bit is the same."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()


def difference(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
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


def open_session(blob: bytes) -> Any:
    """A session in which nothing is optimised, on one thread."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # One thread: how work is shared out must not decide the last bit.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    verbs = {"keep": keep, "compare": compare}
    while (frame := read_frame(sys.stdin.buffer, limit)) is not None:
        options, payload = frame
        blobs, start = [], 0
        for size in options["sizes"]:
            blobs.append(payload[start : start + size])
            start += size
        try:
            header = verbs[options["verb"]](options, blobs)
        except MemoryError:
            header = {"error": f"{describe_limit(limit)} are used up"}
        except Exception as exc:  # the parent reports it
            header = {"error": sentence(exc)}
        write_frame(replies, header)
    return 0


if __name__ == "__main__":
    sys.exit(main())
