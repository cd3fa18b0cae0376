"""What a chain of parts is made of: files, tensors between them, when each can be freed, its peak.

The manifest is a JSON file beside the parts (`qnnmem.chain/1`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from qnnmem.atomic_file import folder_for_output, write_together
from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError
from qnnmem.fix.parts.op_sequence import lives, write_part
from qnnmem.fix.parts.partition import Partition, plan_part
from qnnmem.planner import Io, PoolOptions
from qnnmem.results.chain import Chain, ChainPart, ChainPeak, ChainTensor
from qnnmem.results.schema import encode
from qnnmem.text import quote
from qnnmem.units import round_up

SCHEMA = "qnnmem.chain/1"
MANIFEST = "chain.json"
FIRST_PART = "part1.onnx"
_MOST = 1 << 26  # bytes of a manifest
_LARGEST = 1 << 32  # bytes of a model or context binary
_ALIGN = 64


def write_chain(found: Partition, folder: Path, *, force: bool = False) -> Chain:
    """Write the parts and the manifest, all or none."""
    blobs = part_models(found)
    chain = describe_chain(found, blobs)
    write_files(chain, blobs, folder, force=force)
    return chain


def write_files(
    chain: Chain,
    blobs: Sequence[bytes],
    folder: Path,
    binaries: Sequence[bytes] = (),
    *,
    force: bool = False,
) -> None:
    """Write models, context binaries and the manifest that names them, all or none."""
    contents = zip(chain.files, (*blobs, *binaries), strict=True)
    text = encode(chain).encode()
    with folder_for_output(folder):
        named = {folder / name: content for (name, _), content in contents}
        write_together({**named, folder / MANIFEST: text}, force=force)


def part_models(found: Partition) -> tuple[bytes, ...]:
    """Every part as an ONNX model."""
    return tuple(
        write_part(found.sequence, part, number) for number, part in enumerate(found.parts, start=1)
    )


def describe_chain(found: Partition, blobs: Sequence[bytes]) -> Chain:
    """What a manifest says about parts."""
    sequence = found.sequence
    alive = lives(sequence, found.parts)
    parts = tuple(_part(found, alive, at, blob) for at, blob in enumerate(blobs))
    return Chain(
        model=sequence.path.name,
        inputs=sequence.model.inputs,
        outputs=sequence.model.outputs,
        parts=parts,
        tensors=tuple(_tensor(found, name, ends) for name, ends in alive.items()),
        crossing_bytes=found.crossing_bytes,
        peak=_peak(found, parts),
    )


def _part(
    found: Partition, alive: Mapping[str, tuple[int, int]], at: int, blob: bytes
) -> ChainPart:
    part = found.parts[at]
    plan = plan_part(part, PoolOptions(io=Io.OUTSIDE))
    return ChainPart(
        file=f"part{at + 1}.onnx",
        sha256=hashlib.sha256(blob).hexdigest(),
        ops=part.last - part.first,
        inputs=part.inputs,
        outputs=part.outputs,
        weights_bytes=plan.constant_bytes,
        scratch_bytes=plan.scratch_bytes,
        held_bytes=_held(found, alive, at),
        free_after=tuple(name for name, (_, last) in alive.items() if last == at),
    )


def _held(found: Partition, alive: Mapping[str, tuple[int, int]], number: int) -> int:
    """Bytes outside of parts while one runs; inputs of the model count until their last reader."""
    return sum(
        round_up(found.sequence.model.tensors[name].nbytes, _ALIGN)
        for name, (first, last) in alive.items()
        if first <= number <= last
    )


def _tensor(found: Partition, name: str, ends: tuple[int, int]) -> ChainTensor:
    model = found.sequence.model
    tensor = model.tensors[name]
    readers = (n for n, part in enumerate(found.parts, start=1) if name in part.inputs)
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


def _peak(found: Partition, parts: tuple[ChainPart, ...]) -> ChainPeak:
    sequence = found.sequence
    whole = plan_part(sequence.stretch(0, len(sequence)), PoolOptions(io=Io.OUTSIDE))
    around = sum(
        round_up(sequence.model.tensors[name].nbytes, _ALIGN)
        for name in {*sequence.model.inputs, *sequence.model.outputs}
    )
    weights = sum(part.weights_bytes for part in parts)
    fullest = max(part.held_bytes for part in parts)
    return ChainPeak(
        whole_bytes=whole.constant_bytes + whole.scratch_bytes + around,
        resident_bytes=weights + sum(part.scratch_bytes for part in parts) + fullest,
        shared_bytes=weights + max(part.scratch_bytes + part.held_bytes for part in parts),
        in_turn_bytes=max(p.weights_bytes + p.scratch_bytes + p.held_bytes for p in parts),
    )


def read_chain(folder: Path) -> Chain:
    """The chain in a folder; LoadError unless its files are those that the manifest names."""
    path = folder / MANIFEST
    try:
        chain = msgspec.json.decode(read_bytes(path, _MOST), type=Chain)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise LoadError(path, f"is not a manifest of {SCHEMA}") from exc
    _check(path, chain)
    return chain


def _check(path: Path, chain: Chain) -> None:
    """Refuse a manifest whose parts are other files, or do not get what they read."""
    known = set(chain.inputs)
    for part in chain.parts:
        missing = next((name for name in part.inputs if name not in known), None)
        if missing is not None:
            raise LoadError(path, f"part {quote(part.file)} reads {quote(missing)} too early")
        known.update(part.outputs)
    lost = next((name for name in chain.outputs if name not in known), None)
    if lost is not None:
        raise LoadError(path, f"no part gives the output {quote(lost)}")
    unknown = {*chain.inputs, *chain.outputs} - {tensor.name for tensor in chain.tensors}
    if unknown:
        raise LoadError(path, f"says nothing about {quote(min(unknown))}")
    for name, sha256 in chain.files:
        _check_file(path, name, sha256)


def _check_file(path: Path, name: str, sha256: str) -> None:
    if Path(name).name != name:
        raise LoadError(path, f"names a part {quote(name)}, which is no plain file name")
    blob = read_bytes(path.parent / name, _LARGEST)
    if hashlib.sha256(blob).hexdigest() != sha256:
        raise LoadError(path.parent / name, "is not the file that the manifest was made of")
