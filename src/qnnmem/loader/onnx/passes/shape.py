"""Fifth pass: gives every tensor of the graph and its bodies a type.

    repeat until every type is known:
        fold and shape each body whose outer tensors are known, like a graph
        if this gives new types of outputs, infer and fold again
        otherwise measure the missing types in a trial run, then fold again

The output types of If, Loop and Scan follow from those of their bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError
from qnnmem.loader.onnx.graph import (
    AnyGraph,
    OnnxGraph,
    attribute,
    bodies,
    captured,
    integer,
    is_op,
    is_quant,
    live,
    opset_of,
    reads,
    with_bodies,
)
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.passes.fold import (
    FoldedModel,
    compute_constants,
    fold_branches,
    fold_graph,
    infer_scope,
    trials_of,
)
from qnnmem.loader.onnx.passes.resolve import ResolvedModel
from qnnmem.loader.onnx.refusal import (
    check_scope,
    dependent_shapes,
    refuse_dependent,
    unknown_shape,
)
from qnnmem.loader.onnx.scope import CONTROL, Scope, is_deterministic
from qnnmem.loader.onnx.tensor import UNKNOWN, OnnxType, stored_type, value_info
from qnnmem.loader.onnx.trial import (
    Trials,
    compute_values,
    measure_types,
    read_scalar,
    shape_as_constant,
)
from qnnmem.text import by_sizes, quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.trial import TrialChild

# Each round settles a control-flow node or is the last one; the time limit ends the loop long
# before this number of rounds.
_MAX_ROUNDS = 100_000


@dataclass(frozen=True, slots=True)
class ShapedModel:
    """A model with a fixed type for every needed tensor."""

    resolved: ResolvedModel
    scope: Scope
    notes: tuple[str, ...] = ()  # notes from trying the sizes


@stage("shape")
def shape(model: FoldedModel, child: TrialChild) -> ShapedModel:
    """Return the model with a type for every tensor."""
    return ShapedModel(model.resolved, shape_graph(trials_of(model.resolved, child), model.scope))


@stage("shape")
def shape_graph(trials: Trials, scope: Scope) -> Scope:
    """Return the folded scope with a type for every tensor; Shape nodes become constants."""
    for _ in range(_MAX_ROUNDS):
        scope, news = _examine_bodies(trials, scope)
        if news:
            scope = fold_branches(trials, infer_scope(trials, scope))
            continue
        missing = _missing(scope)
        if not missing:
            check_scope(trials, scope)
            return _with_constants(scope)
        scope, news = _measure(trials, scope, missing)
        # Even without new types, the bodies examined above change which tensors depend on data.
        scope = fold_branches(trials, infer_scope(trials, scope) if news else scope)
    raise LoadError(trials.path, "has more control flow than can be resolved")


def _with_constants(scope: Scope) -> Scope:
    """Return the scope with Shape and Size nodes replaced by constants, where possible.

    Nodes that feed only the replaced nodes become dead.
    """
    nodes = []
    for node in scope.graph.node:
        constant = None
        if is_op(node, "Shape", "Size") and node.output[0] in scope.flow.const:
            constant = shape_as_constant(node, scope.types)
        nodes.append(node if constant is None else constant)
    return replace(scope, graph=replace(scope.graph, node=tuple(nodes)))


def _examine_bodies(trials: Trials, scope: Scope) -> tuple[Scope, bool]:
    """Shape the bodies whose outer tensors have types.

    Return the new scope, and whether the type of a node's output became known.
    """
    news = False
    for index, node in enumerate(scope.graph.node):
        if not is_op(node, *CONTROL) or not node.output or node.output[0] in scope.bodies:
            continue
        names = reads(node)
        if scope.are_const(names):
            continue  # computed once, with the constants
        if all(name in scope.flow.const or scope.is_typed(name) for name in names):
            scope, settled = _examine_node(trials, scope, index)
            news = news or settled
    return scope, news


def _examine_node(trials: Trials, scope: Scope, index: int) -> tuple[Scope, bool]:
    node = scope.graph.node[index]
    check_form(trials, node)
    names = {*node.input, *(name for body in bodies(node) for name in captured(body))}
    constants = compute_constants(trials, scope, sorted(names & scope.flow.const))
    typed = {**scope.types, **{name: stored_type(item) for name, item in constants.items()}}
    formal = formal_inputs(trials.path, node, typed)
    inner = tuple(_shape_body(trials, body, formal, typed, constants) for body in bodies(node))
    results = outcome(trials, node, inner, typed, constants)
    nodes = list(scope.graph.node)
    nodes[index] = with_bodies(node, [body.graph for body in inner])
    scope = replace(
        scope,
        graph=replace(scope.graph, node=tuple(nodes)),
        bodies={**scope.bodies, node.output[0]: inner},
    )
    return _with_outcome(scope, node, results)


def _with_outcome(
    scope: Scope, node: onnx.NodeProto, results: Sequence[OnnxType | str]
) -> tuple[Scope, bool]:
    """Add a control-flow node's output types to the scope; also return whether any is known."""
    named = {name: result for name, result in zip(node.output, results, strict=False) if name}
    kinds = {name: result for name, result in named.items() if isinstance(result, OnnxType)}
    reasons = {name: result for name, result in named.items() if isinstance(result, str)}
    steady = {name for name, reason in reasons.items() if reason is STEADY}
    # Types that follow from a stated shape are upper bounds, which prove nothing.
    certain = scope.flow.culprit.keys().isdisjoint(reads(node))
    scope = replace(
        scope,
        types={**scope.types, **kinds},  # the next node may need them
        proven={**scope.proven, **kinds} if certain else scope.proven,
        bounded=scope.bounded if certain else {**scope.bounded, **kinds},
        steady=scope.steady | steady,
        reasons={**scope.reasons, **{n: reasons[n] for n in reasons if n not in steady}},
    )
    return scope, any(isinstance(result, OnnxType) or result is STEADY for result in results)


