"""Errors for graphs that cannot be planned: data-dependent shapes, unsupported types or bodies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, LoadError, QnnMemError, Setting, Words, chain_words, spaced
from qnnmem.loader.onnx.graph import attribute, bodies, is_op, live, reads
from qnnmem.loader.onnx.scope import CONTROL, RESHAPING, SHAPING, Scope
from qnnmem.loader.onnx.tensor import DTYPES, STRING, OnnxType, check_shape
from qnnmem.loader.onnx.trial import Trials, measure_types
from qnnmem.loader.onnx.well_formed import first_foreign, foreign_op
from qnnmem.text import by_sizes, listed, quote

if TYPE_CHECKING:
    import onnx

_LISTED = 20  # tensors named in a sentence
_BY_DATA = "depends on the data"


def check_scope(trials: Trials, scope: Scope) -> None:
    """Raise LoadError for data-dependent or too large shapes, and unsupported ops or types."""
    refuse_dependent(trials, scope, [name for name in scope.measured if name not in trials.stated])
    for index in live(scope.graph):
        node = scope.graph.node[index]
        examined = node.output[0] in scope.bodies
        if is_op(node, *CONTROL) and not examined and not scope.are_const(node.output):
            who = quote(node.name or node.output[0])
            what = f"the shapes in the body of {node.op_type} {who} are unknown"
            raise LoadError(trials.path, f"{what}, so it cannot be planned")
        if not is_op(node, *CONTROL) and any(bodies(node)):
            raise LoadError(
                trials.path, f"op {quote(node.op_type)} contains a graph, which is not supported"
            )
        for name in filter(None, node.output):
            if name in scope.types and name not in scope.flow.const:
                _check_type(trials, node, name, scope.types[name])
        if is_op(node, *RESHAPING):
            _check_elements(trials, scope, node)


def _check_type(trials: Trials, node: onnx.NodeProto, name: str, kind: OnnxType) -> None:
    if kind.elem == STRING or kind.elem not in DTYPES:
        content = "strings" if kind.elem == STRING else f"element type {kind.elem}"
        raise LoadError(
            trials.path,
            f"tensor {quote(name)} of op {quote(node.op_type)} has {content}, which is not "
            "supported",
        )
    check_shape(trials.path, name, kind.shape or (), DTYPES[kind.elem])


def _check_elements(trials: Trials, scope: Scope, node: onnx.NodeProto) -> None:
    """Raise LoadError if a reshape changes the number of elements, which inference accepts."""
    names = node.input[0], node.output[0]
    # A stated shape is an upper bound, and so are all shapes that follow from it.
    if any(name in trials.stated or name in scope.flow.culprit for name in names):
        return
    before, after = (scope.types[name].shape if name in scope.types else None for name in names)
    if before is None or after is None or math.prod(before) == math.prod(after):
        return
    who = f"{node.op_type} {quote(node.name or node.output[0])}"
    raise LoadError(
        trials.path,
        f"{who} has {math.prod(before):,} input elements but {math.prod(after):,} output elements",
    )


@dataclass(frozen=True, slots=True)
class DependentShape:
    """A tensor whose shape depends on data."""

    name: str
    operator: str
    why: str
    largest: tuple[int, ...] | None  # None if the operator implies no bound
    by_value: Words  # the cure, if an input of the model sets the shape

    def __str__(self) -> str:
        why = "" if self.why == _BY_DATA else f", {self.why}"
        return f"{quote(self.name)} ({self.operator}{why})"


class DependentShapes(LoadError):
    """The error that shapes depend on data; the cure is to state the largest shapes."""

    def __init__(
        self,
        path: Path | str,
        shapes: Sequence[DependentShape],
        seen: Mapping[str, tuple[int, ...]],
        end: Words = "",
    ) -> None:
        self.shapes = tuple(shapes)
        self.seen = seen  # placeholder shapes, so that later ops can be examined
        first, is_single = self.shapes[0], len(self.shapes) == 1
        names = listed([*map(str, self.shapes)], _LISTED)
        reason = f"the shapes of {len(self.shapes)} tensors depend on the data: {names}"
        if is_single:
            who = f"{quote(first.name)}, output of {quote(first.operator)}"
            reason = f"the shape of {who}, {first.why}"
        state = f"set {'its largest shape' if is_single else 'their largest shapes'} with "
        # For an If, the reason lists the shape of each branch; a trial run took only one branch, so
        # its shape is no suggestion.
        tried = {
            shape.name: seen[shape.name]
            for shape in self.shapes
            if shape.largest is None and shape.operator != "If" and shape.name in seen
        }
        settings = [_setting(s.name, s.largest or tried.get(s.name)) for s in self.shapes]
        cure = chain_words(first.by_value, state, spaced(settings))
        if tried:
            which = "" if is_single else f"{len(tried)} of them "
            cure = chain_words(cure, f" ({which}measured in a trial run; real data may need more)")
        super().__init__(path, reason, cure=chain_words(cure, end))

    def joined(self, later: DependentShapes) -> DependentShapes:
        """Return one error about the shapes of this error and of a later error."""
        names = {shape.name for shape in self.shapes}
        new = [shape for shape in later.shapes if shape.name not in names]
        return DependentShapes(self.path, [*self.shapes, *new], {**self.seen, **later.seen})

    def blocked(self, error: QnnMemError) -> DependentShapes:
        """Return this error, followed by `error`, which remains once these shapes are stated."""
        end = chain_words("; with these settings the next error is: ", error.what)
        return DependentShapes(self.path, self.shapes, self.seen, end)


def _setting(name: str, shape: tuple[int, ...] | None) -> Setting:
    shown = name if name.isprintable() and len(name) <= 80 else "NAME"
    return Setting("shapes", f"{shown}={'AxB' if shape is None else by_sizes(shape)}")


def refuse_dependent(trials: Trials, scope: Scope, names: Iterable[str]) -> None:
    """Raise DependentShapes if the shapes of some of these tensors depend on data."""
    flow = scope.flow
    dependent = [name for name in names if name in flow.culprit and name not in flow.pending]
    if dependent:
        raise dependent_shapes(trials, scope, dependent)


def dependent_shapes(trials: Trials, scope: Scope, names: Sequence[str]) -> DependentShapes:
    """Return the error about tensors whose shapes depend on data."""
    makers = {name: node for node in scope.graph.node for name in node.output}
    # Prefer tensors whose inputs have known types: the shapes of later tensors may follow from
    # theirs.
    names = [
        name
        for name in names
        if all(read in scope.flow.const or scope.is_typed(read) for read in reads(makers[name]))
    ] or names[:1]
    shapes = [
        DependentShape(
            name,
            makers[name].op_type,
            scope.reasons.get(name, _BY_DATA),
            _largest(scope, makers[name]),
            _valued(trials, scope, name),
        )
        for name in names
    ]
    known = {shape.name: shape.largest for shape in shapes if shape.largest is not None}
    rest = [name for name in names if name not in known]
    return DependentShapes(trials.path, shapes, {**known, **_seen(trials, scope, rest)})


def _seen(trials: Trials, scope: Scope, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes seen in trial runs with random data, as far as these runs succeed."""
    if not names:
        return {}
    try:
        measured, _ = measure_types(trials, scope.graph, scope.types, names, scope.flow.const)
    except (ChildFailed, LoadError):
        if len(names) == 1:
            return {}
        each = (_seen(trials, scope, [name]) for name in names[:_LISTED])
        return {name: shape for seen in each for name, shape in seen.items()}
    return {name: kind.shape for name, kind in measured.items() if kind.shape is not None}


