"""A chain of parts: its files and manifest, and running it on the CPU.

The manifest is a JSON file next to the parts (`qnnmem.chain/1`). It lists the tensors between
parts, when each can be freed, and the peak.

onnxruntime runs the parts in a limited child process. Each part is opened, run and closed before
the next part, and a tensor is dropped after its last reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from qnnmem.atomic_file import folder_for_output, write_together
from qnnmem.bounded_file import read_bytes
from qnnmem.child import REPLY_LIMIT, ChildProcess
from qnnmem.errors import ChildFailed, LoadError, UsageError
from qnnmem.fix.parts.chain_program import (
    ArrayForm,
    ChainOutputs,
    PartStep,
    RunChain,
    arrays_of,
)
from qnnmem.fix.parts.op_sequence import OpSequence, lives
from qnnmem.fix.parts.partition import Partition, plan_part
from qnnmem.planner import Io, PoolOptions
from qnnmem.results.chain import Chain, ChainPart, ChainPeak, ChainTensor
from qnnmem.results.schema import encode
from qnnmem.text import quote
from qnnmem.units import round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = "qnnmem.chain/1"
MANIFEST = "chain.json"
FIRST_PART = "part1.onnx"
_MOST = 1 << 26  # bytes of a manifest
_LARGEST = 1 << 32  # bytes of a model or a context binary
_ALIGN = 64


def write_chain(cut: Partition, folder: Path, *, force: bool = False) -> Chain:
    """Write the parts and the manifest; if one file fails, none is written."""
    models = cut.models()
    chain = describe_chain(cut, models)
    with folder_for_output(folder):
        pairs = zip(chain.files, models, strict=True)
        files = {folder / name: model for (name, _), model in pairs}
        write_together({**files, folder / MANIFEST: encode(chain).encode()}, force=force)
    return chain


def describe_chain(cut: Partition, models: Sequence[bytes]) -> Chain:
    """Return the manifest of a partition; `models` are the models of the parts in order."""
    sequence = cut.sequence
    alive = lives(sequence, cut.parts)
    parts = tuple(_part(cut, alive, index, model) for index, model in enumerate(models))
    return Chain(
        model=sequence.path.name,
        inputs=sequence.model.inputs,
        outputs=sequence.model.outputs,
        parts=parts,
        tensors=tuple(_tensor(cut, name, ends) for name, ends in alive.items()),
        crossing_bytes=cut.cuts.crossing_bytes,
        peak=_peak(cut, parts),
    )


def _part(
    cut: Partition, alive: Mapping[str, tuple[int, int]], index: int, model: bytes
) -> ChainPart:
    part = cut.parts[index]
    plan = plan_part(part, PoolOptions(io=Io.OUTSIDE))
    return ChainPart(
        file=f"part{index + 1}.onnx",
        sha256=hashlib.sha256(model).hexdigest(),
        ops=part.last - part.first,
        inputs=part.inputs,
        outputs=part.outputs,
        weights_bytes=plan.constant_bytes,
        scratch_bytes=plan.scratch_bytes,
        held_bytes=_rounded_bytes(
            cut.sequence, (name for name, (first, last) in alive.items() if first <= index <= last)
        ),
        free_after=tuple(name for name, (_, last) in alive.items() if last == index),
    )


def _rounded_bytes(sequence: OpSequence, names: Iterable[str]) -> int:
    """Return the bytes of tensors, each rounded up to the alignment."""
    return sum(round_up(sequence.model.tensors[name].nbytes, _ALIGN) for name in names)


def _tensor(cut: Partition, name: str, ends: tuple[int, int]) -> ChainTensor:
    model = cut.sequence.model
    tensor = model.tensors[name]
    readers = (n for n, part in enumerate(cut.parts, start=1) if name in part.inputs)
    role: Literal["input", "output", "boundary"] = "boundary"
    if name in model.outputs:
        role = "output"
    elif name in model.inputs:
        role = "input"
    return ChainTensor(
        name=name,
        type=tensor.dtype.value,
        shape=tensor.shape,
        bytes=tensor.nbytes,
        role=role,
        from_part=ends[0] + 1,
        to_parts=tuple(readers),
        free_after=None if name in model.outputs else ends[1] + 1,
    )


def _peak(cut: Partition, parts: tuple[ChainPart, ...]) -> ChainPeak:
    sequence = cut.sequence
    whole = plan_part(sequence.op_range(0, len(sequence)), PoolOptions(io=Io.OUTSIDE))
    io = _rounded_bytes(sequence, {*sequence.model.inputs, *sequence.model.outputs})
    weights = sum(part.weights_bytes for part in parts)
    fullest = max(part.held_bytes for part in parts)
    return ChainPeak(
        whole_bytes=whole.constant_bytes + whole.scratch_bytes + io,
        resident_bytes=weights + sum(part.scratch_bytes for part in parts) + fullest,
        shared_bytes=weights + max(part.scratch_bytes + part.held_bytes for part in parts),
        in_turn_bytes=max(p.weights_bytes + p.scratch_bytes + p.held_bytes for p in parts),
    )


def read_chain(folder: Path) -> Chain:
    """Read the chain in a folder; raise LoadError if a file differs from the manifest."""
    path = folder / MANIFEST
    try:
        chain = msgspec.json.decode(read_bytes(path, _MOST), type=Chain)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise LoadError(path, f"is not a {SCHEMA} manifest") from exc
    _check(path, chain)
    return chain


def _check(path: Path, chain: Chain) -> None:
    """Raise LoadError if the manifest is inconsistent or a file differs from it."""
    known = set(chain.inputs)
    for part in chain.parts:
        missing = next((name for name in part.inputs if name not in known), None)
        if missing is not None:
            raise LoadError(
                path, f"part {quote(part.file)} reads {quote(missing)} before a part produces it"
            )
        known.update(part.outputs)
    lost = next((name for name in chain.outputs if name not in known), None)
    if lost is not None:
        raise LoadError(path, f"no part produces the output {quote(lost)}")
    unknown = {*chain.inputs, *chain.outputs} - {tensor.name for tensor in chain.tensors}
    if unknown:
        raise LoadError(path, f"does not describe the tensor {quote(min(unknown))}")
    for name, sha256 in chain.files:
        _check_file(path, name, sha256)


def _check_file(path: Path, name: str, sha256: str) -> None:
    if Path(name).name != name:
        raise LoadError(path, f"names a part {quote(name)}, which is not a plain file name")
    content = read_bytes(path.parent / name, _LARGEST)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise LoadError(path.parent / name, "is not the file that the manifest describes")


TIME_LIMIT_S = 600.0
_PLAIN = "biufc"  # kinds of numpy's standard element types


class ChainChild(ChildProcess):
    """Limited child process that runs chains."""

    def __init__(self, time_limit_s: float) -> None:
        super().__init__("qnnmem.fix.parts.chain_program", time_limit_s)

    def run(self, request: RunChain, payload: bytes, values: int) -> dict[str, NDArray[Any]]:
        """Return all outputs by name, at most `values` bytes; raise ChildFailed on failure."""
        reply, data = self.ask(request, ChainOutputs, payload, values + REPLY_LIMIT)
        try:
            arrays = arrays_of(reply.outputs, data)
        except (TypeError, ValueError) as exc:
            raise ChildFailed("the chain returned inconsistent arrays") from exc
        return {name: array.copy() for name, array in arrays.items()}


def run_chain(
    folder: Path,
    inputs: Mapping[str, NDArray[Any]],
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> dict[str, NDArray[Any]]:
    """Return the outputs of a chain by name; raise ChildFailed if the run fails."""
    chain = read_chain(folder)
    tensors = {tensor.name: tensor for tensor in chain.tensors}
    types = {name: (tensors[name].type, tensors[name].shape) for name in chain.inputs}
    forms, payload = packed(types, inputs)
    parts = tuple(
        PartStep((folder / part.file).absolute(), part.inputs, part.outputs, part.free_after)
        for part in chain.parts
    )
    expected = sum(tensor.bytes for tensor in chain.tensors if tensor.name in chain.outputs)
    with ChainChild(time_limit_s) as child:
        return child.run(RunChain(parts, forms, chain.outputs), payload, expected)


def packed(
    types: Mapping[str, tuple[str, tuple[int, ...]]], inputs: Mapping[str, NDArray[Any]]
) -> tuple[tuple[ArrayForm, ...], bytes]:
    """Return the forms and the joined bytes of inputs; raise UsageError if an input is wrong."""
    import numpy

    forms, contents = [], []
    for name, (kind, shape) in types.items():
        if name not in inputs:
            raise UsageError(f"the chain needs the input {quote(name)}")
        value = numpy.ascontiguousarray(inputs[name])
        if value.dtype.kind not in _PLAIN or value.dtype.name != kind:
            raise UsageError(f"input {quote(name)} must have type {kind}, not {value.dtype.name}")
        if tuple(numpy.shape(inputs[name])) != shape:
            raise UsageError(
                f"input {quote(name)} must have shape {shape}, not {numpy.shape(inputs[name])}"
            )
        forms.append(ArrayForm(name, value.dtype.name, shape, value.nbytes))
        contents.append(value.tobytes())
    return tuple(forms), b"".join(contents)