def _shape_body(
    trials: Trials,
    body: onnx.GraphProto,
    formal: Sequence[OnnxType],
    typed: Mapping[str, OnnxType],
    constants: Mapping[str, onnx.TensorProto],
) -> Scope:
    """Return the scope of a body, shaped as a graph with captured tensors as inputs."""
    outer = captured(body)
    outer_const = frozenset(name for name in outer if name in constants)
    lent = [value_info(name, typed[name]) for name in outer if name not in outer_const]
    own = [value_info(item.name, k) for item, k in zip(body.input, formal, strict=False)]
    alone = OnnxGraph(
        body.name,
        tuple(body.node),
        (*own, *lent),
        tuple(body.output),
        (*body.initializer, *(constants[name] for name in outer if name in outer_const)),
    )
    scope = shape_graph(trials, fold_graph(trials, alone))
    stored = tuple(item for item in scope.graph.initializer if item.name not in outer_const)
    graph = replace(scope.graph, input=tuple(own), initializer=stored)
    lent_names = frozenset(outer) - outer_const
    return replace(scope, graph=graph, outer_const=outer_const, outer=lent_names)


def _missing(scope: Scope) -> list[str]:
    """Return the needed tensors without a known type."""
    needed: dict[str, None] = {}
    for index in live(scope.graph):
        node = scope.graph.node[index]
        if scope.are_const(node.output):
            # Consumers of dequantized weights read the stored integers.
            names = list(node.input) if is_quant(node, "DequantizeLinear") else []
        else:
            # The mask of a Dropout that does nothing needs no type, unless a node reads it.
            idle = is_op(node, "Dropout") and is_deterministic(node)
            names = [*reads(node), *node.output[: 1 if idle else None]]
        needed.update(dict.fromkeys(filter(None, names)))
    needed.update(dict.fromkeys(item.name for item in scope.graph.output))
    return [name for name in needed if not scope.is_typed(name)]


def _measure(trials: Trials, scope: Scope, missing: list[str]) -> tuple[Scope, bool]:
    """Add types measured in a trial run to the scope; return it, and whether to infer again."""
    # A tensor of stated shape lacks only its element type; once that is measured, inference can
    # continue.
    missing = [name for name in missing if name in trials.stated] or missing
    refuse_dependent(trials, scope, [name for name in missing if name not in trials.stated])
    try:
        types, unsteady = measure_types(trials, scope.graph, scope.types, missing, scope.flow.const)
    except ChildFailed as exc:
        declared = _trust_declared(trials, scope, missing)
        if not declared:
            raise unknown_shape(trials, scope, missing[0], str(exc)) from exc
        return replace(scope, declared=scope.declared | declared), True
    dependent = [name for name in missing if name in unsteady and name not in trials.stated]
    if dependent:
        raise dependent_shapes(trials, scope, dependent)
    measured = {
        name: OnnxType(kind.elem, trials.stated.get(name, kind.shape))
        for name, kind in types.items()
    }
    scope = replace(
        scope, measured={**scope.measured, **measured}, types={**scope.types, **measured}
    )
    return scope, not trials.stated.keys().isdisjoint(missing)


def _trust_declared(trials: Trials, scope: Scope, missing: list[str]) -> frozenset[str]:
    """Return custom-op outputs with unused declared types; empty if `missing` has none of them."""
    results = {name for node in scope.graph.node for name in node.output}
    usable = frozenset(results & trials.declared.keys()) - scope.declared
    return usable if usable.intersection(missing) else frozenset()


