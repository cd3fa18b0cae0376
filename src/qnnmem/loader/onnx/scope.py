"""The known facts about the tensors of a graph: constants, element types, shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.graph import ONNX_DOMAINS, QUANT_DOMAINS, OnnxGraph, bodies, is_op, reads
from qnnmem.loader.onnx.tensor import UNKNOWN, OnnxType

if TYPE_CHECKING:
    import onnx

CONTROL = ("If", "Loop", "Scan")
# Ops that change only the shape of their first input.
RESHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_RANDOM = (
    *("Bernoulli", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
)
_ALL = tuple(range(8))
# Inputs whose values set the shape of an output.
SHAPING = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "ImageDecoder": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": _ALL,
    "NonMaxSuppression": _ALL,
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": _ALL,
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1, 2),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{
        f"Reduce{kind}": (1,)
        for kind in (
            *("L1", "L2", "LogSum", "LogSumExp", "Max"),
            *("Mean", "Min", "Prod", "Sum", "SumSquare"),
        )
    },
}


@dataclass(frozen=True, slots=True)
class Flow:
    """Constants, and for each data-dependent shape the node that makes the shape depend on data.

    Results of control flow are `pending` until the bodies are examined: facts about pending results
    can change. Only `analyse` fills the collections.
    """

    const: set[str] = field(default_factory=set)
    culprit: dict[str, int] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)


def analyse(graph: OnnxGraph, proven: Collection[str], examined: Collection[str]) -> Flow:
    """Return the constants and data-dependent shapes of a graph, without its bodies."""
    flow = Flow({item.name for item in graph.initializer})
    for index, node in enumerate(graph.node):
        constant = _is_constant(node, flow)
        culprit = None if constant else _culprit(index, node, flow)
        if not constant and _is_pending(node, flow, examined):
            flow.pending.update(node.output)
        for name in filter(None, node.output):
            if constant:
                flow.const.add(name)
            elif culprit is not None and name not in proven:
                flow.culprit[name] = culprit
    return flow


def is_deterministic(node: onnx.NodeProto) -> bool:
    """Return whether a node and all nodes in its bodies give equal outputs for equal inputs."""
    if node.domain not in QUANT_DOMAINS or is_op(node, *_RANDOM):
        return False
    if is_op(node, "Dropout") and len(node.input) > 2 and node.input[2]:
        return False
    return all(is_deterministic(inner) for body in bodies(node) for inner in body.node)


def _is_constant(node: onnx.NodeProto, flow: Flow) -> bool:
    if is_op(node, "Constant"):
        return True
    if is_op(node, "Shape", "Size") and node.input:
        return node.input[0] not in flow.culprit
    names = reads(node)
    return bool(names) and all(name in flow.const for name in names) and is_deterministic(node)


def _is_pending(node: onnx.NodeProto, flow: Flow, examined: Collection[str]) -> bool:
    if is_op(node, *CONTROL) and next(iter(node.output), "") not in examined:
        return True
    return not flow.pending.isdisjoint(reads(node))


def _culprit(index: int, node: onnx.NodeProto, flow: Flow) -> int | None:
    if is_op(node, "Shape", "Size"):
        return None  # the shape of a shape is the rank, which does not depend on sizes
    for name in reads(node):
        if name in flow.culprit:
            return flow.culprit[name]
    if is_op(node, *CONTROL):
        return index  # proven outputs of examined bodies are exempt
    if node.domain not in ONNX_DOMAINS:
        return None
    for position in SHAPING.get(node.op_type, ()):
        if (
            position < len(node.input)
            and node.input[position]
            and node.input[position] not in flow.const
        ):
            return index
    return None


@dataclass(frozen=True, slots=True)
class Scope:
    """A graph, the types of its tensors, and the scopes of its nodes' bodies.

    Bodies are stored under the first output of their node. Captured names belong to the enclosing
    scope: `outer` lists its tensors, `outer_const` its constants.
    """

    graph: OnnxGraph
    types: Mapping[str, OnnxType] = field(default_factory=dict)
    flow: Flow = field(default_factory=Flow)
    bodies: Mapping[str, tuple[Scope, ...]] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    outer_const: frozenset[str] = frozenset()
    # Tensors by the source of their type, in this order: inference alone, bodies, bodies that read
    # tensors of stated shape, trial runs, the file.
    settled: frozenset[str] = frozenset()
    proven: Mapping[str, OnnxType] = field(default_factory=dict)
    bounded: Mapping[str, OnnxType] = field(default_factory=dict)
    measured: Mapping[str, OnnxType] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    # Outputs of control flow without a type: a trial run may measure `steady` outputs; for other
    # outputs `reasons` says why there is no type.
    steady: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)

    def with_bodies(self) -> Iterator[Scope]:
        """Yield this scope and the scopes of all bodies in it."""
        yield self
        for inner in self.bodies.values():
            for body in inner:
                yield from body.with_bodies()

    def is_typed(self, name: str) -> bool:
        """Return whether element type and shape of a tensor are known."""
        return self.types.get(name, UNKNOWN).is_static

    def is_own_const(self, name: str) -> bool:
        """Return whether a tensor is a constant of this scope, not of the enclosing scope."""
        return name in self.flow.const and name not in self.outer_const

    def are_const(self, names: Collection[str]) -> bool:
        """Return whether all these tensors are constants; empty names are ignored."""
        return all(name in self.flow.const for name in names if name)
