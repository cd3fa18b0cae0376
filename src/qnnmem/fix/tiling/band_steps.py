"""Ranges of rows, and what one node does for a band of them.

The cut axis is counted from the last, so that it means the same for operands with fewer dimensions:
-2 are rows of a picture, -1 columns, or the time of a sound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.loader.onnx.graph import attribute

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.fix.tiling.graph import TiledGraph


class Rows(NamedTuple):
    """Rows `first <= row < end` of a tensor along the axis that is cut."""

    first: int
    end: int

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.end - self.first

    def hull(self, other: Rows | None) -> Rows:
        """The smallest range that holds both."""
        if other is None:
            return self
        return Rows(min(self.first, other.first), max(self.end, other.end))

    def within(self, size: int) -> Rows:
        """The part of it that a tensor of so many rows has."""
        return Rows(max(self.first, 0), min(self.end, size))


def share(size: int, band: int, bands: int) -> Rows:
    """Rows of one of several bands that are as equal as they can be."""
    return Rows(size * band // bands, size * (band + 1) // bands)


@dataclass(frozen=True, slots=True)
class BandStep:
    """What a node does for a band: rows it makes, rows it reads, what is said otherwise to it.

    Inputs that are not among `reads` are read whole. `values` are new constants by input; an input
    that is None is left out.
    """

    makes: Rows
    reads: Mapping[int, Rows]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[int, NDArray[Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node with what is known about its operands."""

    graph: TiledGraph
    node: onnx.NodeProto
    axis: int  # that is cut, from the last: -1 or -2

    def shape(self, slot: int) -> tuple[int, ...]:
        """Shape of an input."""
        return self.graph.shape(self.node.input[slot]) or ()

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.graph.shape(self.node.output[0]) or ()

    def has(self, slot: int) -> bool:
        """Whether an input is given."""
        return slot < len(self.node.input) and bool(self.node.input[slot])

    def size(self, slot: int) -> int:
        """Rows of an input; 1 where it has no such axis."""
        return rows_of(self.shape(slot), self.axis)

    def ints(self, name: str) -> tuple[int, ...] | None:
        """Attribute that is a list of whole numbers."""
        found = attribute(self.node, name)
        return None if found is None else tuple(found.ints)

    def text(self, name: str, default: str) -> str:
        """Attribute that is a word."""
        found = attribute(self.node, name)
        return default if found is None else found.s.decode("utf-8", "replace")

    def numbers(self, slot: int) -> NDArray[Any] | None:
        """Values of an input that is a stored constant."""
        return self.graph.numbers(self.node.input[slot]) if self.has(slot) else None


Rule = Callable[[NodeFacts, Rows], "BandStep | str"]


def rows_of(shape: tuple[int, ...], axis: int) -> int:
    """Size along the axis that is cut; 1 where there is no such axis."""
    return shape[axis] if len(shape) >= -axis else 1
