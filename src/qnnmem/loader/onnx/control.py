"""What If, Loop and Scan promise about the types of their bodies and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError
from qnnmem.loader.onnx.graph import OnnxGraph, attribute, bodies, integer, is_op, reads
from qnnmem.loader.onnx.scope import Scope, is_deterministic
from qnnmem.loader.onnx.tensor import OnnxType, by_sizes
from qnnmem.loader.onnx.trial.questions import Trials, compute_values, read_scalar
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

_INT64, _BOOL = 7, 9
_MAX_UPDATES = 64
_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}

Result = OnnxType | str  # a type, or why there is none
STEADY = "is the same in every run"  # independent of data: a trial run may measure it


def check_form(trials: Trials, node: onnx.NodeProto) -> None:
    """Refuse control flow whose bodies do not have the inputs and outputs it needs."""
    inner = [body for name in _BODIES[node.op_type] for body in _body(node, name)]
    good = len(inner) == len(_BODIES[node.op_type]) == len(list(bodies(node)))
    good = good and all(node.output) and all(len(body.output) >= len(node.output) for body in inner)
    if is_op(node, "If"):
        good = good and all(node.input) and len(node.input) == 1
    elif is_op(node, "Loop"):
        good = good and len(node.input) >= 1 and all(node.input[2:])
        good = good and len(inner[0].input) == max(2, len(node.input))
        good = good and len(inner[0].output) == 1 + len(node.output) >= len(node.input) - 1
    else:  # Scan of operator set 8 had another form
        good = good and trials.opset >= 9 and all(node.input)
        good = good and len(inner[0].input) == len(node.input)
        good = good and len(inner[0].output) == len(node.output)
    if not good:
        who = quote(node.name or next(iter(node.output), ""))
        raise LoadError(trials.path, f"{node.op_type} {who} is not well formed")


def _body(node: onnx.NodeProto, name: str) -> list[onnx.GraphProto]:
    found = attribute(node, name)
    return [found.g] if found is not None and found.HasField("g") else []


def formal_inputs(
    path: Path, node: onnx.NodeProto, typed: Mapping[str, OnnxType]
) -> list[OnnxType]:
    """Types of a body's own inputs."""
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
    found: Mapping[str, onnx.TensorProto],
) -> list[Result]:
    """Types of a node's outputs once its bodies are resolved."""
    made = [[scope.types[item.name] for item in scope.graph.output] for scope in scopes]
    if is_op(node, "If"):
        return [_same(kinds) for kinds in zip(*made, strict=False)]
    if is_op(node, "Loop"):
        return _loop(trials, node, scopes[0], made[0], found, typed)
    return _scan(trials.path, node, made[0], typed)


def _same(kinds: Sequence[OnnxType]) -> Result:
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    words = " or ".join(by_sizes(kind.shape or ()) for kind in kinds)
    return f"depends on the branch taken ({words})"


def _loop(
    trials: Trials,
    node: onnx.NodeProto,
    scope: Scope,
    made: list[OnnxType],
    found: Mapping[str, onnx.TensorProto],
    typed: Mapping[str, OnnxType],
) -> list[Result]:
    count = len(node.input) - 2
    carried = [typed[name] for name in node.input[2:]]
    for name, before, after in zip(node.output, carried, made[1 : 1 + count], strict=False):
        if before != after:
            raise LoadError(
                trials.path,
                f"{quote(name)}, carried by Loop {quote(node.name or name)}, changes its shape "
                "from round to round; such loops are not handled",
            )
    results: list[Result] = list(carried)
    trips = _trips(trials, node, scope, found)
    steady = trips is None and _is_steady(node, scope, found)
    for kind in made[1 + count :]:
        if trips is None:
            results.append(STEADY if steady else "depends on how often the loop runs")
        else:
            results.append(OnnxType(kind.elem, (trips, *(kind.shape or ()))))
    return results


def _trips(
    trials: Trials,
    node: onnx.NodeProto,
    scope: Scope,
    found: Mapping[str, onnx.TensorProto],
) -> int | None:
    """Return the number of iterations of a Loop; None if it depends on data."""
    limit, start = node.input[0], node.input[1] if len(node.input) > 1 else ""
    if limit not in found or (start and start not in found):
        return None
    if start and not read_scalar(trials, found[start]):
        return 0
    if not _goes_on(trials, scope):
        return None
    return max(0, read_scalar(trials, found[limit]))


def _goes_on(trials: Trials, scope: Scope) -> bool:
    """True if the body's condition is its incoming one, or constant and true."""
    graph = scope.graph
    name = graph.output[0].name
    for node in reversed(graph.node):
        if name in node.output and is_op(node, "Identity", "Cast"):
            name = node.input[0]
    if name == graph.input[1].name:
        return True
    if name not in scope.flow.const or name in scope.outer_const:
        return False
    try:
        value = compute_values(trials, graph, scope.types, [name], scope.flow.const)[name]
    except ChildFailed:
        return False
    return bool(read_scalar(trials, value))


def _is_steady(node: onnx.NodeProto, scope: Scope, found: Mapping[str, onnx.TensorProto]) -> bool:
    """True if constants alone decide how often a Loop runs, such as a counter and a limit."""
    graph = scope.graph
    given = [name for name in node.input[:2] if name]
    if any(name not in found for name in given):
        return False
    # Carried values with a constant start, minus those whose update depends on data.
    fixed = {graph.input[0].name, graph.input[1].name}
    carried = list(zip(graph.input[2:], node.input[2:], graph.output[1:], strict=False))
    fixed |= {inner.name for inner, outer, _ in carried if outer in found}
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
        raise LoadError(path, f"Scan {quote(node.name or node.output[0])} is not well formed")
    scans = kinds[len(kinds) - count :]
    axes = _axes(node, "scan_input_axes", count)
    for kind, axis in zip(scans, axes, strict=True):
        rank = len(kind.shape or ())
        if not -rank <= axis < rank:
            raise LoadError(path, f"Scan {quote(node.name or node.output[0])} has a wrong axis")
    return kinds[: len(kinds) - count], list(zip(scans, axes, strict=True))


def _axes(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    found = attribute(node, name)
    axes = list(found.ints) if found is not None else []
    return [*axes, *[0] * (count - len(axes))][:count]


def _without(kind: OnnxType, axis: int) -> tuple[int, ...]:
    shape = list(kind.shape or ())
    del shape[axis]
    return tuple(shape)


def _scan(
    path: Path, node: onnx.NodeProto, made: list[OnnxType], typed: Mapping[str, OnnxType]
) -> list[Result]:
    states, scans = _scan_parts(path, node, typed)
    first, axis = scans[0]
    length = (first.shape or ())[axis]
    for name, before, after in zip(node.output, states, made, strict=False):
        if before != after:
            raise LoadError(path, f"state {quote(name)} of Scan changes its shape in the body")
    results: list[Result] = list(states)
    stacked = made[len(states) :]
    for kind, at in zip(stacked, _axes(node, "scan_output_axes", len(stacked)), strict=True):
        shape = list(kind.shape or ())
        shape.insert(at if at >= 0 else at + len(shape) + 1, length)
        results.append(OnnxType(kind.elem, tuple(shape)))
    return results
