"""What a chain of parts is made of: files, tensors between them, when each can be freed, its peak.

The manifest is a JSON file beside the parts (`qnnmem.chain/1`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qnnmem.atomic_file import folder_for_output, write_together
from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError
from qnnmem.fix.parts.op_sequence import lives, write_part
from qnnmem.fix.parts.partition import Partition, plan_part
from qnnmem.planner import Io, PoolOptions
from qnnmem.text import quote
from qnnmem.units import round_up
from qnnmem.version import __version__

SCHEMA = "qnnmem.chain/1"
MANIFEST = "chain.json"
FIRST_PART = "part1.onnx"
_MOST = 1 << 26  # bytes of a manifest
_LARGEST = 1 << 32  # bytes of a model or context binary
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class ChainTensor:
    """A tensor that lies outside of parts: an input, an output, or one between parts.

    Parts are counted from 1. An input comes from no part (0).
    """

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int
    role: str  # input, output or boundary
    from_part: int
    to_parts: tuple[int, ...]
    free_after: int | None  # part; None: never, it is an output


@dataclass(frozen=True, slots=True)
class ChainPart:
    """One model of a chain."""

    file: str
    sha256: str
    ops: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights_bytes: int
    scratch_bytes: int  # planned, inputs and outputs outside
    held_bytes: int  # tensors outside of parts that must be there while it runs, its own included
    free_after: tuple[str, ...]  # tensors that nobody needs after it


@dataclass(frozen=True, slots=True)
class ChainPeak:
    """Bytes that a chain takes at its fullest moment, weights, scratch and tensors between."""

    whole_bytes: int  # the model in one piece, for comparison
    resident_bytes: int  # all parts loaded, each with scratch of its own
    shared_bytes: int  # all parts loaded, one scratch for all
    in_turn_bytes: int  # each part loaded before it runs and freed after it


@dataclass(frozen=True, slots=True)
class ChainBinary:
    """A part as a context binary of HTP."""

    file: str
    sha256: str
    pd_bytes: int  # that the library reserves for it in a process domain


@dataclass(frozen=True, slots=True)
class HtpChain:
    """What the real library made of the parts, and whether they are resident together."""

    soc: str
    library: str
    binaries: tuple[ChainBinary, ...]
    refused_part: int  # that found no room in the process domain of those before it; 0: none
    domains: int  # process domains that all parts take on a device, loaded in order
    budget_bytes: int  # of one process domain
    resident_bytes: int  # estimates of all parts together
    in_turn_bytes: int  # the largest estimate


@dataclass(frozen=True, slots=True)
class Chain:
    """Parts in the order they run, and what is handed from one to the next."""

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[ChainPart, ...]
    tensors: tuple[ChainTensor, ...]
    crossing_bytes: int
    peak: ChainPeak
    htp: HtpChain | None = None
    deployment: Mapping[str, Any] | None = None  # as it was judged against a budget

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Every file and its sha256: models, then context binaries."""
        binaries = () if self.htp is None else self.htp.binaries
        models = tuple((part.file, part.sha256) for part in self.parts)
        return models + tuple((one.file, one.sha256) for one in binaries)


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
    text = json.dumps(as_json(chain), indent=1).encode()
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
    role = "boundary"
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


def as_json(chain: Chain) -> dict[str, Any]:
    """The manifest as JSON values."""
    return {"schema": SCHEMA, "tool": f"qnnmem {__version__}", **asdict(chain)}


def read_chain(folder: Path) -> Chain:
    """The chain in a folder; LoadError unless its files are those that the manifest names."""
    path = folder / MANIFEST
    blob = read_bytes(path, _MOST)
    try:
        chain = _from_json(json.loads(blob))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise LoadError(path, f"is not a manifest of {SCHEMA}") from exc
    _check(path, chain)
    return chain


def _from_json(values: Mapping[str, Any]) -> Chain:
    if values["schema"] != SCHEMA:
        raise ValueError(SCHEMA)
    own = {key: value for key, value in values.items() if key not in ("schema", "tool")}
    if not isinstance(own.setdefault("deployment", None), dict | None):  # older files have none
        raise ValueError("deployment")
    return Chain(
        **{
            **_fields(Chain, own),
            "parts": tuple(ChainPart(**_fields(ChainPart, one)) for one in own["parts"]),
            "tensors": tuple(ChainTensor(**_fields(ChainTensor, one)) for one in own["tensors"]),
            "peak": ChainPeak(**_fields(ChainPeak, own["peak"])),
            "htp": None if own["htp"] is None else _htp_from_json(own["htp"]),
        }
    )


def _htp_from_json(values: Mapping[str, Any]) -> HtpChain:
    binaries = tuple(ChainBinary(**_fields(ChainBinary, one)) for one in values["binaries"])
    return HtpChain(**{**_fields(HtpChain, values), "binaries": binaries})


# What the annotation of a field of ours lets JSON hold.
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int and value >= 0,
    "int | None": lambda value: value is None or (type(value) is int and value >= 0),
    "tuple[str, ...]": lambda value: all(isinstance(one, str) for one in value),
    "tuple[int, ...]": lambda value: all(type(one) is int and one >= 0 for one in value),
}


def _fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the fields of a value class; ValueError for one of another kind."""
    found = {}
    for one in fields(kind):
        value = values[one.name]
        fits = _KINDS.get(str(one.type))
        if str(one.type).startswith("tuple"):
            if not isinstance(value, list):
                raise ValueError(one.name)
            value = tuple(value)
        if fits is not None and not fits(value):
            raise ValueError(one.name)
        found[one.name] = value
    return found


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
