"""Runs the parts of a chain after each other, and proves that they compute what the whole does.

onnxruntime runs them on the CPU in a limited child, one part at a time: a part is opened, run and
closed before the next, and a tensor is dropped after the last part that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Sample
from qnnmem.child import REPLY_LIMIT, ChildProcess
from qnnmem.errors import ChildFailed, UsageError
from qnnmem.fix.parts.chain_program import (
    ArrayForm,
    ChainOutputs,
    CheckPart,
    PartStep,
    RunChain,
    arrays_of,
)
from qnnmem.fix.parts.manifest import part_models, read_chain
from qnnmem.fix.parts.op_sequence import OpSequence
from qnnmem.fix.parts.partition import Partition
from qnnmem.fix.proof.prove import Proof, prove
from qnnmem.text import quote
from qnnmem.wire import Done

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

TIME_LIMIT_S = 600.0
_PLAIN = "biufc"  # kinds of numpy's own element types


class ChainChild(ChildProcess):
    """A limited process that checks parts and runs chains."""

    def __init__(self, time_limit_s: float) -> None:
        super().__init__("qnnmem.fix.parts.chain_program", time_limit_s)

    def run(self, request: RunChain, payload: bytes, values: int) -> dict[str, NDArray[Any]]:
        """Outputs of a chain by name, of at most so many bytes; ChildFailed if it cannot run."""
        reply, data = self.ask(request, ChainOutputs, payload, values + REPLY_LIMIT)
        try:
            arrays = arrays_of(reply.outputs, data)
        except (TypeError, ValueError) as exc:
            raise ChildFailed("the chain gave arrays that do not hold together") from exc
        return {name: array.copy() for name, array in arrays.items()}


def check_parts(models: Sequence[bytes], time_limit_s: float = TIME_LIMIT_S) -> None:
    """Have ONNX's own checker look at every part; ChildFailed says which is not valid and why."""
    with ChainChild(time_limit_s) as child:
        for number, blob in enumerate(models, start=1):
            child.ask(CheckPart(number), Done, blob)


def run_chain(
    folder: Path,
    inputs: Mapping[str, NDArray[Any]],
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> dict[str, NDArray[Any]]:
    """The outputs of the chain in a folder, by name; ChildFailed if it cannot be run."""
    chain = read_chain(folder)
    tensors = {tensor.name: tensor for tensor in chain.tensors}
    wanted = {name: (tensors[name].type, tensors[name].shape) for name in chain.inputs}
    forms, payload = packed(wanted, inputs)
    parts = tuple(
        PartStep((folder / part.file).absolute(), part.inputs, part.outputs, part.free_after)
        for part in chain.parts
    )
    expected = sum(tensor.bytes for tensor in chain.tensors if tensor.name in chain.outputs)
    with ChainChild(time_limit_s) as child:
        return child.run(RunChain(parts, forms, chain.outputs), payload, expected)


def packed(
    wanted: Mapping[str, tuple[str, tuple[int, ...]]], inputs: Mapping[str, NDArray[Any]]
) -> tuple[tuple[ArrayForm, ...], bytes]:
    """Inputs and their bytes; UsageError unless they fit."""
    import numpy

    forms, blobs = [], []
    for name, (kind, shape) in wanted.items():
        if name not in inputs:
            raise UsageError(f"the chain needs the input {quote(name)}")
        value = numpy.ascontiguousarray(inputs[name])
        if value.dtype.kind not in _PLAIN or value.dtype.name != kind:
            raise UsageError(f"input {quote(name)} is of {kind}, not of {value.dtype.name}")
        if tuple(numpy.shape(inputs[name])) != shape:
            raise UsageError(
                f"input {quote(name)} has shape {shape}, not {numpy.shape(inputs[name])}"
            )
        forms.append(ArrayForm(name, value.dtype.name, shape, value.nbytes))
        blobs.append(value.tobytes())
    return tuple(forms), b"".join(blobs)


def prove_partition(
    found: Partition,
    *,
    samples: Sequence[Sample] = (),
    seed: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
) -> Proof:
    """Compare every output of the model in its file with that of its parts, bit by bit."""
    import onnx

    parts = (onnx.ModelProto.FromString(blob) for blob in part_models(found))
    whole = whole_model(found.sequence)
    return prove(whole, *parts, samples=samples, seed=seed, time_limit_s=time_limit_s)


def whole_model(sequence: OpSequence) -> onnx.ModelProto:
    """The model of the file itself, with the shapes of its inputs fixed and its data inside.

    Where inputs were given values it is the model in which they are constants.
    """
    from qnnmem.loader.onnx import read_guarded
    from qnnmem.loader.onnx.tensor import embed, tensors

    fixed = {item.name: item for item in sequence.proto.graph.input}
    whole = read_guarded(sequence.path).proto
    stored = {tensor.name for tensor in whole.graph.initializer}
    wanted = [item.name for item in whole.graph.input if item.name not in stored]
    if set(wanted) != set(fixed):
        whole.CopyFrom(sequence.proto)
    else:
        del whole.graph.input[:]
        whole.graph.input.extend(fixed[name] for name in wanted)
        # Before that version initializers have to be among the inputs.
        whole.ir_version = max(whole.ir_version, sequence.proto.ir_version)
    for tensor in tensors(whole):
        embed(sequence.path, tensor)
    return whole
