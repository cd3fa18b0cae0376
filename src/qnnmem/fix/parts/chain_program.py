"""Child program that runs the parts of a chain in sequence.

Models are untrusted: a crash, a hang or an out-of-memory error ends only this limited process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from qnnmem.child import serve
from qnnmem.quiet_onnxruntime import exact_session
from qnnmem.wire import Frame, WireMessage

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ArrayForm(NamedTuple):
    """Array in a payload: name, numpy type, shape and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


class PartStep(NamedTuple):
    """Part of a chain: its file, its inputs and outputs, and tensors to drop afterwards."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    free: tuple[str, ...] = ()


class RunChain(WireMessage, frozen=True):
    """Request to run parts in sequence; the payload is the concatenated inputs."""

    doing: ClassVar[str] = "the chain"
    parts: tuple[PartStep, ...]
    inputs: tuple[ArrayForm, ...]
    outputs: tuple[str, ...]


class ChainOutputs(WireMessage, frozen=True):
    """Outputs of a chain; the payload is their concatenated bytes."""

    outputs: tuple[ArrayForm, ...]


def run(request: RunChain, payload: bytes) -> Frame[ChainOutputs]:
    """Run the parts in sequence; only one part is open, and unneeded tensors are dropped."""
    known = arrays_of(request.inputs, payload)
    for part in request.parts:
        session = exact_session(str(part.path))  # gives the whole model's results
        feeds = {name: known[name] for name in part.inputs}
        results = session.run(list(part.outputs), feeds)
        del session, feeds
        known.update(zip(part.outputs, results, strict=True))
        for name in part.free:
            known.pop(name, None)
    outputs = [(name, known[name]) for name in request.outputs]
    forms = tuple(ArrayForm(name, a.dtype.name, a.shape, a.nbytes) for name, a in outputs)
    return ChainOutputs(forms), b"".join(array.tobytes() for _, array in outputs)


def arrays_of(forms: Sequence[ArrayForm], payload: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in a payload by name; raise ValueError if sizes disagree."""
    import numpy

    arrays, start = {}, 0
    for form in forms:
        content = payload[start : start + form.size]
        arrays[form.name] = numpy.frombuffer(content, form.dtype).reshape(form.shape)
        start += form.size
    return arrays


def main() -> int:
    """Serve requests until the parent closes the pipe."""
    return serve({RunChain: run})


if __name__ == "__main__":
    sys.exit(main())
