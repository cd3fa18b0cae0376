"""One run of an operator as the rules of shapes see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qnnmem.errors import Damaged
from qnnmem.loader.tflite.schema import RawOp, RawTensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """What is known of a tensor before the model runs."""

    shape: Shape
    value: Any = None  # array of few numbers, where they follow from shapes and constants


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its operands; an input that is left out is None."""

    op: RawOp
    inputs: Sequence[Operand | None]
    outputs: Sequence[RawTensor]

    def shape(self, position: int) -> Shape:
        """Shape of an input."""
        return self._operand(position).shape

    def value(self, position: int) -> list[int]:
        """The numbers in an input; Unknown where they depend on data."""
        found = self._operand(position).value
        if found is None or found.dtype.kind == "f":
            raise Unknown
        return [int(number) for number in found.reshape(-1).tolist()]

    def number(self, position: int) -> int:
        """The one number in an input."""
        found = self.value(position)
        if len(found) != 1:
            raise Damaged(f"has {len(found)} numbers where it needs one")
        return found[0]

    def has(self, position: int) -> bool:
        """Whether the input is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def option(self, name: str) -> Any:
        """An option of the operator; Unknown where the file has none."""
        if name not in self.op.options:
            raise Unknown
        return self.op.options[name]

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis < rank:
            raise Damaged(f"has axis {axis} for {rank} dimensions")
        return axis % rank

    def of_rank(self, position: int, rank: int) -> Shape:
        """Shape of an input that must have so many dimensions."""
        shape = self.shape(position)
        if len(shape) != rank:
            raise Damaged(f"reads {written(shape)} where {rank} dimensions are needed")
        return shape

    def _operand(self, position: int) -> Operand:
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise Damaged(f"lacks its input {position}")
        return found


class Unknown(Exception):
    """What a rule needs is not known before the model runs."""


def written(shape: Sequence[int]) -> str:
    """A shape in words."""
    return "x".join(map(str, shape)) or "a scalar"


def elements(shape: Sequence[int]) -> int:
    """How many elements a shape holds."""
    return math.prod(shape)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that several spread to together."""
    rank = max(map(len, shapes))
    sizes = []
    for axis in range(-rank, 0):
        found = {shape[axis] for shape in shapes if -axis <= len(shape)} - {1}
        if len(found) > 1:
            raise Damaged(f"reads {' and '.join(map(written, shapes))}, which do not go together")
        sizes.append(found.pop() if found else 1)
    return tuple(sizes)
