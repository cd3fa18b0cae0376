"""Child program that checks parts of a chain and runs them one after the other.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qnnmem.child import describe_limit, limit_memory, open_replies, read_frame, write_frame
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.text import sentence

if TYPE_CHECKING:
    from numpy.typing import NDArray

Reply = tuple[dict[str, Any], bytes]


def check(options: Mapping[str, Any], payload: bytes) -> Reply:
    """Check one part with ONNX's own checker."""
    import onnx

    try:
        onnx.checker.check_model(payload)
    except onnx.checker.ValidationError as exc:
        raise ValueError(f"part {options['part']} is not valid: {sentence(exc)}") from exc
    return {}, b""


def run(options: Mapping[str, Any], payload: bytes) -> Reply:
    """Run the parts in turn; one is open at a time, and no tensor is kept longer than needed."""
    known = _inputs(options["inputs"], payload)
    for part in options["parts"]:
        session = _open(part["path"])
        feeds = {name: known[name] for name in part["inputs"]}
        results = session.run(part["outputs"], feeds)
        del session, feeds
        known.update(zip(part["outputs"], results, strict=True))
        for name in part["free"]:
            known.pop(name, None)
    wanted = [(name, known[name]) for name in options["outputs"]]
    rows = [[name, one.dtype.name, list(one.shape), one.nbytes] for name, one in wanted]
    return {"outputs": rows}, b"".join(value.tobytes() for _, value in wanted)


def _inputs(rows: list[Any], payload: bytes) -> dict[str, NDArray[Any]]:
    import numpy

    found, start = {}, 0
    for name, dtype, shape, size in rows:
        found[name] = numpy.frombuffer(payload[start : start + size], dtype).reshape(shape)
        start += size
    return found


def _open(path: str) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # One thread and no rewriting: a part must compute each bit as the whole does.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    verbs = {"check": check, "run": run}
    while (frame := read_frame(sys.stdin.buffer, limit)) is not None:
        options, payload = frame
        try:
            header, reply = verbs[options["verb"]](options, payload)
        except MemoryError:
            header, reply = {"error": f"{describe_limit(limit)} are used up"}, b""
        except Exception as exc:  # the parent reports it
            header, reply = {"error": sentence(exc)}, b""
        write_frame(replies, header, reply)
    return 0


if __name__ == "__main__":
    sys.exit(main())
