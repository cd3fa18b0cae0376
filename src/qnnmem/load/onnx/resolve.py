"""Every tensor of a graph and its bodies gets a type: by inference, by folding, by running.

repeat until nothing is open:
    infer shapes; find constants
    an If whose condition is constant is replaced by the branch taken
    a body whose outer tensors are known is resolved like a graph of its own
    what is still unknown is measured in a trial run
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError, UsageError
from qnnmem.load.onnx import trial
from qnnmem.load.onnx.branch import fold
from qnnmem.load.onnx.flow import CONTROL, Flow, analyse, is_deterministic
from qnnmem.load.onnx.graph import bodies, captured, is_op, is_quant, reads
from qnnmem.load.onnx.inputs import all_names
from qnnmem.load.onnx.loop import STEADY, check_form, formal_inputs, outcome
from qnnmem.load.onnx.tensor import DTYPES, STRING, UNKNOWN, TensorType, check_shape
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

# Each round settles a control-flow node or ends; the time limit strikes long before.
_MAX_ROUNDS = 100_000


@dataclass(slots=True)
class Scope:
    """A graph with the types of its tensors, and the same for the bodies of its nodes.

    Bodies are found by the first output of their node. The scope around owns captured names:
    `outer` are tensors of it, `outer_const` constants.
    """

    graph: onnx.GraphProto
    types: dict[str, TensorType] = field(default_factory=dict)
    flow: Flow = field(default_factory=Flow)
    bodies: dict[str, list[Scope]] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    outer_const: frozenset[str] = frozenset()
    proven: dict[str, TensorType] = field(default_factory=dict)
    bounded: dict[str, TensorType] = field(default_factory=dict)
    measured: dict[str, TensorType] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    steady: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)


def resolve(bench: trial.Bench, graph: onnx.GraphProto) -> Scope:
    """Type every tensor of a graph whose inputs are static; folds constant Ifs in place."""
    scope = Scope(graph)
    fresh = False
    for _ in range(_MAX_ROUNDS):
        if not fresh:
            _infer(bench, scope)
        scope.flow = analyse(graph, scope.settled | scope.steady, scope.bodies)
        fresh = not (_fold_branches(bench, scope) or _resolve_bodies(bench, scope))
        if not fresh:
            continue
        missing = _missing(scope)
        if not missing:
            _check(bench, scope)
            _write_shapes(scope)
            return scope
        fresh = _measure(bench, scope, missing)
    raise LoadError(bench.path, "has more control flow than can be settled")


def _write_shapes(scope: Scope) -> None:
    """Put numbers for shapes into the graph: what only serves to ask a shape is then dead."""
    for node in scope.graph.node:
        if is_op(node, "Shape", "Size") and node.output[0] in scope.flow.const:
            number = trial.shape_as_number(node, scope.types)
            if number is not None:
                number.name = node.name
                node.CopyFrom(number)


def _infer(bench: trial.Bench, scope: Scope) -> None:
    found = trial.infer(bench, scope.graph, scope.proven)
    scope.types = dict(found)
    scope.settled = {name for name, kind in found.items() if kind.is_static}
    given = (
        scope.bounded
        | _stated(bench, scope)
        | {name: bench.declared[name] for name in scope.declared}
    )
    if given:
        # What follows from a stated or declared shape is known, but not proven.
        scope.types = trial.infer(bench, scope.graph, scope.proven | given)
        scope.types.update({name: found[name] for name in scope.settled})
    for name, kind in scope.measured.items():
        if not scope.types.get(name, UNKNOWN).is_static:
            scope.types[name] = kind


def _stated(bench: trial.Bench, scope: Scope) -> dict[str, TensorType]:
    made = {name for node in scope.graph.node for name in node.output}
    stated = {}
    for name, shape in bench.stated.items():
        if name not in made:
            continue
        kind = scope.types.get(name, UNKNOWN)
        if kind.is_static and kind.shape != shape:
            raise UsageError(
                f"tensor {quote(name)} has shape {_by(kind.shape or ())}, not {_by(shape)}"
            )
        elem = kind.elem or scope.measured.get(name, kind).elem
        if elem:
            stated[name] = TensorType(elem, shape)
    return stated


def _by(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _fold_branches(bench: trial.Bench, scope: Scope) -> bool:
    conditions = {
        index: node.input[0]
        for index, node in enumerate(scope.graph.node)
        if is_op(node, "If") and node.input and node.input[0] in scope.flow.const
    }
    if not conditions:
        return False
    found = _values(bench, scope, sorted(set(conditions.values())))
    taken = {index: bool(trial.scalar(bench, found[name])) for index, name in conditions.items()}
    fold(scope.graph, taken, set(all_names(scope.graph)))
    return True


def _values(bench: trial.Bench, scope: Scope, names: Sequence[str]) -> dict[str, onnx.TensorProto]:
    try:
        return trial.values(bench, scope.graph, scope.types, names, scope.flow.const)
    except ChildFailed as exc:
        what = quote(names[0])
        raise LoadError(bench.path, f"constant {what} cannot be computed: {exc}") from exc


def _resolve_bodies(bench: trial.Bench, scope: Scope) -> bool:
    """Resolve bodies that are ready; whether that settled an output inference had left open."""
    news = False
    for node in scope.graph.node:
        if not is_op(node, *CONTROL) or not node.output or node.output[0] in scope.bodies:
            continue
        if all(name in scope.flow.const for name in reads(node)):
            continue  # computed once, with the constants
        if all(_settled(scope, name) for name in reads(node)):
            news = _resolve_node(bench, scope, node) or news
    return news


def _settled(scope: Scope, name: str) -> bool:
    return name in scope.flow.const or scope.types.get(name, UNKNOWN).is_static


def _resolve_node(bench: trial.Bench, scope: Scope, node: onnx.NodeProto) -> bool:
    check_form(bench, node)
    inner = list(bodies(node))
    names = {name for body in inner for name in captured(body)}
    fixed = sorted(name for name in {*names, *node.input} if name in scope.flow.const)
    found = _values(bench, scope, fixed)
    typed = scope.types | {
        name: TensorType(tensor.data_type, tuple(tensor.dims)) for name, tensor in found.items()
    }
    formal = formal_inputs(bench.path, node, typed)
    scope.bodies[node.output[0]] = [
        _resolve_body(bench, body, formal, typed, found) for body in inner
    ]
    # From a tensor of stated shape only a bound follows, never a proof.
    bounded = not scope.flow.culprit.keys().isdisjoint(reads(node))
    results = outcome(bench, node, scope.bodies[node.output[0]], typed, found)
    for name, result in zip(node.output, results, strict=False):
        if not name:
            continue
        if isinstance(result, TensorType):
            (scope.bounded if bounded else scope.proven)[name] = result
            scope.types[name] = result  # the next node in line may be waiting for it
        elif result is STEADY:
            scope.steady.add(name)
        else:
            scope.reasons[name] = result
    return any(isinstance(result, TensorType) or result is STEADY for result in results)


def _resolve_body(
    bench: trial.Bench,
    body: onnx.GraphProto,
    formal: Sequence[TensorType],
    typed: dict[str, TensorType],
    found: dict[str, onnx.TensorProto],
) -> Scope:
    import onnx

    alone = onnx.GraphProto()
    alone.CopyFrom(body)
    del alone.input[:]
    for item, kind in zip(body.input, formal, strict=False):
        alone.input.append(trial.value_info(item.name, kind))
    inputs = len(alone.input)
    outer = captured(body)
    fixed = [name for name in outer if name in found]
    alone.initializer.extend(found[name] for name in fixed)
    alone.input.extend(trial.value_info(name, typed[name]) for name in outer if name not in found)
    scope = resolve(bench, alone)
    _close(body, alone, inputs, set(fixed))
    scope.graph, scope.outer_const = body, frozenset(fixed)
    scope.outer = frozenset(outer) - scope.outer_const
    return scope


def _close(body: onnx.GraphProto, alone: onnx.GraphProto, inputs: int, fixed: set[str]) -> None:
    """Write a resolved body back without what was lent to it from outside."""
    body.CopyFrom(alone)
    del body.input[inputs:]
    kept = [item for item in alone.initializer if item.name not in fixed]
    del body.initializer[:]
    body.initializer.extend(kept)


def live(graph: onnx.GraphProto) -> list[int]:
    """Positions of nodes that an output depends on."""
    needed = {item.name for item in graph.output}
    found = []
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if not needed.isdisjoint(filter(None, node.output)):
            needed.update(reads(node))
            found.append(index)
    return found[::-1]


def _missing(scope: Scope) -> list[str]:
    needed: dict[str, None] = {}
    for index in live(scope.graph):
        node = scope.graph.node[index]
        if all(name in scope.flow.const for name in node.output if name):
            # The stored integers of dequantized weights are what a consumer really reads.
            names = list(node.input) if is_quant(node, "DequantizeLinear") else []
        else:
            # Nobody needs to know the mask of an idle Dropout, unless a node reads it.
            idle = is_op(node, "Dropout") and is_deterministic(node)
            names = [*reads(node), *node.output[: 1 if idle else None]]
        needed.update(dict.fromkeys(filter(None, names)))
    needed.update(dict.fromkeys(item.name for item in scope.graph.output))
    return [name for name in needed if not scope.types.get(name, UNKNOWN).is_static]


def _measure(bench: trial.Bench, scope: Scope, missing: list[str]) -> bool:
    """Measure types in a trial run; whether inference would find nothing new from them."""
    # A stated shape lacks only its element type; once known, inference goes on from there.
    missing = [name for name in missing if name in bench.stated] or missing
    _refuse(bench, scope, [name for name in missing if name not in bench.stated])
    try:
        found, unsteady = trial.measure(bench, scope.graph, scope.types, missing, scope.flow.const)
    except ChildFailed as exc:
        if not _trust_declared(bench, scope, missing):
            raise _unknown(bench, scope, missing[0], str(exc)) from exc
        return False
    for name in missing:
        if name in unsteady and name not in bench.stated:
            raise _dependent(bench, scope, name)
        shape = bench.stated.get(name, found[name].shape)
        scope.measured[name] = scope.types[name] = TensorType(found[name].elem, shape)
    return bench.stated.keys().isdisjoint(missing)


def _trust_declared(bench: trial.Bench, scope: Scope, missing: list[str]) -> bool:
    """Fall back on what the file says about ops nobody here knows; whether that is news."""
    made = {name for node in scope.graph.node for name in node.output}
    usable = {name for name in bench.declared if name in made} - scope.declared
    if not usable.intersection(missing):
        return False
    scope.declared |= usable
    return True


def _check(bench: trial.Bench, scope: Scope) -> None:
    """Refuse what is known only by chance or by too large a number."""
    _refuse(bench, scope, [name for name in scope.measured if name not in bench.stated])
    for index in live(scope.graph):
        node = scope.graph.node[index]
        constant = all(name in scope.flow.const for name in node.output if name)
        if is_op(node, *CONTROL) and not constant and node.output[0] not in scope.bodies:
            who = quote(node.name or node.output[0])
            raise LoadError(bench.path, f"the body of {node.op_type} {who} cannot be examined")
        if not is_op(node, *CONTROL) and any(bodies(node)):
            raise LoadError(bench.path, f"op {quote(node.op_type)} carries a graph, not handled")
        for name in filter(None, node.output):
            if name in scope.types and name not in scope.flow.const:
                _check_type(bench, node, name, scope.types[name])


def _check_type(bench: trial.Bench, node: onnx.NodeProto, name: str, kind: TensorType) -> None:
    if kind.elem == STRING or kind.elem not in DTYPES:
        what = "strings" if kind.elem == STRING else f"element type {kind.elem}"
        who = quote(node.op_type)
        raise LoadError(
            bench.path, f"tensor {quote(name)} of op {who} holds {what}, which is not handled"
        )
    check_shape(bench.path, name, kind.shape or (), DTYPES[kind.elem])


def _refuse(bench: trial.Bench, scope: Scope, names: Iterable[str]) -> None:
    for name in names:
        culprit = scope.flow.culprit.get(name)
        if culprit is None or name in scope.flow.pending:
            continue
        node = scope.graph.node[culprit]
        open_ones = [out for out in node.output if out in scope.flow.culprit]
        first = next((out for out in open_ones if out not in bench.stated), name)
        raise _dependent(bench, scope, first)


def _dependent(bench: trial.Bench, scope: Scope, name: str) -> LoadError:
    node = next(node for node in scope.graph.node if name in node.output)
    why = scope.reasons.get(name, "depends on the data")
    shown = name if name.isprintable() and len(name) <= 80 else "NAME"
    way_out = f"state its largest shape with --shape {shlex.quote(f'{shown}=AxB')}"
    return LoadError(
        bench.path, f"the shape of {quote(name)}, made by {quote(node.op_type)}, {why}; {way_out}"
    )


def _unknown(bench: trial.Bench, scope: Scope, name: str, reason: str) -> LoadError:
    node = next((node for node in scope.graph.node if name in node.output), None)
    who = f", made by {quote(node.op_type)}," if node is not None else ""
    return LoadError(
        bench.path, f"the shape of {quote(name)}{who} is unknown and a trial run failed: {reason}"
    )