def find_type(trials: Trials, graph: AnyGraph, name: str) -> OnnxType:
    """Return a tensor's type after folding and shaping only the nodes that compute the tensor."""
    import onnx

    output = onnx.ValueInfoProto(name=name)
    whole = OnnxGraph("part", tuple(graph.node), tuple(graph.input), (output,), ())
    nodes = tuple(whole.node[index] for index in live(whole))
    read = {name, *(source for node in nodes for source in reads(node))}
    stored = tuple(item for item in graph.initializer if item.name in read)
    part = OnnxGraph("part", nodes, whole.input, whole.output, stored)
    return shape_graph(trials, fold_graph(trials, part)).types.get(name, UNKNOWN)


def write_typed(model: ShapedModel) -> onnx.ModelProto:
    """Return a new ONNX model with value infos for all tensors.

    External data is not moved: locations were checked and are relative to the model's folder.
    """
    scope = model.scope
    graph = scope.graph
    declared = {item.name for item in (*graph.input, *graph.output)}
    declared |= {item.name for item in graph.initializer}
    proto = model.resolved.proto(graph)
    for name, kind in scope.types.items():
        if kind.is_static and name not in declared:
            proto.graph.value_info.append(value_info(name, kind))
    for item in proto.graph.output:
        item.CopyFrom(value_info(item.name, scope.types[item.name]))
    return proto


_INT64, _BOOL = 7, 9
_MAX_UPDATES = 64
_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}

Result = OnnxType | str  # a type, or the reason why there is none
STEADY = "is the same in each run"  # independent of data: a trial run may measure the type


def check_form(trials: Trials, node: onnx.NodeProto) -> None:
    """Raise LoadError for control flow whose bodies lack required inputs or outputs."""
    attributes = (attribute(node, name) for name in _BODIES[node.op_type])
    inner = [item.g for item in attributes if item is not None and item.HasField("g")]
    good = len(inner) == len(_BODIES[node.op_type]) == len(list(bodies(node)))
    good = good and all(node.output) and all(len(body.output) >= len(node.output) for body in inner)
    if is_op(node, "If"):
        good = good and all(node.input) and len(node.input) == 1
    elif is_op(node, "Loop"):
        good = good and len(node.input) >= 1 and all(node.input[2:])
        good = good and len(inner[0].input) == max(2, len(node.input))
        good = good and len(inner[0].output) == 1 + len(node.output) >= len(node.input) - 1
    else:  # Scan of operator set 8 had another form
        good = good and opset_of(trials.head) >= 9 and all(node.input)
        good = good and len(inner[0].input) == len(node.input)
        good = good and len(inner[0].output) == len(node.output)
    if not good:
        who = quote(node.name or next(iter(node.output), ""))
        raise LoadError(trials.path, f"{node.op_type} {who} is malformed")


def formal_inputs(
    path: Path, node: onnx.NodeProto, typed: Mapping[str, OnnxType]
) -> list[OnnxType]:
    """Return the types of the formal inputs of a node's bodies."""
    if is_op(node, "If"):
        return []
    if is_op(node, "Loop"):
        carried = [typed[name] for name in node.input[2:]]
        return [OnnxType(_INT64, ()), OnnxType(_BOOL, ()), *carried]
    states, scans = _scan_parts(path, node, typed)
    return [*states, *(OnnxType(kind.elem, _without(kind, axis)) for kind, axis in scans)]


def outcome(
    trials: Trials,
    node: onnx.NodeProto,
    scopes: Sequence[Scope],
    typed: Mapping[str, OnnxType],
    constants: Mapping[str, onnx.TensorProto],
) -> list[Result]:
    """Return the types of a node's outputs, from the types in its bodies."""
    returned = [[scope.types[item.name] for item in scope.graph.output] for scope in scopes]
    if is_op(node, "If"):
        return [_same(kinds) for kinds in zip(*returned, strict=False)]
    if is_op(node, "Loop"):
        return _loop(trials, node, scopes[0], returned[0], constants, typed)
    return _scan(trials.path, node, returned[0], typed)


def _same(kinds: Sequence[OnnxType]) -> Result:
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    shapes = " or ".join(by_sizes(kind.shape or ()) for kind in kinds)
    return f"depends on the branch taken ({shapes})"


