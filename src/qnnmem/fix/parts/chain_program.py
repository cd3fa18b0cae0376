"""Child program that runs the parts of a chain one after the other.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
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
    """An array in a payload: its name, numpy type, shape and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


class PartStep(NamedTuple):
    """A part of a chain: its file, the tensors it reads and gives, those to drop after it."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    free: tuple[str, ...] = ()


class RunChain(WireMessage, frozen=True):
    """Run parts in turn; the payload is the inputs, concatenated."""

    doing: ClassVar[str] = "the chain"
    parts: tuple[PartStep, ...]
    inputs: tuple[ArrayForm, ...]
    outputs: tuple[str, ...]


class ChainOutputs(WireMessage, frozen=True):
    """The outputs of a chain; the payload is their bytes, concatenated."""

    outputs: tuple[ArrayForm, ...]


def run(request: RunChain, payload: bytes) -> Frame[ChainOutputs]:
    """Run the parts in turn; one is open at a time, and no tensor is kept longer than needed."""
    known = arrays_of(request.inputs, payload)
    for part in request.parts:
        session = exact_session(str(part.path))  # each bit as the whole has it
        feeds = {name: known[name] for name in part.inputs}
        results = session.run(list(part.outputs), feeds)
        del session, feeds
        known.update(zip(part.outputs, results, strict=True))
        for name in part.free:
            known.pop(name, None)
    wanted = [(name, known[name]) for name in request.outputs]
    forms = tuple(ArrayForm(name, a.dtype.name, a.shape, a.nbytes) for name, a in wanted)
    return ChainOutputs(forms), b"".join(value.tobytes() for _, value in wanted)


def arrays_of(forms: Sequence[ArrayForm], payload: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in a payload by name; raise ValueError if sizes disagree."""
    import numpy

    found, start = {}, 0
    for form in forms:
        piece = payload[start : start + form.size]
        found[form.name] = numpy.frombuffer(piece, form.dtype).reshape(form.shape)
        start += form.size
    return found


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    return serve({RunChain: run})


if __name__ == "__main__":
    sys.exit(main())
