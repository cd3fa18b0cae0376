"""Fourth pass: replaces every If whose condition is constant by the branch taken.

repeat until no such If is left:
    infer the types that follow from known types
    find the constants; a tensor's shape is constant unless it depends on data
    compute the conditions among the constants and inline the branches taken
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError, UsageError
from qnnmem.loader.onnx.graph import (
    OnnxGraph,
    all_names,
    attribute,
    bodies,
    defined,
    is_op,
    unused_name,
)
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.passes.resolve import ResolvedModel
from qnnmem.loader.onnx.scope import Scope, analyse
from qnnmem.loader.onnx.tensor import UNKNOWN, OnnxType
from qnnmem.loader.onnx.trial import Trials, compute_values, infer_types, read_scalar
from qnnmem.text import by_sizes, quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.trial import TrialChild


@dataclass(frozen=True, slots=True)
class FoldedModel:
    """A model without constant branches, and the types found by inference."""

    resolved: ResolvedModel
    scope: Scope


@stage("fold")
def fold(model: ResolvedModel, child: TrialChild) -> FoldedModel:
    """Return the model with every If that has a constant condition replaced."""
    return FoldedModel(model, fold_graph(trials_of(model, child), model.graph))


def trials_of(model: ResolvedModel, child: TrialChild) -> Trials:
    """Return the interface to the child process for requests about a model."""
    import onnx

    head = onnx.ModelProto(ir_version=model.head.ir_version, opset_import=model.head.opset_import)
    inputs = {item.name for item in model.graph.input}
    return Trials(model.path, child, head, model.stated, model.declared, inputs)


def fold_graph(trials: Trials, graph: OnnxGraph) -> Scope:
    """Return the scope of a graph, with types inferred and constant Ifs replaced."""
    return fold_branches(trials, infer_scope(trials, Scope(graph)))


@stage("fold")
def fold_branches(trials: Trials, scope: Scope) -> Scope:
    """Return the scope with constant Ifs replaced and all constants found."""
    while True:
        proven = scope.settled | scope.steady
        scope = replace(scope, flow=analyse(scope.graph, proven, scope.bodies))
        taken = _branches_taken(trials, scope)
        if not taken:
            return scope
        # Terminates: each round removes an If, and a branch adds only nodes from inside it.
        graph = inline_branches(scope.graph, taken, set(all_names(scope.graph)))
        scope = infer_scope(trials, replace(scope, graph=graph))


def _branches_taken(trials: Trials, scope: Scope) -> dict[int, onnx.GraphProto]:
    conditions = {
        index: node.input[0]
        for index, node in enumerate(scope.graph.node)
        if is_op(node, "If") and node.input and node.input[0] in scope.flow.const
    }
    if not conditions:
        return {}
    values = compute_constants(trials, scope, sorted(set(conditions.values())))
    return {
        index: _branch(trials, scope.graph.node[index], bool(read_scalar(trials, values[name])))
        for index, name in conditions.items()
    }


def _branch(trials: Trials, node: onnx.NodeProto, condition: bool) -> onnx.GraphProto:
    name = "then_branch" if condition else "else_branch"
    branch = attribute(node, name)
    if branch is None:
        who = quote(node.name or next(iter(node.output), ""))
        raise LoadError(trials.path, f"the If node {who} has no {name}")
    return branch.g


def compute_constants(
    trials: Trials, scope: Scope, names: Sequence[str]
) -> dict[str, onnx.TensorProto]:
    """Return the values of constants of a scope."""
    try:
        return compute_values(trials, scope.graph, scope.types, names, scope.flow.const)
    except ChildFailed as exc:
        who = f"constant {quote(names[0])}"
        raise LoadError(trials.path, f"{who} cannot be computed: {exc}") from exc


@stage("fold")
def infer_scope(trials: Trials, scope: Scope) -> Scope:
    """Return the scope with all types that inference can find at this point."""
    types = infer_types(trials, scope.graph, scope.proven)
    proven = {name: kind for name, kind in types.items() if kind.is_static}
    declared = {name: trials.declared[name] for name in scope.declared}
    unproven = {**scope.bounded, **_stated(trials, scope, types), **declared}
    if unproven:
        # Types that follow from a stated or declared shape are known, but not proven.
        types = infer_types(trials, scope.graph, {**scope.proven, **unproven}) | proven
    for name, kind in scope.measured.items():
        if not types.get(name, UNKNOWN).is_static:
            types[name] = kind
    return replace(scope, types=types, settled=frozenset(proven))


def _stated(trials: Trials, scope: Scope, types: dict[str, OnnxType]) -> dict[str, OnnxType]:
    """Return the types of results whose shape the caller states."""
    results = {name for node in scope.graph.node for name in node.output}
    stated = {}
    for name, shape in trials.stated.items():
        if name not in results:
            continue
        kind = types.get(name, UNKNOWN)
        if kind.is_static and kind.shape != shape:
            inferred = by_sizes(kind.shape or ())
            raise UsageError(
                f"tensor {quote(name)} has shape {inferred}, not the given {by_sizes(shape)}"
            )
        elem = kind.elem or scope.measured.get(name, kind).elem
        if elem:
            stated[name] = OnnxType(elem, shape)
    return stated


def inline_branches(
    graph: OnnxGraph, taken: Mapping[int, onnx.GraphProto], used: set[str]
) -> OnnxGraph:
    """Return the graph with some Ifs replaced by a branch; add new names to `used`.

    `taken` maps the index of an If to its branch.
    """
    nodes: list[onnx.NodeProto] = []
    stored = list(graph.initializer)
    for index, node in enumerate(graph.node):
        if index not in taken:
            nodes.append(node)
            continue
        branch = type(taken[index])()
        branch.CopyFrom(taken[index])
        nodes.extend(_inline(branch, list(node.output), used))
        stored.extend(branch.initializer)
    return replace(graph, node=tuple(nodes), initializer=tuple(stored))


def _inline(branch: onnx.GraphProto, outputs: list[str], used: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes of a branch, renamed in place to fit into the outer graph."""
    results = {name for node in branch.node for name in node.output if name}
    renamed: dict[str, str] = {}
    forwards = []
    for result, target in zip((out.name for out in branch.output), outputs, strict=False):
        if not target:
            continue
        if result in results and result not in renamed:
            renamed[result] = target
        else:  # an outer tensor, a stored tensor, or a result used for two outputs
            forwards.append((result, target))
    for name in defined(branch):
        if name not in renamed and name in used:
            renamed[name] = unused_name(f"{name}/", used)
        used.add(renamed.get(name, name))
    _rename(branch, renamed)
    return [
        *branch.node,
        *(_identity(renamed.get(name, name), target) for name, target in forwards),
    ]


def _identity(source: str, target: str) -> onnx.NodeProto:
    import onnx

    return onnx.NodeProto(op_type="Identity", name=target, input=[source], output=[target])


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for item in (*graph.input, *graph.initializer, *graph.output):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in bodies(node):
            own = set(defined(body))
            _rename(body, {old: new for old, new in names.items() if old not in own})
