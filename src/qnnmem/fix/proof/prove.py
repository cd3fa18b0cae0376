"""Proves that a changed model computes the same: both are run, every output is compared bit by bit.

onnxruntime runs them without optimisation on one thread, in a child process with limits. Models
must hold their own data; a model cut into parts is run part by part, tensors handed on by name.

A change that may lose is measured: how far each output is off, and how loud that is. It may take
and give integers, smaller batches or other sizes; outputs of other shapes cannot be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qnnmem.calibration import Input, Sample, absolute
from qnnmem.child import ChildProcess
from qnnmem.errors import ChildFailed
from qnnmem.fix.proof.program import (
    Compare,
    Compared,
    CompareLevels,
    Keep,
    LevelGaps,
    ProofData,
)
from qnnmem.fix.proof.program import LevelGap as LevelGap
from qnnmem.fix.proof.program import OutputGap as OutputGap
from qnnmem.fix.proof.program import Proof as Proof
from qnnmem.wire import Done

if TYPE_CHECKING:
    import onnx

_LARGEST_MODEL = (2 << 30) - 1  # protobuf's own limit


class Prover(ChildProcess):
    """Keeps what a model computes, and compares any number of changed ones with it."""

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        samples: Sequence[Sample] = (),
        seed: int = 0,
        time_limit_s: float = 600.0,
    ) -> None:
        super().__init__("qnnmem.fix.proof.program", time_limit_s)
        self._data = ProofData(inputs_of(model), absolute(samples), seed)
        self._model: onnx.ModelProto | None = model

    def compare(self, *parts: onnx.ModelProto, lossy: bool = False) -> Proof:
        """Run the parts of a changed model one after the other, and compare all outputs.

        Only a change that may lose may take and give other types and sizes.
        """
        blobs = self._ready(parts)
        return self.ask(Compare(_sizes(blobs), lossy), Compared, b"".join(blobs))[0].proof

    def levels(self, *parts: onnx.ModelProto) -> tuple[LevelGap, ...]:
        """Compare at every optimisation level, both models at the same."""
        blobs = self._ready(parts)
        return self.ask(CompareLevels(_sizes(blobs)), LevelGaps, b"".join(blobs))[0].levels

    def _ready(self, parts: Sequence[onnx.ModelProto]) -> list[bytes]:
        """The parts as bytes, after the child has run the model as it was."""
        if self._model is not None:
            (blob,) = serialized([self._model])
            self.ask(Keep([len(blob)], self._data), Done, blob)
            self._model = None
        return serialized(parts)


def serialized(models: Sequence[onnx.ModelProto]) -> list[bytes]:
    """Models as bytes; ChildFailed if together they are more than protobuf can hold."""
    if sum(model.ByteSize() for model in models) > _LARGEST_MODEL:
        raise ChildFailed("a model of more than 2 GiB cannot be run for comparison")
    return [model.SerializeToString() for model in models]


def _sizes(blobs: Sequence[bytes]) -> list[int]:
    return [*map(len, blobs)]


def prove(
    before: onnx.ModelProto,
    *after: onnx.ModelProto,
    samples: Sequence[Sample] = (),
    seed: int = 0,
    time_limit_s: float = 600.0,
    lossy: bool = False,
) -> Proof:
    """Compare a model with a changed one, or with the parts that it was cut into."""
    with Prover(before, samples=samples, seed=seed, time_limit_s=time_limit_s) as prover:
        return prover.compare(*after, lossy=lossy)


def inputs_of(model: onnx.ModelProto) -> list[Input]:
    """Inputs of a model whose shapes are fixed, as made-up data needs them."""
    from onnx import helper

    from qnnmem.loader.onnx.index_limits import index_limits

    rows = index_limits(model.graph)
    found = []
    for item in model.graph.input:
        kind = item.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = tuple(size.dim_value for size in kind.shape.dim)
        found.append(Input(item.name, dtype.name, shape, below=rows.get(item.name)))
    return found
