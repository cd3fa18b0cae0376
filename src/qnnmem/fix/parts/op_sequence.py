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
    written: int


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
        """For each tensor, the position of the op that writes it; -1 for inputs."""
        makers = dict.fromkeys(self.model.inputs, -1)
        makers.update((name, i) for i, op in enumerate(self.model.ops) for name in op.outputs)
        return makers

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """For each non-constant tensor, the positions of the ops that read it, in order."""
        readers: dict[str, list[int]] = {}
        for index, op in enumerate(self.model.ops):
            for name in dict.fromkeys(op.inputs):
                if name not in self.fixed:
                    readers.setdefault(name, []).append(index)
        return readers

    def last_reader(self, name: str) -> int:
        """Return the position of the last op that reads a tensor; -1 if none does."""
        return self.readers.get(name, (-1,))[-1]

    @cached_property
    def crossing(self) -> tuple[int, ...]:
        """For each op, the bytes that cross a cut before it: written before, read after the cut.

        Inputs of the model do not count: the application passes them to each part.
        """
        change = [0] * (len(self) + 1)
        for name, readers in self.readers.items():
            maker = self.maker[name]
            if maker >= 0 and readers[-1] > maker:
                size = self.model.tensors[name].nbytes
                change[maker + 1] += size
                change[readers[-1] + 1] -= size
        return tuple(accumulate(change))

    @cached_property
    def work(self) -> tuple[int, ...]:
        """Bytes that each op writes, plus constants and inputs that no earlier op reads."""
        outside = {*self.model.constants, *self.model.inputs}
        work = []
        for op in self.model.ops:
            new = outside.intersection(op.inputs)
            outside -= new
            names = (*op.outputs, *new)
            work.append(1 + sum(self.model.tensors[name].nbytes for name in names))
        return tuple(work)

    @cached_property
    def _uses(self) -> tuple[_OpUse, ...]:
        sizes = {name: tensor.nbytes for name, tensor in self.model.tensors.items()}
        outputs = set(self.model.outputs)
        return tuple(
            _OpUse(
                stored=[(name, sizes[name]) for name in set(op.inputs) if name in self.fixed],
                read=[
                    (
                        name,
                        sizes[name],
                        self.maker[name],
                        self.readers[name][-1] == index and name not in outputs,
                    )
                    for name in set(op.inputs)
                    if name not in self.fixed
                ],
                written=sum(sizes[n] for n in op.outputs if n in outputs or n in self.readers),
            )
            for index, op in enumerate(self.model.ops)
        )

    def range_bytes(self, first: int, most: int) -> tuple[list[int], list[int]]:
        """Return constant bytes and IO bytes of ranges that start at `first`, listed by range end.

        Counting stops at the first range whose constants exceed `most`. All longer ranges get the
        last counted values.
        """
        weights, io = [0] * (first + 1), [0] * (first + 1)
        stored = passed = 0
        seen: set[str] = set()
        for use in self._uses[first:]:
            for name, size in use.stored:
                if name not in seen:
                    seen.add(name)
                    stored += size
            if stored > most:
                break
            passed += use.written
            for name, size, maker, is_last in use.read:
                if maker >= first:
                    passed -= size if is_last else 0
                elif name not in seen:
                    seen.add(name)
                    passed += size
            weights.append(stored)
            io.append(passed)
        left = len(self) + 1 - len(weights)
        return weights + [stored] * left, io + [passed] * left

    def op_range(self, first: int, last: int) -> OpRange:
        """Return the ops `first <= op < last` as a model."""
        model, ops = self.model, self.model.ops[first:last]
        results = dict.fromkeys(name for op in ops for name in op.outputs)
        read = dict.fromkeys(name for op in ops for name in op.inputs)
        outside = [name for name in read if name not in results]
        inputs = tuple(name for name in outside if name not in self.fixed)
        constants = tuple(name for name in outside if name in self.fixed)
        final = set(model.outputs)
        outputs = tuple(n for n in results if n in final or self.last_reader(n) >= last)
        if last == len(model.ops):
            # Model inputs that are also outputs become outputs of the last part.
            through = tuple(name for name in model.outputs if self.maker[name] < 0)
            inputs = tuple(dict.fromkeys((*inputs, *through)))
            outputs = (*outputs, *through)
        part = replace(
            model,
            name=f"{model.name}[{first}:{last}]",
            tensors={name: model.tensors[name] for name in (*inputs, *constants, *results)},
            ops=ops,
            inputs=inputs,
            outputs=outputs,
            constants=constants,
            notes=(),
        )
        return OpRange(first, last, inputs, outputs, part)


