"""A model as a sequence of ops that can be cut, and parts as ONNX models.

A part has the nodes that its outputs depend on, back to its inputs, so it computes the same results
as the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.ir import Model, Op
from qnnmem.loader.onnx.graph import copied_without, reads
from qnnmem.loader.onnx.passes.read import MAX_FILE
from qnnmem.loader.onnx.tensor import embed
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.passes.shape import ShapedModel

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _OpUse:
    """Tensors that an op reads, and bytes that it writes."""

    stored: list[tuple[str, int]]  # constants and their sizes
    read: list[tuple[str, int, int, bool]]  # name, size, maker, whether this is the last read
    made: int


@dataclass(frozen=True)
class OpSequence:
    """Ops of a model in execution order, and the ONNX graph that they come from."""

    path: Path
    model: Model
    proto: onnx.ModelProto  # every tensor has a type, functions are inlined

    def __len__(self) -> int:
        return len(self.model.ops)

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Names of constants; each part stores its own copy."""
        copied = (op.outputs for op in self.model.ops if _is_copy_of_constant(op))
        return frozenset((*self.model.constants, *(name for names in copied for name in names)))

    @cached_property
    def maker(self) -> dict[str, int]:
        """Position of the op that writes each tensor; -1 for inputs."""
        made = dict.fromkeys(self.model.inputs, -1)
        made.update((name, at) for at, op in enumerate(self.model.ops) for name in op.outputs)
        return made

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Positions of the ops that read each non-constant tensor, in order."""
        found: dict[str, list[int]] = {}
        for at, op in enumerate(self.model.ops):
            for name in dict.fromkeys(op.inputs):
                if name not in self.fixed:
                    found.setdefault(name, []).append(at)
        return found

    @cached_property
    def crossing(self) -> tuple[int, ...]:
        """Bytes that cross a cut before each op: written before the cut, read after it.

        Inputs of the model do not count: the application passes them to each part.
        """
        change = [0] * (len(self) + 1)
        for name, readers in self.readers.items():
            made = self.maker[name]
            if made >= 0 and readers[-1] > made:
                size = self.model.tensors[name].nbytes
                change[made + 1] += size
                change[readers[-1] + 1] -= size
        return tuple(accumulate(change))

    @cached_property
    def work(self) -> tuple[int, ...]:
        """Bytes that each op writes, plus constants and inputs that no earlier op reads."""
        outside = {*self.model.constants, *self.model.inputs}
        seen: set[str] = set()
        found = []
        for op in self.model.ops:
            new = outside.intersection(op.inputs) - seen
            seen |= new
            names = (*op.outputs, *new)
            found.append(1 + sum(self.model.tensors[name].nbytes for name in names))
        return tuple(found)

    @cached_property
    def _uses(self) -> tuple[_OpUse, ...]:
        sizes = {name: tensor.nbytes for name, tensor in self.model.tensors.items()}
        wanted = set(self.model.outputs)
        return tuple(
            _OpUse(
                stored=[(name, sizes[name]) for name in set(op.inputs) if name in self.fixed],
                read=[
                    (
                        name,
                        sizes[name],
                        self.maker[name],
                        self.readers[name][-1] == at and name not in wanted,
                    )
                    for name in set(op.inputs)
                    if name not in self.fixed
                ],
                made=sum(sizes[n] for n in op.outputs if n in wanted or n in self.readers),
            )
            for at, op in enumerate(self.model.ops)
        )

    def around(self, first: int, most: int) -> tuple[list[int], list[int]]:
        """Return the bytes of constants, and of IO, of each range of ops from `first`, by its end.

        Counting stops at the first range whose constants exceed `most`; later values are not
        updated.
        """
        weights, io = [0] * (first + 1), [0] * (first + 1)
        stored = given = 0
        seen: set[str] = set()
        for use in self._uses[first:]:
            for name, size in use.stored:
                if name not in seen:
                    seen.add(name)
                    stored += size
            if stored > most:
                break
            given += use.made
            for name, size, maker, is_last in use.read:
                if maker >= first:
                    given -= size if is_last else 0
                elif name not in seen:
                    seen.add(name)
                    given += size
            weights.append(stored)
            io.append(given)
        behind = len(self) + 1 - len(weights)
        return weights + [stored] * behind, io + [given] * behind

    def stretch(self, first: int, last: int) -> Stretch:
        """Return the ops `first <= op < last` as a model."""
        return _make_stretch(self, first, last)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive ops of a sequence as a separate model."""

    first: int
    last: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: Model  # for the planner


