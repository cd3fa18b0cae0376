"""A graph together with what is known about its tensors; fold and shape make it grow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from qnnmem.loader.onnx.flow import Flow
from qnnmem.loader.onnx.graph import OnnxGraph
from qnnmem.loader.onnx.tensor import UNKNOWN, OnnxType


@dataclass(frozen=True, slots=True)
class Scope:
    """A graph, the types of its tensors, and the same for the bodies of its nodes.

    Bodies are found by the first output of their node. The scope around owns captured names:
    `outer` are tensors of it, `outer_const` constants.
    """

    graph: OnnxGraph
    types: Mapping[str, OnnxType] = field(default_factory=dict)
    flow: Flow = field(default_factory=Flow)
    bodies: Mapping[str, tuple[Scope, ...]] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    outer_const: frozenset[str] = frozenset()
    # Where types come from: inference alone, bodies, bodies that read tensors of stated shape,
    # trial runs, the file.
    settled: frozenset[str] = frozenset()
    proven: Mapping[str, OnnxType] = field(default_factory=dict)
    bounded: Mapping[str, OnnxType] = field(default_factory=dict)
    measured: Mapping[str, OnnxType] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    # Outputs of control flow without a type: a trial run may measure these, those have a reason.
    steady: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)

    def with_bodies(self) -> Iterator[Scope]:
        """The scope and those of all bodies in it."""
        yield self
        for inner in self.bodies.values():
            for body in inner:
                yield from body.with_bodies()

    def is_typed(self, name: str) -> bool:
        """Whether element type and shape of a tensor are known."""
        return self.types.get(name, UNKNOWN).is_static

    def are_const(self, names: Collection[str]) -> bool:
        """Whether all these tensors are constants; names of left out ones are empty."""
        return all(name in self.flow.const for name in names if name)