@dataclass(frozen=True, slots=True)
class OpRange:
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
    """Return the op sequence of a model; raise UsageError if the model cannot be cut."""
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
        for index in op.sources:
            node = proto.graph.node[index]
            if node.domain in QUANT_DOMAINS and not is_deterministic(node):
                raise UsageError(
                    f"{quote(op.type)} {quote(op.name)} draws random numbers, so its parts "
                    "cannot be compared with the whole model",
                    where=path,
                )


def _is_copy_of_constant(op: Op) -> bool:
    """Return True if an op only copies a constant to an output of the model."""
    return op.type == "Constant" and not op.inputs


def lives(sequence: OpSequence, parts: Sequence[OpRange]) -> dict[str, tuple[int, int]]:
    """Return the first and the last part in which each tensor between parts is live.

    Inputs of the model are live from the start (-1), its outputs until the end.
    """
    ends: dict[str, tuple[int, int]] = dict.fromkeys(sequence.model.inputs, (-1, -1))
    for number, part in enumerate(parts):
        ends.update((name, (number, number)) for name in part.outputs)
        ends.update((name, (ends[name][0], number)) for name in part.inputs)
    for name in sequence.model.outputs:
        if name in ends:
            ends[name] = (ends[name][0], len(parts))
    return ends


_STRUCTURE_BYTES = 1 << 26  # room in a part's file for nodes, names and types


def write_part(sequence: OpSequence, op_range: OpRange, number: int) -> bytes:
    """Return the ONNX model of a range of ops as bytes, external weights included."""
    import onnx

    graph = sequence.proto.graph
    positions, stored = _needed(sequence, op_range)
    part = copied_without(sequence.proto, "graph")
    part.graph.name = f"{graph.name or sequence.model.name}_part{number}"
    part.graph.node.extend(graph.node[index] for index in positions)
    infos = {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)}
    part.graph.input.extend(infos[name] for name in op_range.inputs)
    part.graph.output.extend(infos[name] for name in op_range.outputs)
    own = {name for node in part.graph.node for name in node.output if name in infos}
    inner = sorted(own - set(op_range.outputs))
    part.graph.value_info.extend(infos[name] for name in inner)
    _check_size(sequence, stored, number)
    for tensor in graph.initializer:
        if tensor.name in stored:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            embed(sequence.path, copy)
            part.graph.initializer.append(copy)
    return bytes(part.SerializeToString(deterministic=True))


def _needed(sequence: OpSequence, op_range: OpRange) -> tuple[list[int], set[str]]:
    """Return the positions of a range's nodes, and the names of the stored tensors they read.

    Nodes are in the order of their ops, which can differ from the file's order.
    """
    graph = sequence.proto.graph
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    stored = {tensor.name for tensor in graph.initializer}
    seen, used = set(op_range.inputs), set()
    positions: dict[int, None] = {}
    for op in op_range.model.ops:
        own: set[int] = set()
        open_names = list(op.outputs)
        while open_names:
            name = open_names.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in stored:
                used.add(name)
            elif name not in makers:
                raise UsageError(
                    f"a part would need {quote(name)}, which no earlier part produces",
                    where=sequence.path,
                )
            elif makers[name] not in own:
                own.add(makers[name])
                open_names.extend(reads(graph.node[makers[name]]))
        positions.update(dict.fromkeys(sorted(own)))
    return list(positions), used


def _check_size(sequence: OpSequence, stored: set[str], number: int) -> None:
    from qnnmem.loader.onnx.tensor import STRING, stored_bytes

    size = sum(
        tensor.ByteSize() if tensor.data_type == STRING else stored_bytes(tensor)
        for tensor in sequence.proto.graph.initializer
        if tensor.name in stored
    )
    if size > MAX_FILE - _STRUCTURE_BYTES:
        raise UsageError(
            f"part {number} has {size:,} bytes of weights, over the limit of one ONNX file",
            where=sequence.path,
        )
