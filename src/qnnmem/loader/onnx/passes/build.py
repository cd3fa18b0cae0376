"""Last pass: turn a shaped ONNX model into the frozen `ir.Model`, with notes on its validity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.loader.model_checks import check_model, unknown_inside
from qnnmem.loader.onnx.graph import OnnxGraph, attribute, bodies, integer, is_op, live, reads
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.loader.onnx.quant import Group, group, same_scale
from qnnmem.loader.onnx.scope import CONTROL, RESHAPING, SHAPING, Scope, is_deterministic
from qnnmem.loader.onnx.tensor import DTYPES, STRING, by_sizes, stored_bytes
from qnnmem.loader.onnx.well_formed import is_foreign
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.graph import OnnxGraph
    from qnnmem.loader.onnx.scope import Scope

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
    made = _build(model.resolved.path.stem, model.scope, _notes(model))
    check_model(model.resolved.path, made)
    given = model.resolved
    holds_for = inputs_it_holds_for(given.graph, model.scope, given.valued, given.stated)
    return replace(made, assumed=unknown_inside(_foreign(model)), holds_for=tuple(holds_for))


def _foreign(model: ShapedModel) -> list[str]:
    """Return the custom operators of a graph."""
    return [
        scope.graph.node[at].op_type
        for scope in model.scope.with_bodies()
        for at in live(scope.graph)
        if is_foreign(scope.graph.node[at])
    ]


def _notes(model: ShapedModel) -> Iterator[str]:
    yield from model.notes
    stated = model.resolved.stated
    scopes = list(model.scope.with_bodies())
    measured = sum(len(one.measured.keys() - stated.keys()) for one in scopes)
    if measured:
        yield f"tensor shapes measured by running the model: {measured}"
    declared = [name for one in scopes for name in sorted(one.declared)]
    if declared:
        yield (
            f"tensor shapes as the file declares them, not verified: {len(declared)} "
            f"({', '.join(quote(name) for name in declared[:5])})"
        )
    for name, declared_sizes in model.resolved.outputs.items():
        sizes = model.scope.types[name].shape or ()
        # With other input sizes than the file states, outputs differ from declared ones, too.
        if _contradicts(declared_sizes, sizes, rank_only=bool(stated)):
            said = by_sizes(size or "?" for size in declared_sizes)
            yield f"output {quote(name)} is declared as {said}, the model gives {by_sizes(sizes)}"


def _contradicts(declared: Sequence[int], sizes: Sequence[int], *, rank_only: bool) -> bool:
    """True if a declared shape, with 0 for free sizes, differs from the inferred one."""
    if len(declared) != len(sizes):
        return True
    pairs = zip(declared, sizes, strict=True)
    return not rank_only and any(said and said != size for said, size in pairs)


def _build(name: str, scope: Scope, notes: Iterable[str] = ()) -> Model:
    """Model of a scope.

    In the model of a body, captured tensors appear among the inputs of its ops but are neither
    inputs nor constants nor typed there: the model around owns them.
    """
    graph = scope.graph
    alive = live(graph)
    dead = _dead(scope, alive)
    outputs = tuple(dict.fromkeys(item.name for item in graph.output))
    inputs = tuple(item.name for item in graph.input)
    used = {*outputs, *(source for index in alive for source in reads(graph.node[index]))}
    ops = [
        *_constant_outputs(scope, outputs),
        *(_op(scope, found, used) for found in group(graph, alive, scope.flow.const)),
    ]
    made = {*inputs, *(result for op in ops for result in op.outputs)}
    # Constants are what steps read and neither a step nor the caller makes.
    read = dict.fromkeys(source for op in ops for source in op.inputs if source not in made)
    constants = tuple(
        source for source in read if source in scope.flow.const and source not in scope.outer_const
    )
    own = [*inputs, *constants, *outputs, *(result for op in ops for result in op.outputs)]
    tensors = {item: _tensor(scope, item) for item in own if item in made or item in read}
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
            *([f"ops left out because no output depends on them: {dead}"] if dead else []),
        ),
    )


def _computed_notes(graph: OnnxGraph, constants: Sequence[Tensor]) -> Iterator[str]:
    """Yield a note if computed constants take more bytes than the file stores."""
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
            f"constants take {total:,} bytes, the file stores {held:,}: {len(computed)} computed, "
            f"largest {quote(largest.name)} ({largest.nbytes:,})"
        )


def _dead(scope: Scope, alive: Iterable[int]) -> int:
    left_out = set(range(len(scope.graph.node))) - set(alive)
    return sum(
        not all(name in scope.flow.const for name in scope.graph.node[index].output)
        for index in left_out
    )


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
    """Make steps that copy constants to where the caller expects outputs.

    Their sources are all nodes the constant is computed from.
    """
    wanted = [
        name for name in outputs if name in scope.flow.const and name not in scope.outer_const
    ]
    if not wanted:
        return []
    maker = {name: at for at, node in enumerate(scope.graph.node) for name in node.output if name}
    return [
        Op(name, "Constant", (), (name,), sources=_makers(scope.graph, maker, name))
        for name in wanted
    ]


def _makers(graph: OnnxGraph, maker: Mapping[str, int], name: str) -> tuple[int, ...]:
    found: set[int] = set()
    stack = [name]
    while stack:
        at = maker.get(stack.pop())
        if at is not None and at not in found:
            found.add(at)
            stack.extend(reads(graph.node[at]))
    return tuple(sorted(found))


def _op(scope: Scope, found: Group, used: set[str]) -> Op:
    node = found.node
    effect = _effect(scope, found, used)
    outputs = found.outputs
    if effect is Effect.VIEW:
        outputs = outputs[:1]  # the unread mask of Dropout
    control = is_op(node, *CONTROL)
    inner = scope.bodies.get(node.output[0], ()) if control else ()
    label = node.name or node.output[0]
    return Op(
        name=label,
        type=node.op_type,
        inputs=tuple(found.inputs),
        outputs=tuple(outputs),
        effect=effect,
        sources=found.sources,
        bodies=tuple(_build(body.graph.name or label, body) for body in inner),
        repeats=is_op(node, "Loop", "Scan"),
    )


def _effect(scope: Scope, found: Group, used: set[str]) -> Effect:
    node = found.node
    if _is_view(scope, node, used):
        folded = bool(found.before or found.after)
        exact = not folded or same_scale(scope.graph, found, scope.types)
        return Effect.VIEW if exact else Effect.COMPUTE
    if is_op(node, *ELEMENTWISE) and _may_overwrite(scope, found):
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


def _may_overwrite(scope: Scope, found: Group) -> bool:
    """Whether an input of the output's size is read element by element.

    A small input that is broadcast can have as many bytes as a wide result of narrow elements
    (four floats compared into sixteen bools): overwriting that one would be wrong. So would be
    overwriting what a body captures.
    """
    result = _tensor(scope, found.outputs[0])
    rivals = [
        _tensor(scope, name)
        for name in found.inputs
        if name not in scope.flow.const and name in scope.types
    ]
    same = [rival for rival in rivals if rival.nbytes == result.nbytes]
    return bool(same) and all(
        rival.elements == result.elements and rival.name not in scope.outer for rival in same
    )


_SHOWN = 3
# Operators of ONNX Runtime whose output shapes depend on data; those of its others follow from the
# shapes of their inputs.
_BY_DATA = frozenset(
    (
        *("BeamSearch", "GreedySearch", "WhisperBeamSearch", "Sampling", "Tokenizer", "Range"),
        *("ConvTransposeWithDynamicPads", "DynamicTimeWarping", "ExpandDims", "Unique"),
    )
)
_DECIDING = {"If": (0,), "Loop": (0, 1)}  # inputs that choose a branch or the number of iterations


def inputs_it_holds_for(
    graph: OnnxGraph,
    scope: Scope,
    valued: Mapping[str, str],
    stated: Mapping[str, tuple[int, ...]],
) -> Iterator[str]:
    """Yield sentences about the inputs for which the plan holds.

    `graph` is the model before constants are folded, `scope` the same with every shape found.
    """
    for name, text in valued.items():
        node = _decided(graph.node, {name})
        if node is not None:  # a value used only in arithmetic changes no size
            yield f"holds for {quote(name)} = {text} only: {_named(node)} depends on it"
    makers: dict[str, onnx.NodeProto] = {}
    measured: list[str] = []
    for inner in scope.with_bodies():
        makers |= {name: node for node in inner.graph.node for name in node.output if name}
        measured += (name for name in inner.measured if _may_vary(makers.get(name)))
    for name in sorted(stated.keys() - {item.name for item in graph.input}):
        shape = "x".join(map(str, stated[name])) or "a scalar"
        yield f"holds while {_made(name, makers)} is no larger than the stated {shape}"
    measured = [name for name in measured if name not in stated]
    if measured:
        shown = ", ".join(_made(name, makers) for name in measured[:_SHOWN])
        more = f" and {len(measured) - _SHOWN} more" if len(measured) > _SHOWN else ""
        yield f"holds for inputs that give the shapes measured in a trial run: {shown}{more}"


def _decided(nodes: Iterable[onnx.NodeProto], known: set[str]) -> onnx.NodeProto | None:
    """Return the first node whose branch, iterations or output shape depend on `known` values."""
    known = set(known)
    for node in nodes:
        deciding = _DECIDING.get(node.op_type, SHAPING.get(node.op_type, ()))
        if any(at < len(node.input) and node.input[at] in known for at in deciding):
            return node
        if is_op(node, "Shape", "Size") or known.isdisjoint(reads(node)):
            continue
        known.update(filter(None, node.output))
        for body in bodies(node):
            if found := _decided(body.node, known):
                return found
    return None


def _may_vary(node: onnx.NodeProto | None) -> bool:
    """True if only a trial run shows a node's output shape."""
    if node is None:
        return False
    return is_op(node, *CONTROL) or is_foreign(node) or node.op_type in _BY_DATA


def _made(name: str, makers: Mapping[str, onnx.NodeProto]) -> str:
    return quote(name) + (f" of {_named(makers[name])}" if name in makers else "")


def _named(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {quote(node.name or node.output[0])}"
