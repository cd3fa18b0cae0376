"""Fifth pass: give every tensor of the graph and its bodies a type.

repeat until every type is known:
    fold and shape a body like a graph of its own once its outer tensors are known
    where this settles outputs, or a trial run finds types, infer and fold again
    measure the remaining types in a trial run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError
from qnnmem.loader.onnx.control import STEADY, check_form, formal_inputs, outcome
from qnnmem.loader.onnx.graph import (
    AnyGraph,
    OnnxGraph,
    bodies,
    captured,
    is_op,
    is_quant,
    live,
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
from qnnmem.loader.onnx.tensor import UNKNOWN, OnnxType, value_info
from qnnmem.loader.onnx.trial.questions import Trials, measure_types, shape_as_number

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.trial.child import TrialChild

# Each round settles a control-flow node or stops; the time limit applies long before.
_MAX_ROUNDS = 100_000


@dataclass(frozen=True, slots=True)
class ShapedModel:
    """A model in which every tensor that is needed has a fixed type."""

    resolved: ResolvedModel
    scope: Scope
    notes: tuple[str, ...] = ()  # notes from trying the sizes


@stage("shape")
def shape(model: FoldedModel, child: TrialChild) -> ShapedModel:
    """Type every tensor."""
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
            return _with_numbers(scope)
        scope, news = _measure(trials, scope, missing)
        # Even without new types, the bodies examined above change what depends on data.
        scope = fold_branches(trials, infer_scope(trials, scope) if news else scope)
    raise LoadError(trials.path, "has more control flow than can be settled")


def _with_numbers(scope: Scope) -> Scope:
    """Return the scope with shapes as constants; nodes that only feed Shape become dead."""
    nodes = []
    for node in scope.graph.node:
        number = None
        if is_op(node, "Shape", "Size") and node.output[0] in scope.flow.const:
            number = shape_as_number(node, scope.types)
        nodes.append(node if number is None else number)
    return replace(scope, graph=replace(scope.graph, node=tuple(nodes)))


def _examine_bodies(trials: Trials, scope: Scope) -> tuple[Scope, bool]:
    """Shape bodies that are ready; also return whether that settled an open output."""
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
    found = compute_constants(trials, scope, sorted(names & scope.flow.const))
    typed = {
        **scope.types,
        **{name: OnnxType(one.data_type, tuple(one.dims)) for name, one in found.items()},
    }
    formal = formal_inputs(trials.path, node, typed)
    inner = tuple(_shape_body(trials, body, formal, typed, found) for body in bodies(node))
    results = outcome(trials, node, inner, typed, found)
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
    """Return the scope with output types of control flow, and whether any was settled."""
    given = {name: one for name, one in zip(node.output, results, strict=False) if name}
    kinds = {name: one for name, one in given.items() if isinstance(one, OnnxType)}
    words = {name: one for name, one in given.items() if isinstance(one, str)}
    # From a tensor of stated shape only a bound follows, never a proof.
    certain = scope.flow.culprit.keys().isdisjoint(reads(node))
    scope = replace(
        scope,
        types={**scope.types, **kinds},  # the next node in line may be waiting for them
        proven={**scope.proven, **kinds} if certain else scope.proven,
        bounded=scope.bounded if certain else {**scope.bounded, **kinds},
        steady=scope.steady | {name for name, word in words.items() if word is STEADY},
        reasons={**scope.reasons, **{n: word for n, word in words.items() if word is not STEADY}},
    )
    return scope, any(isinstance(one, OnnxType) or one is STEADY for one in results)


def _shape_body(
    trials: Trials,
    body: onnx.GraphProto,
    formal: Sequence[OnnxType],
    typed: Mapping[str, OnnxType],
    found: Mapping[str, onnx.TensorProto],
) -> Scope:
    """Return the scope of a body, shaped as a graph with captured tensors as inputs."""
    outer = captured(body)
    fixed = frozenset(name for name in outer if name in found)
    lent = [value_info(name, typed[name]) for name in outer if name not in fixed]
    own = [value_info(item.name, k) for item, k in zip(body.input, formal, strict=False)]
    alone = OnnxGraph(
        body.name,
        tuple(body.node),
        (*own, *lent),
        tuple(body.output),
        (*body.initializer, *(found[name] for name in outer if name in fixed)),
    )
    scope = shape_graph(trials, fold_graph(trials, alone))
    kept = tuple(item for item in scope.graph.initializer if item.name not in fixed)
    graph = replace(scope.graph, input=tuple(own), initializer=kept)
    return replace(scope, graph=graph, outer_const=fixed, outer=frozenset(outer) - fixed)


def _missing(scope: Scope) -> list[str]:
    """Tensors that need a type and have none."""
    needed: dict[str, None] = {}
    for index in live(scope.graph):
        node = scope.graph.node[index]
        if scope.are_const(node.output):
            # The stored integers of dequantized weights are what a consumer really reads.
            names = list(node.input) if is_quant(node, "DequantizeLinear") else []
        else:
            # The mask of a Dropout that does nothing needs no type, unless a node reads it.
            idle = is_op(node, "Dropout") and is_deterministic(node)
            names = [*reads(node), *node.output[: 1 if idle else None]]
        needed.update(dict.fromkeys(filter(None, names)))
    needed.update(dict.fromkeys(item.name for item in scope.graph.output))
    return [name for name in needed if not scope.is_typed(name)]


def _measure(trials: Trials, scope: Scope, missing: list[str]) -> tuple[Scope, bool]:
    """Measure types in a trial run; also whether inference may find more types from them."""
    # A stated shape lacks only its element type; once known, inference goes on from there.
    missing = [name for name in missing if name in trials.stated] or missing
    refuse_dependent(trials, scope, [name for name in missing if name not in trials.stated])
    try:
        found, unsteady = measure_types(trials, scope.graph, scope.types, missing, scope.flow.const)
    except ChildFailed as exc:
        declared = _trust_declared(trials, scope, missing)
        if not declared:
            raise unknown_shape(trials, scope, missing[0], str(exc)) from exc
        return replace(scope, declared=scope.declared | declared), True
    dependent = [name for name in missing if name in unsteady and name not in trials.stated]
    if dependent:
        raise dependent_shapes(trials, scope, dependent)
    measured = {}
    for name in missing:
        measured[name] = OnnxType(found[name].elem, trials.stated.get(name, found[name].shape))
    scope = replace(
        scope,
        measured={**scope.measured, **measured},
        types={**scope.types, **measured},
    )
    return scope, not trials.stated.keys().isdisjoint(missing)


def _trust_declared(trials: Trials, scope: Scope, missing: list[str]) -> frozenset[str]:
    """Return types that the file declares for outputs of custom ops."""
    made = {name for node in scope.graph.node for name in node.output}
    usable = frozenset(name for name in trials.declared if name in made) - scope.declared
    return usable if usable.intersection(missing) else frozenset()


def find_type(trials: Trials, graph: AnyGraph, name: str) -> OnnxType:
    """Return a tensor's type after folding and shaping only the nodes it depends on."""
    import onnx

    output = onnx.ValueInfoProto(name=name)
    whole = OnnxGraph("part", tuple(graph.node), tuple(graph.input), (output,), ())
    nodes = tuple(whole.node[at] for at in live(whole))
    read = {name, *(source for node in nodes for source in reads(node))}
    stored = tuple(item for item in graph.initializer if item.name in read)
    part = OnnxGraph("part", nodes, whole.input, whole.output, stored)
    return shape_graph(trials, fold_graph(trials, part)).types.get(name, UNKNOWN)


def write_typed(model: ShapedModel) -> onnx.ModelProto:
    """Return a new ONNX model with value infos for all tensors.

    External data stays where it is: locations were checked and are relative to the model's folder.
    """
    scope = model.scope
    outer = {item.name for item in scope.graph.input}
    outer |= {item.name for item in scope.graph.initializer}
    outputs = {item.name for item in scope.graph.output}
    proto = model.resolved.proto(scope.graph)
    for name, kind in scope.types.items():
        if kind.is_static and name not in outer and name not in outputs:
            proto.graph.value_info.append(value_info(name, kind))
    for item in proto.graph.output:
        item.CopyFrom(value_info(item.name, scope.types[item.name]))
    return proto