def _largest(scope: Scope, node: onnx.NodeProto) -> tuple[int, ...] | None:
    """Return the largest possible shape of an op's first output; None if no bound is known."""
    kind = scope.types.get(node.input[0]) if node.input else None
    if kind is None or kind.shape is None:
        return None
    if is_op(node, "NonZero"):
        return max(len(kind.shape), 1), math.prod(kind.shape)
    is_flat = attribute(node, "axis") is None
    if is_op(node, "Compress", "Unique") and is_flat:
        return (math.prod(kind.shape),)
    return kind.shape if is_op(node, "Compress", "Slice") else None


def _valued(trials: Trials, scope: Scope, name: str) -> Words:
    """Return advice to set an input's value if that input determines a shape, otherwise ""."""
    if name not in scope.flow.culprit:
        return ""
    node = scope.graph.node[scope.flow.culprit[name]]
    positions = SHAPING.get(node.op_type, ())
    sources = [node.input[position] for position in positions if position < len(node.input)]
    direct = next((s for s in sources if s in trials.inputs and s != node.input[0]), None)
    if direct is None:
        return ""
    return (f"set {quote(direct)} to a value with ", Setting("values", f"{direct}=VALUE"), ", or ")


def unknown_shape(trials: Trials, scope: Scope, name: str, reason: str) -> LoadError:
    """Return the error about a shape that neither inference nor a trial run can find."""
    node = next((node for node in scope.graph.node if name in node.output), None)
    foreign = first_foreign(scope.graph.node[index] for index in live(scope.graph))
    if foreign is not None and (foreign is node or quote(foreign.domain)[1:-1] in reason):
        return foreign_op(trials.path, foreign)
    who = f", output of {quote(node.op_type)}," if node is not None else ""
    return LoadError(
        trials.path, f"the shape of {quote(name)}{who} is unknown and a trial run failed: {reason}"
    )
