"""When each tensor of a model must be in memory, and which tensors share bytes.

A tensor lives from its producer to its last consumer, both inclusive, so the inputs and outputs of
one op never share bytes unless an option allows it. Step -1 is the moment before the first op, when
the application writes the inputs; step len(ops) is the moment after the last op, when the
application reads the outputs. Spans are half-open: a tensor written at step 2 and last read at step
5 lives [2, 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from qnnmem.ir.model import Effect, LiveBytes, Model, Op, Span, Tensor
from qnnmem.units import Bytes, Step


class Role(Enum):
    """The role of a tensor in memory."""

    INPUT = "input"
    OUTPUT = "output"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class TensorGroup(LiveBytes):
    """Tensors that share bytes, named after the tensor that is written first."""

    aliases: tuple[str, ...] = ()  # other names of the same bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime(TensorGroup):
    """A group of tensors and its lifetime, but not its offset, which is planned later."""

    roles: frozenset[Role]


def stored_bytes(tensor: Tensor, bits: int | None) -> Bytes:
    """Return a tensor's size in bytes; with `bits`, floating-point elements take this many bits."""
    return tensor.nbytes if bits is None or not tensor.dtype.is_float else tensor.nbytes_at(bits)


def lifetimes(
    model: Model, *, bits: int | None = None, inplace: bool = False
) -> tuple[Lifetime, ...]:
    """Return the lifetimes of all tensors except constants and state, in order of birth.

    With `inplace` an element-wise op may overwrite an input that no later op reads.
    """
    groups = _Groups(model, bits)
    for step, op in enumerate(model.ops):
        if op.effect is Effect.VIEW and op.inputs and op.outputs:
            groups.join(op.inputs[0], op.outputs[0])
        elif inplace and op.effect is Effect.ELEMENTWISE and op.outputs:
            groups.overwrite(op, step)
    return groups.lifetimes()


def first_uses(model: Model) -> dict[str, int]:
    """For each tensor, return the step that writes it; -1 for inputs of the model."""
    born = dict.fromkeys(model.inputs, -1)
    for step, op in enumerate(model.ops):
        for name in op.outputs:
            born.setdefault(name, step)
    return born


def last_uses(model: Model, born: dict[str, int]) -> dict[str, int]:
    """For each tensor in `born`, return the last step that reads or writes it."""
    last = dict(born)
    for step, op in enumerate(model.ops):
        for name in (*op.inputs, *op.outputs):
            if name in last:
                last[name] = step
    for name in model.outputs:
        if name in last:
            last[name] = len(model.ops)
    return last


class _Groups:
    """Union-find over tensors that share bytes."""

    def __init__(self, model: Model, bits: int | None) -> None:
        self.fixed = fixed = {*model.constants, *model.states}
        self.model = model
        self.born = {k: v for k, v in first_uses(model).items() if k not in fixed}
        self.last = last_uses(model, self.born)
        self.own = {name: stored_bytes(model.tensors[name], bits) for name in self.born}
        self.size = dict(self.own)  # of the whole group, stored at its root
        self.root = {name: name for name in self.born}

    def find(self, name: str) -> str:
        while self.root[name] != name:
            self.root[name] = self.root[self.root[name]]
            name = self.root[name]
        return name

    def join(self, source: str, view: str) -> None:
        if source not in self.root:
            # A view of a constant or of state stays a copy, because sharing would make the constant
            # writable. Any other source without a birth step is captured from an outer graph: its
            # bytes, and those of the view, lie outside.
            if source not in self.fixed and view in self.root:
                del self.born[view], self.root[view]
        elif view in self.root:
            a, b = self.find(source), self.find(view)
            if a != b:
                self.root[b] = a
                self.last[a] = max(self.last[a], self.last[b])
                self.size[a] = max(self.size[a], self.size[b])

    def overwrite(self, op: Op, step: int) -> None:
        if op.outputs[0] not in self.root:  # the op writes state
            return
        output = self.find(op.outputs[0])
        for name in op.inputs:
            if name not in self.root:
                continue
            group = self.find(name)
            dies = self.last[group] == step and self.born[group] >= 0
            # The operand's size is compared too, not only its group's: a view can be smaller than
            # its group.
            sizes = {self.own[name], self.size[group], self.size[output]}
            if dies and group != output and len(sizes) == 1:
                self.join(group, output)
                return

    def lifetimes(self) -> tuple[Lifetime, ...]:
        members: dict[str, list[str]] = {}
        for name in self.born:
            members.setdefault(self.find(name), []).append(name)
        inputs, outputs = set(self.model.inputs), set(self.model.outputs)

        def role(name: str) -> Role:
            if name in inputs:
                return Role.INPUT
            return Role.OUTPUT if name in outputs else Role.TEMPORARY

        return tuple(
            Lifetime(
                root,
                self.size[root],
                Span(Step(self.born[root]), Step(self.last[root] + 1)),
                tuple(name for name in names if name != root),
                roles=frozenset(map(role, names)),
            )
            for root, names in members.items()
        )


def reordered(model: Model, order: Sequence[int]) -> Model:
    """Return the model with its ops in `order`, which must respect the ops' dependencies."""
    return replace(model, ops=tuple(model.ops[i] for i in order))