def _loop(
    trials: Trials,
    node: onnx.NodeProto,
    scope: Scope,
    returned: list[OnnxType],
    constants: Mapping[str, onnx.TensorProto],
    typed: Mapping[str, OnnxType],
) -> list[Result]:
    count = len(node.input) - 2
    carried = [typed[name] for name in node.input[2:]]
    for name, before, after in zip(node.output, carried, returned[1 : 1 + count], strict=False):
        if before != after:
            raise LoadError(
                trials.path,
                f"{quote(name)} in Loop {quote(node.name or name)} changes its shape "
                "between iterations, which is not supported",
            )
    results: list[Result] = list(carried)
    trips = _trips(trials, node, scope, constants)
    steady = trips is None and _is_steady(node, scope, constants)
    for kind in returned[1 + count :]:
        if trips is None:
            results.append(STEADY if steady else "depends on the number of iterations")
        else:
            results.append(OnnxType(kind.elem, (trips, *(kind.shape or ()))))
    return results


def _trips(
    trials: Trials,
    node: onnx.NodeProto,
    scope: Scope,
    constants: Mapping[str, onnx.TensorProto],
) -> int | None:
    """Return the number of iterations of a Loop; None if it depends on data."""
    limit, start = node.input[0], node.input[1] if len(node.input) > 1 else ""
    if limit not in constants or (start and start not in constants):
        return None
    if start and not read_scalar(trials, constants[start]):
        return 0
    if not _keeps_condition(trials, scope):
        return None
    return max(0, read_scalar(trials, constants[limit]))


def _keeps_condition(trials: Trials, scope: Scope) -> bool:
    """Return whether a Loop body returns its incoming condition, or a constant that is true."""
    graph = scope.graph
    name = graph.output[0].name
    for node in reversed(graph.node):
        if name in node.output and is_op(node, "Identity", "Cast"):
            name = node.input[0]
    if name == graph.input[1].name:
        return True
    if not scope.is_own_const(name):
        return False
    try:
        value = compute_values(trials, graph, scope.types, [name], scope.flow.const)[name]
    except ChildFailed:
        return False
    return bool(read_scalar(trials, value))


def _is_steady(
    node: onnx.NodeProto, scope: Scope, constants: Mapping[str, onnx.TensorProto]
) -> bool:
    """Return whether only constants decide how often a Loop iterates."""
    graph = scope.graph
    if any(name and name not in constants for name in node.input[:2]):
        return False
    # Start with the carried values that begin as constants; remove those whose update depends on
    # data.
    fixed = {graph.input[0].name, graph.input[1].name}
    carried = list(zip(graph.input[2:], node.input[2:], graph.output[1:], strict=False))
    fixed |= {inner.name for inner, outer, _ in carried if outer in constants}
    for _ in range(_MAX_UPDATES):
        known = _following(graph, scope.flow.const | fixed)
        kept = fixed - {inner.name for inner, _, update in carried if update.name not in known}
        if kept == fixed:
            return graph.output[0].name in known
        fixed = kept
    return False


def _following(graph: OnnxGraph, known: set[str]) -> set[str]:
    known = set(known)
    for node in graph.node:
        if all(name in known for name in reads(node)) and is_deterministic(node):
            known.update(node.output)
    return known


def _scan_parts(
    path: Path, node: onnx.NodeProto, typed: Mapping[str, OnnxType]
) -> tuple[list[OnnxType], list[tuple[OnnxType, int]]]:
    kinds = [typed[name] for name in node.input if name]
    count = integer(node, "num_scan_inputs", 0)
    if len(kinds) < len(node.input) or not 0 < count <= len(kinds):
        raise LoadError(path, f"Scan {quote(node.name or node.output[0])} is malformed")
    scans = kinds[len(kinds) - count :]
    axes = _axes(node, "scan_input_axes", count)
    for kind, axis in zip(scans, axes, strict=True):
        rank = len(kind.shape or ())
        if not -rank <= axis < rank:
            raise LoadError(path, f"Scan {quote(node.name or node.output[0])} has an invalid axis")
    return kinds[: len(kinds) - count], list(zip(scans, axes, strict=True))


def _axes(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    item = attribute(node, name)
    axes = list(item.ints) if item is not None else []
    return [*axes, *[0] * (count - len(axes))][:count]


def _without(kind: OnnxType, axis: int) -> tuple[int, ...]:
    shape = list(kind.shape or ())
    del shape[axis]
    return tuple(shape)


def _scan(
    path: Path, node: onnx.NodeProto, returned: list[OnnxType], typed: Mapping[str, OnnxType]
) -> list[Result]:
    states, scans = _scan_parts(path, node, typed)
    first, axis = scans[0]
    length = (first.shape or ())[axis]
    for name, before, after in zip(node.output, states, returned, strict=False):
        if before != after:
            raise LoadError(path, f"state {quote(name)} of Scan changes its shape in the loop body")
    results: list[Result] = list(states)
    stacked = returned[len(states) :]
    for kind, axis in zip(stacked, _axes(node, "scan_output_axes", len(stacked)), strict=True):
        shape = list(kind.shape or ())
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, length)
        results.append(OnnxType(kind.elem, tuple(shape)))
    return results
