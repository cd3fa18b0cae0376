"""Last pass: turns a shaped ONNX model into the frozen `ir.Model`, with notes on its validity.

A QDQ graph is read as the quantized graph that it represents:

    QuantizeLinear, the only reader of its input   ->  the producer writes the integers itself
    DequantizeLinear                               ->  its consumers read the integers themselves

A float tensor remains if something else needs it: a graph output, or a body that captures it.
Scales and zero points must be constant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.loader.model_checks import check_model, unknown_inside
from qnnmem.loader.onnx.graph import (
    OnnxGraph,
    attribute,
    bodies,
    captured,
    integer,
    is_op,
    is_quant,
    live,
    reads,
)
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.loader.onnx.scope import CONTROL, RESHAPING, SHAPING, Scope, is_deterministic
from qnnmem.loader.onnx.tensor import DTYPES, STRING, stored_bytes
from qnnmem.loader.onnx.well_formed import is_foreign
from qnnmem.text import by_sizes, counted, listed, quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.tensor import OnnxType


@dataclass(slots=True)
class Group:
    """A node together with the quantize and dequantize nodes folded into it."""

    node: onnx.NodeProto
    inputs: list[str]
    outputs: list[str]
    before: list[int] = field(default_factory=list)
    index: int = 0
    after: list[int] = field(default_factory=list)

    @property
    def sources(self) -> tuple[int, ...]:
        """Indexes of the nodes, in an executable order."""
        return (*self.before, self.index, *self.after)


def group(graph: OnnxGraph, alive: Collection[int], const: Collection[str]) -> list[Group]:
    """Return each live, non-constant node with the quantization nodes folded into it."""
    folding = _Folding(graph, alive, const)
    folded = folding.quantize | folding.dequantize
    return [folding.group(index) for index in folding.active if index not in folded]


class _Folding:
    """Live, non-constant nodes of a graph, and the quantization nodes to fold into these nodes."""

    def __init__(self, graph: OnnxGraph, alive: Collection[int], const: Collection[str]) -> None:
        self.nodes = list(graph.node)
        self.const = const
        self.active = [index for index in sorted(alive) if not self._is_folded_away(index)]
        self.readers: dict[str, list[int]] = {}
        for index in self.active:
            for name in reads(self.nodes[index]):
                self.readers.setdefault(name, []).append(index)
        self.kept = {item.name for item in graph.output}
        for index in self.active:
            for body in bodies(self.nodes[index]):
                self.kept.update(captured(body))
        self.maker = {
            name: index for index in sorted(alive) for name in self.nodes[index].output if name
        }
        self.dequantize = {index for index in self.active if self._is_free_dequantize(index)}
        self.quantize = {index for index in self.active if self._is_free_quantize(index)}

    def group(self, index: int) -> Group:
        """Return a node with the quantize and dequantize nodes folded into it."""
        node = self.nodes[index]
        group = Group(node, [], [], index=index)
        for name in reads(node):
            group.inputs.extend(self._read(name, group.before))
        for name in filter(None, node.output):
            group.outputs.append(self._written(name, group))
        group.inputs = list(dict.fromkeys(group.inputs))
        return group

    def _read(self, name: str, before: list[int]) -> list[str]:
        maker = self.maker.get(name)
        if maker is None or name in self.kept:
            return [name]
        weights = name in self.const and self._has_constant_scale(maker, "DequantizeLinear")
        if maker not in self.dequantize and not weights:
            return [name]
        before.append(maker)
        return reads(self.nodes[maker])

    def _written(self, name: str, group: Group) -> str:
        readers = self.readers.get(name, [])
        if len(readers) != 1 or readers[0] not in self.quantize:
            return name
        quantize = self.nodes[readers[0]]
        group.after.append(readers[0])
        group.inputs.extend(filter(None, quantize.input[1:]))
        return str(quantize.output[0])

    def _is_folded_away(self, index: int) -> bool:
        return all(name in self.const for name in self.nodes[index].output if name)

    def _has_constant_scale(self, index: int, kind: str) -> bool:
        node = self.nodes[index]
        return is_quant(node, kind) and all(name in self.const for name in node.input[1:] if name)

    def _is_free_dequantize(self, index: int) -> bool:
        name = self.nodes[index].output[0]
        return self._has_constant_scale(index, "DequantizeLinear") and name not in self.kept

    def _is_free_quantize(self, index: int) -> bool:
        node = self.nodes[index]
        if not self._has_constant_scale(index, "QuantizeLinear"):
            return False
        name = node.input[0]
        maker = self.maker.get(name)
        if maker is None or name in self.kept or name in self.const:
            return False
        if maker in self.dequantize or is_op(self.nodes[maker], *CONTROL):
            return False
        # This node must be the only reader, through its data input: scale and zero point are
        # constants.
        return self.readers[name] == [index] and not is_quant(self.nodes[maker], "QuantizeLinear")


def _same_scale(graph: OnnxGraph, group: Group, types: Mapping[str, OnnxType]) -> bool:
    """Return whether the dequantize and quantize nodes of a group cancel each other exactly."""
    if len(group.before) != 1 or len(group.after) != 1:
        return False
    before, after = graph.node[group.before[0]], graph.node[group.after[0]]
    names = [*before.input[1:3], *after.input[1:3]]
    # Scales per axis depend on the axis, which the op between the two nodes may move.
    if before.attribute or after.attribute or any(types[name].shape for name in names if name):
        return False
    if types[before.input[0]].elem != types[after.output[0]].elem:
        return False
    return _parameters(graph, before) == _parameters(graph, after)


def _parameters(graph: OnnxGraph, node: onnx.NodeProto) -> list[object]:
    """Return the stored scale and zero point, or their names if they are not stored."""
    names = [*node.input[1:3], ""][:2]
    stored = {item.name: item.raw_data for item in graph.initializer if item.name in names}
    return [stored.get(name) or name for name in names]


_VIEWS = (*RESHAPING, "Identity", "Dropout")
_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu"),
    *("Clip", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *("IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round"),
    *("Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish"),
    *("Tan", "Tanh", "ThresholdedRelu"),
)
_BINARY = (
    *("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "Div", "Equal"),
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
    *("Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
)
ELEMENTWISE = frozenset((*_UNARY, *_BINARY))


@stage("build")
def build(model: ShapedModel) -> Model:
    """Return the `ir.Model`, named after its file."""
    resolved = model.resolved
    built = _build(resolved.path.stem, model.scope, _notes(model))
    check_model(resolved.path, built)
    holds_for = inputs_it_holds_for(resolved.graph, model.scope, resolved.valued, resolved.stated)
    return replace(built, assumed=unknown_inside(_foreign(model)), holds_for=tuple(holds_for))


def _foreign(model: ShapedModel) -> list[str]:
    """Return the types of live custom operators in a model and its bodies."""
    graphs = [scope.graph for scope in model.scope.with_bodies()]
    nodes = (graph.node[index] for graph in graphs for index in live(graph))
    return [node.op_type for node in nodes if is_foreign(node)]


def _notes(model: ShapedModel) -> Iterator[str]:
    yield from model.notes
    stated = model.resolved.stated
    scopes = list(model.scope.with_bodies())
    measured = sum(len(scope.measured.keys() - stated.keys()) for scope in scopes)
    if measured:
        yield f"shapes measured in a trial run: {measured}"
    declared = [name for scope in scopes for name in sorted(scope.declared)]
    if declared:
        yield (
            f"shapes taken from the file without verification: {len(declared)} "
            f"({', '.join(quote(name) for name in declared[:5])})"
        )
    for name, declared_sizes in model.resolved.outputs.items():
        sizes = model.scope.types[name].shape or ()
        # If input sizes differ from the file's, output sizes differ from the declared ones too.
        if _contradicts(declared_sizes, sizes, rank_only=bool(stated)):
            shape = by_sizes(size or "?" for size in declared_sizes)
            yield f"output {quote(name)} is declared as {shape} but has shape {by_sizes(sizes)}"


def _contradicts(declared: Sequence[int], sizes: Sequence[int], *, rank_only: bool) -> bool:
    """Return whether a declared shape (0 for an open size) differs from the inferred shape."""
    if len(declared) != len(sizes):
        return True
    pairs = zip(declared, sizes, strict=True)
    return not rank_only and any(wanted and wanted != size for wanted, size in pairs)


def _build(name: str, scope: Scope, notes: Iterable[str] = ()) -> Model:
    """Return the model of a scope.

    In the model of a body, captured tensors appear among the inputs of its ops, but not among its
    inputs, constants or tensors: they belong to the outer model.
    """
    graph = scope.graph
    alive = live(graph)
    dead = _dead(scope, alive)
    outputs = tuple(dict.fromkeys(item.name for item in graph.output))
    inputs = tuple(item.name for item in graph.input)
    used = {*outputs, *(source for index in alive for source in reads(graph.node[index]))}
    groups = group(graph, alive, scope.flow.const)
    ops = [*_constant_outputs(scope, outputs), *(_op(scope, item, used) for item in groups)]
    results = [result for op in ops for result in op.outputs]
    defined_here = {*inputs, *results}
    # Constants are tensors that steps read, but that neither a step nor the caller makes.
    read = dict.fromkeys(source for op in ops for source in op.inputs if source not in defined_here)
    constants = tuple(filter(scope.is_own_const, read))
    own = (*inputs, *constants, *outputs, *results)
    tensors = {item: _tensor(scope, item) for item in own if item in defined_here or item in read}
    return Model(
        name=name,
        format="onnx",
        tensors=tensors,
        ops=_uniquely_named(ops),
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        notes=(
            *notes,
            *_computed_notes(graph, [tensors[item] for item in constants]),
            *([f"ops removed because no output depends on them: {dead}"] if dead else []),
        ),
    )


def _computed_notes(graph: OnnxGraph, constants: Sequence[Tensor]) -> Iterator[str]:
    """Yield a note if all constants, stored and computed, take more bytes than the file stores."""
    stored = {item.name: stored_bytes(item) for item in graph.initializer}
    for node in graph.node:
        if is_op(node, "Constant"):
            value = attribute(node, "value")
            stored[node.output[0]] = 0 if value is None else stored_bytes(value.t)
    computed = [item for item in constants if item.name not in stored]
    total, held = sum(item.nbytes for item in constants), sum(stored.values())
    if computed and total > held:
        largest = max(computed, key=lambda item: item.nbytes)
        yield (
            f"constants take {total:,} bytes, but the file stores only {held:,} of them; the rest "
            f"is computed: {counted(len(computed), 'constant')} (largest: {quote(largest.name)}, "
            f"{largest.nbytes:,} bytes)"
        )


def _dead(scope: Scope, alive: Iterable[int]) -> int:
    """Return the number of dead nodes, without those that compute constants."""
    dead = set(range(len(scope.graph.node))) - set(alive)
    return sum(not scope.flow.const.issuperset(scope.graph.node[index].output) for index in dead)


def _tensor(scope: Scope, name: str) -> Tensor:
    kind = scope.types[name]
    # Strings are only accepted as constants, whose bytes are not planned.
    dtype = DType.UINT8 if kind.elem == STRING else DTYPES[kind.elem]
    return Tensor(name, dtype, kind.shape or ())


def _uniquely_named(ops: Iterable[Op]) -> tuple[Op, ...]:
    used: set[str] = set()
    named = []
    for op in ops:
        name, number = op.name, 1
        while name in used:
            number += 1
            name = f"{op.name}#{number}"
        used.add(name)
        named.append(replace(op, name=name))
    return tuple(named)


def _constant_outputs(scope: Scope, outputs: Iterable[str]) -> list[Op]:
    """Return one op for each constant that is a graph output; the op copies the constant.

    The `sources` of such an op are all nodes that compute the constant.
    """
    wanted = list(filter(scope.is_own_const, outputs))
    nodes = scope.graph.node if wanted else ()
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    return [
        Op(name, "Constant", (), (name,), sources=_sources(scope.graph, makers, name))
        for name in wanted
    ]


def _sources(graph: OnnxGraph, makers: Mapping[str, int], name: str) -> tuple[int, ...]:
    """Return the indexes of the nodes that a tensor depends on, in order."""
    indexes: set[int] = set()
    stack = [name]
    while stack:
        index = makers.get(stack.pop())
        if index is not None and index not in indexes:
            indexes.add(index)
            stack.extend(reads(graph.node[index]))
    return tuple(sorted(indexes))


def _op(scope: Scope, group: Group, used: set[str]) -> Op:
    node = group.node
    effect = _effect(scope, group, used)
    outputs = group.outputs
    if effect is Effect.VIEW:
        outputs = outputs[:1]  # the unread mask of Dropout
    control = is_op(node, *CONTROL)
    inner = scope.bodies.get(node.output[0], ()) if control else ()
    label = node.name or node.output[0]
    return Op(
        name=label,
        type=node.op_type,
        inputs=tuple(group.inputs),
        outputs=tuple(outputs),
        effect=effect,
        sources=group.sources,
        bodies=tuple(_build(body.graph.name or label, body) for body in inner),
        repeats=is_op(node, "Loop", "Scan"),
    )


def _effect(scope: Scope, group: Group, used: set[str]) -> Effect:
    node = group.node
    if _is_view(scope, node, used):
        folded = bool(group.before or group.after)
        exact = not folded or _same_scale(scope.graph, group, scope.types)
        return Effect.VIEW if exact else Effect.COMPUTE
    if is_op(node, *ELEMENTWISE) and _may_overwrite(scope, group):
        return Effect.ELEMENTWISE
    return Effect.COMPUTE


def _is_view(scope: Scope, node: onnx.NodeProto, used: set[str]) -> bool:
    source = node.input[0] if node.input else ""
    if source in scope.flow.const or source not in scope.types:
        return False
    if is_op(node, "Dropout"):
        return is_deterministic(node) and used.isdisjoint(node.output[1:])
    if is_op(node, "Cast"):
        return integer(node, "to", 0) == scope.types[source].elem
    return is_op(node, *_VIEWS)


def _may_overwrite(scope: Scope, group: Group) -> bool:
    """Return True if the output can safely overwrite every input of the same size in bytes.

    Each such input must have as many elements as the output. A small broadcast input can have as
    many bytes as a wide result of narrow elements (four floats compared into sixteen bools), but
    its values are still needed for other elements. A tensor that a body captures must not be
    overwritten either.
    """
    result = _tensor(scope, group.outputs[0])
    inputs = [
        _tensor(scope, name)
        for name in group.inputs
        if name not in scope.flow.const and name in scope.types
    ]
    same = [tensor for tensor in inputs if tensor.nbytes == result.nbytes]
    return bool(same) and all(
        tensor.elements == result.elements and tensor.name not in scope.outer for tensor in same
    )


_SHOWN = 3
# Operators of ONNX Runtime whose output shapes depend on data; the shapes of other outputs follow
# from the shapes of the inputs.
_BY_DATA = frozenset(
    (
        *("BeamSearch", "GreedySearch", "WhisperBeamSearch", "Sampling", "Tokenizer", "Range"),
        *("ConvTransposeWithDynamicPads", "DynamicTimeWarping", "ExpandDims", "Unique"),
    )
)
_DECIDING = {"If": (0,), "Loop": (0, 1)}  # inputs that select a branch or the number of iterations


def inputs_it_holds_for(
    graph: OnnxGraph,
    scope: Scope,
    valued: Mapping[str, str],
    stated: Mapping[str, tuple[int, ...]],
) -> Iterator[str]:
    """Yield sentences about the inputs for which the plan is valid.

    `graph` is the model before constants are folded, `scope` the same model with all shapes
    inferred.
    """
    for name, text in valued.items():
        node = _decided(graph.node, {name})
        if node is not None:  # a value used only in arithmetic changes no size
            value = f"{quote(name)} = {text}"
            yield f"the plan is valid only for {value}, on which {_named(node)} depends"
    makers: dict[str, onnx.NodeProto] = {}
    measured: list[str] = []
    for inner in scope.with_bodies():
        makers |= {name: node for node in inner.graph.node for name in node.output if name}
        measured += (name for name in inner.measured if _may_vary(makers.get(name)))
    for name in sorted(stated.keys() - {item.name for item in graph.input}):
        shape = by_sizes(stated[name], "a scalar")
        tensor = _made(name, makers)
        yield f"the plan is valid while the shape of {tensor} stays within the given {shape}"
    measured = [name for name in measured if name not in stated]
    if measured:
        names = listed([_made(name, makers) for name in measured], _SHOWN)
        yield f"the plan is valid while these shapes stay as measured in a trial run: {names}"


def _decided(nodes: Iterable[onnx.NodeProto], known: set[str]) -> onnx.NodeProto | None:
    """Return the first node whose branch, iterations or output shape depend on `known` values."""
    known = set(known)
    for node in nodes:
        deciding = _DECIDING.get(node.op_type, SHAPING.get(node.op_type, ()))
        if not known.isdisjoint(node.input[i] for i in deciding if i < len(node.input)):
            return node
        if is_op(node, "Shape", "Size") or known.isdisjoint(reads(node)):
            continue
        known.update(filter(None, node.output))
        for body in bodies(node):
            if decided := _decided(body.node, known):
                return decided
    return None


def _may_vary(node: onnx.NodeProto | None) -> bool:
    """Return whether only a trial run can find a node's output shape."""
    if node is None:
        return False
    return is_op(node, *CONTROL) or is_foreign(node) or node.op_type in _BY_DATA


def _made(name: str, makers: Mapping[str, onnx.NodeProto]) -> str:
    return quote(name) + (f" of {_named(makers[name])}" if name in makers else "")


def _named(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {quote(node.name or node.output[0])}"
