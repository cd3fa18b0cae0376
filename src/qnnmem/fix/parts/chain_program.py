"""Child program that checks parts of a chain and runs them one after the other.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qnnmem.child import Frame, serve
from qnnmem.quiet_onnxruntime import exact_session
from qnnmem.text import sentence

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check(options: Mapping[str, Any], payload: bytes) -> Frame:
    """Check one part with ONNX's own checker."""
    import onnx

    try:
        onnx.checker.check_model(payload)
    except onnx.checker.ValidationError as exc:
        raise ValueError(f"part {options['part']} is not valid: {sentence(exc)}") from exc
    return {}, b""


def run(options: Mapping[str, Any], payload: bytes) -> Frame:
    """Run the parts in turn; one is open at a time, and no tensor is kept longer than needed."""
    known = _inputs(options["inputs"], payload)
    for part in options["parts"]:
        session = exact_session(part["path"])  # each bit as the whole has it
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


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    return serve({"check": check, "run": run})


if __name__ == "__main__":
    sys.exit(main())
