"""Fourth pass: an If whose condition is constant is replaced by the branch taken.

repeat until no such If is left:
    infer the types that follow from what is known
    find the constants; the shape of a tensor is one, unless it depends on data
    compute the conditions among them, put branches in the place of Ifs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError, UsageError
from qnnmem.loader.onnx.branch import inline_branches
from qnnmem.loader.onnx.flow import analyse
from qnnmem.loader.onnx.graph import OnnxGraph, all_names, attribute, is_op
from qnnmem.loader.onnx.passes.resolve import ResolvedModel
from qnnmem.loader.onnx.scope import Scope
from qnnmem.loader.onnx.stage import stage
from qnnmem.loader.onnx.tensor import UNKNOWN, OnnxType, by_sizes
from qnnmem.loader.onnx.trial.questions import Trials, compute_values, infer_types, read_scalar
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.trial.child import TrialChild


@dataclass(frozen=True, slots=True)
class FoldedModel:
    """A model without constant branches, with the types that inference finds."""

    resolved: ResolvedModel
    scope: Scope


@stage("fold")
def fold(model: ResolvedModel, child: TrialChild) -> FoldedModel:
    """Replace every If whose condition is constant."""
    return FoldedModel(model, fold_graph(trials_of(model, child), model.graph))


def trials_of(model: ResolvedModel, child: TrialChild) -> Trials:
    """Questions about a model, put to a child."""
    import onnx

    head = onnx.ModelProto(ir_version=model.head.ir_version, opset_import=model.head.opset_import)
    inputs = {item.name for item in model.graph.input}
    return Trials(model.path, child, head, model.stated, model.declared, inputs)


def fold_graph(trials: Trials, graph: OnnxGraph) -> Scope:
    """Scope of a graph of which nothing but the types of its inputs is known."""
    return fold_branches(trials, infer_scope(trials, Scope(graph)))


@stage("fold")
def fold_branches(trials: Trials, scope: Scope) -> Scope:
    """Scope without constant Ifs, its constants found; types are as up to date as they come in."""
    while True:
        proven = scope.settled | scope.steady
        scope = replace(scope, flow=analyse(scope.graph, proven, scope.bodies))
        taken = _branches_taken(trials, scope)
        if not taken:
            return scope
        # This ends: each round takes away an If, and branches bring only what was inside of it.
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
    found = compute_constants(trials, scope, sorted(set(conditions.values())))
    return {
        index: _branch(trials, scope.graph.node[index], bool(read_scalar(trials, found[name])))
        for index, name in conditions.items()
    }


def _branch(trials: Trials, node: onnx.NodeProto, condition: bool) -> onnx.GraphProto:
    branch = attribute(node, "then_branch" if condition else "else_branch")
    if branch is None:
        who = quote(node.name or next(iter(node.output), ""))
        raise LoadError(trials.path, f"If {who} is not well formed")
    return branch.g


def compute_constants(
    trials: Trials, scope: Scope, names: Sequence[str]
) -> dict[str, onnx.TensorProto]:
    """Values of constants of a scope."""
    try:
        return compute_values(trials, scope.graph, scope.types, names, scope.flow.const)
    except ChildFailed as exc:
        what = quote(names[0])
        raise LoadError(trials.path, f"constant {what} cannot be computed: {exc}") from exc


@stage("fold")
def infer_scope(trials: Trials, scope: Scope) -> Scope:
    """Scope with the types that follow from all that is known by now."""
    found = infer_types(trials, scope.graph, scope.proven)
    types = dict(found)
    settled = frozenset(name for name, kind in found.items() if kind.is_static)
    declared = {name: trials.declared[name] for name in scope.declared}
    given = {**scope.bounded, **_stated(trials, scope, types), **declared}
    if given:
        # What follows from a stated or declared shape is known, but not proven.
        types = infer_types(trials, scope.graph, {**scope.proven, **given})
        types.update({name: found[name] for name in settled})
    for name, kind in scope.measured.items():
        if not types.get(name, UNKNOWN).is_static:
            types[name] = kind
    return replace(scope, types=types, settled=settled)


def _stated(trials: Trials, scope: Scope, types: dict[str, OnnxType]) -> dict[str, OnnxType]:
    made = {name for node in scope.graph.node for name in node.output}
    stated = {}
    for name, shape in trials.stated.items():
        if name not in made:
            continue
        kind = types.get(name, UNKNOWN)
        if kind.is_static and kind.shape != shape:
            found = by_sizes(kind.shape or ())
            raise UsageError(f"tensor {quote(name)} has shape {found}, not {by_sizes(shape)}")
        elem = kind.elem or scope.measured.get(name, kind).elem
        if elem:
            stated[name] = OnnxType(elem, shape)
    return stated