def read_sequence(
    path: Path,
    *,
    dims: Mapping[str, int] = _NOTHING,
    shapes: Mapping[str, tuple[int, ...]] = _NOTHING,
    values: Mapping[str, Any] = _NOTHING,
    reorder: bool = False,
    time_limit_s: float = 60.0,
) -> OpSequence:
    """Read an ONNX model as a sequence of ops; raise UsageError if cutting is unsound.

    With `reorder`, ops are in the order with the fewest live bytes.
    """
    from qnnmem.loader.onnx import read_shaped

    shaped = read_shaped(path, dims=dims, shapes=shapes, values=values, time_limit_s=time_limit_s)
    return sequence_of(shaped, reorder=reorder)


def sequence_of(model: ShapedModel, *, reorder: bool = False) -> OpSequence:
    """Return the sequence of a shaped model; raise UsageError if a shape depends on data."""
    from qnnmem.loader.onnx.passes.build import build
    from qnnmem.loader.onnx.passes.shape import write_typed

    path, built = model.resolved.path, build(model)
    inside = sorted(model.resolved.stated.keys() - set(built.inputs))
    if inside:
        raise UsageError(
            f"the shape of {quote(inside[0])} depends on data, so no part has fixed shapes",
            where=path,
        )
    return make_sequence(path, built, write_typed(model), reorder=reorder)


def make_sequence(
    path: Path, model: Model, proto: onnx.ModelProto, *, reorder: bool = False
) -> OpSequence:
    """Return a model's ops in execution order, with its graph; fail if it cannot be cut."""
    if not model.ops:
        raise UsageError("the model has no ops, so it cannot be split", where=path)
    _refuse_random(path, proto, model)
    if reorder:
        from qnnmem.planner.order import reorder as best_order

        better = best_order(model).model
        # An ONNX file stores no position for such copies, and the loader puts them first.
        ops = sorted(better.ops, key=lambda op: not _is_copy_of_constant(op))
        model = replace(better, ops=tuple(ops))
    return OpSequence(path, model, proto)


def _refuse_random(path: Path, proto: onnx.ModelProto, model: Model) -> None:
    """Raise UsageError for random ops: the results of parts could not be compared."""
    from qnnmem.loader.onnx.graph import QUANT_DOMAINS
    from qnnmem.loader.onnx.scope import is_deterministic

    for op in model.ops:
        for at in op.sources:
            node = proto.graph.node[at]
            if node.domain in QUANT_DOMAINS and not is_deterministic(node):
                raise UsageError(
                    f"{quote(op.type)} {quote(op.name)} draws random numbers, so its parts "
                    "cannot be compared with the whole model",
                    where=path,
                )


def _is_copy_of_constant(op: Op) -> bool:
    """Return True if an op only copies a constant to an output of the model."""
    return op.type == "Constant" and not op.inputs


