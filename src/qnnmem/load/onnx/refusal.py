"""Graphs that cannot be planned: shapes that data decide, types and bodies that are not handled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError, Setting, Words, chain_words
from qnnmem.load.onnx.flow import CONTROL, RESHAPING, SHAPING
from qnnmem.load.onnx.foreign import first_foreign, foreign_op
from qnnmem.load.onnx.graph import bodies, is_op, live
from qnnmem.load.onnx.scope import Scope
from qnnmem.load.onnx.tensor import DTYPES, STRING, OnnxType, check_shape
from qnnmem.load.onnx.trial.questions import Trials
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx


def check_scope(trials: Trials, scope: Scope) -> None:
    """Refuse what is known only by chance or by too large a number."""
    refuse_dependent(trials, scope, [name for name in scope.measured if name not in trials.stated])
    for index in live(scope.graph):
        node = scope.graph.node[index]
        examined = node.output[0] in scope.bodies
        if is_op(node, *CONTROL) and not examined and not scope.are_const(node.output):
            who = quote(node.name or node.output[0])
            raise LoadError(trials.path, f"the body of {node.op_type} {who} cannot be examined")
        if not is_op(node, *CONTROL) and any(bodies(node)):
            raise LoadError(trials.path, f"op {quote(node.op_type)} carries a graph, not handled")
        for name in filter(None, node.output):
            if name in scope.types and name not in scope.flow.const:
                _check_type(trials, node, name, scope.types[name])
        if is_op(node, *RESHAPING):
            _check_elements(trials, scope, node)


def _check_type(trials: Trials, node: onnx.NodeProto, name: str, kind: OnnxType) -> None:
    if kind.elem == STRING or kind.elem not in DTYPES:
        what = "strings" if kind.elem == STRING else f"element type {kind.elem}"
        who = quote(node.op_type)
        raise LoadError(
            trials.path, f"tensor {quote(name)} of op {who} holds {what}, which is not handled"
        )
    check_shape(trials.path, name, kind.shape or (), DTYPES[kind.elem])


def _check_elements(trials: Trials, scope: Scope, node: onnx.NodeProto) -> None:
    """Refuse a new shape with another number of elements; inference accepts any constant shape."""
    names = node.input[0], node.output[0]
    # A stated shape is an upper bound, and so is all that follows from it.
    if any(name in trials.stated or name in scope.flow.culprit for name in names):
        return
    before, after = (scope.types[name].shape if name in scope.types else None for name in names)
    if before is None or after is None or math.prod(before) == math.prod(after):
        return
    who = f"{node.op_type} {quote(node.name or node.output[0])}"
    raise LoadError(
        trials.path,
        f"{who} turns {math.prod(before):,} elements into {math.prod(after):,}",
    )


def refuse_dependent(trials: Trials, scope: Scope, names: Iterable[str]) -> None:
    """Raise LoadError if the shape of one of these tensors depends on data."""
    for name in names:
        culprit = scope.flow.culprit.get(name)
        if culprit is None or name in scope.flow.pending:
            continue
        node = scope.graph.node[culprit]
        open_ones = [out for out in node.output if out in scope.flow.culprit]
        first = next((out for out in open_ones if out not in trials.stated), name)
        raise data_dependent(trials, scope, first)


def data_dependent(trials: Trials, scope: Scope, name: str) -> LoadError:
    """Error about a shape that data decide; its cure is to state the largest one."""
    node = next(node for node in scope.graph.node if name in node.output)
    why = scope.reasons.get(name, "depends on the data")
    shown = name if name.isprintable() and len(name) <= 80 else "NAME"
    largest = (
        "state its largest shape with ",
        Setting("shapes", f"{shown}={_largest(scope, node) or 'AxB'}"),
    )
    return LoadError(
        trials.path,
        f"the shape of {quote(name)}, made by {quote(node.op_type)}, {why}",
        cure=chain_words(_valued(trials, scope, name), largest),
    )


def _largest(scope: Scope, node: onnx.NodeProto) -> str:
    """The largest shape, where the operator itself tells; else nothing."""
    kind = scope.types.get(node.input[0]) if node.input else None
    if not is_op(node, "NonZero") or kind is None or kind.shape is None:
        return ""
    return f"{max(len(kind.shape), 1)}x{math.prod(kind.shape)}"


def _valued(trials: Trials, scope: Scope, name: str) -> Words:
    """The way out where an input of the model itself says the shape."""
    if name not in scope.flow.culprit:
        return ""
    node = scope.graph.node[scope.flow.culprit[name]]
    sources = [node.input[at] for at in SHAPING.get(node.op_type, ()) if at < len(node.input)]
    direct = next((s for s in sources if s in trials.inputs and s != node.input[0]), None)
    if direct is None:
        return ""
    return (f"give {quote(direct)} a value with ", Setting("values", f"{direct}=VALUE"), ", or ")


def unknown_shape(trials: Trials, scope: Scope, name: str, reason: str) -> LoadError:
    """Error about a shape that neither inference nor a trial run finds."""
    node = next((node for node in scope.graph.node if name in node.output), None)
    strange = first_foreign(scope.graph.node[at] for at in live(scope.graph))
    if strange is not None and (strange is node or quote(strange.domain)[1:-1] in reason):
        return foreign_op(trials.path, strange)
    who = f", made by {quote(node.op_type)}," if node is not None else ""
    return LoadError(
        trials.path, f"the shape of {quote(name)}{who} is unknown and a trial run failed: {reason}"
    )