def _make_stretch(sequence: OpSequence, first: int, last: int) -> Stretch:
    model, ops = sequence.model, sequence.model.ops[first:last]
    made = {name for op in ops for name in op.outputs}
    read = dict.fromkeys(name for op in ops for name in op.inputs)
    inputs = tuple(name for name in read if name not in made and name not in sequence.fixed)
    wanted = set(model.outputs)
    outputs = tuple(
        name
        for op in ops
        for name in op.outputs
        if name in wanted or sequence.readers.get(name, (-1,))[-1] >= last
    )
    if last == len(model.ops):
        # Model inputs that are also outputs become outputs of the last part.
        through = tuple(name for name in model.outputs if sequence.maker[name] < 0)
        inputs = tuple(dict.fromkeys((*inputs, *through)))
        outputs = (*outputs, *through)
    constants = tuple(name for name in read if name not in made and name in sequence.fixed)
    names = (*inputs, *constants, *(name for op in ops for name in op.outputs))
    part = replace(
        model,
        name=f"{model.name}[{first}:{last}]",
        tensors={name: model.tensors[name] for name in names},
        ops=ops,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        notes=(),
    )
    return Stretch(first, last, inputs, outputs, part)


def lives(sequence: OpSequence, parts: Sequence[Stretch]) -> dict[str, tuple[int, int]]:
    """Return the first and the last part in which each tensor between parts is live.

    Inputs of the model are live from the start (-1), its outputs until the end.
    """
    found: dict[str, tuple[int, int]] = dict.fromkeys(sequence.model.inputs, (-1, -1))
    for number, part in enumerate(parts):
        found.update((name, (number, number)) for name in part.outputs)
        found.update((name, (found[name][0], number)) for name in part.inputs)
    for name in sequence.model.outputs:
        if name in found:
            found[name] = (found[name][0], len(parts))
    return found


# bytes for nodes, names and types, on top of the weights
_ROOM = 1 << 26


def write_part(sequence: OpSequence, stretch: Stretch, number: int) -> bytes:
    """Return the ONNX model of a range of ops as bytes, external weights included."""
    import onnx

    graph = sequence.proto.graph
    positions, stored = _needed(sequence, stretch)
    part = copied_without(sequence.proto, "graph")
    part.graph.name = f"{graph.name or sequence.model.name}_part{number}"
    part.graph.node.extend(graph.node[at] for at in positions)
    infos = {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)}
    part.graph.input.extend(infos[name] for name in stretch.inputs)
    part.graph.output.extend(infos[name] for name in stretch.outputs)
    own = {name for at in positions for name in graph.node[at].output if name in infos}
    inner = sorted(own - set(stretch.outputs))
    part.graph.value_info.extend(infos[name] for name in inner)
    _check_size(sequence, stored, number)
    for tensor in graph.initializer:
        if tensor.name in stored:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            embed(sequence.path, copy)
            part.graph.initializer.append(copy)
    return bytes(part.SerializeToString(deterministic=True))


def _needed(sequence: OpSequence, stretch: Stretch) -> tuple[list[int], set[str]]:
    """Return the positions of the nodes of a range, and the names of stored tensors they read.

    Nodes are in the order of their ops, which can differ from the file's order.
    """
    graph = sequence.proto.graph
    maker = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    stored = {tensor.name for tensor in graph.initializer}
    seen, used = set(stretch.inputs), set()
    positions: dict[int, None] = {}
    for op in stretch.model.ops:
        found: set[int] = set()
        open_names = list(op.outputs)
        while open_names:
            name = open_names.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in stored:
                used.add(name)
            elif name not in maker:
                raise UsageError(
                    (f"a part would need {quote(name)}, which no earlier part produces"),
                    where=sequence.path,
                )
            elif maker[name] not in found:
                found.add(maker[name])
                open_names.extend(reads(graph.node[maker[name]]))
        positions.update(dict.fromkeys(sorted(found)))
    return list(positions), used


def _check_size(sequence: OpSequence, stored: set[str], number: int) -> None:
    from qnnmem.loader.onnx.tensor import STRING, stored_bytes

    size = sum(
        tensor.ByteSize() if tensor.data_type == STRING else stored_bytes(tensor)
        for tensor in sequence.proto.graph.initializer
        if tensor.name in stored
    )
    if size > MAX_FILE - _ROOM:
        raise UsageError(
            f"part {number} has {size:,} bytes of weights, over the limit of one ONNX file",
            where=sequence.path,
        )
