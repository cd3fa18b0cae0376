"""A TFLite graph as equivalent ONNX nodes: one table, with a row for each operator.

layers       convolutions, products, pooling, resizing of images
arithmetic   element-wise operators and reductions
movement     reshaping, slicing, padding, gathering
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qnnmem.errors import Damaged
from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.loader.onnx.draft import NotTranslated
from qnnmem.loader.tflite.file import TfliteFile
from qnnmem.loader.tflite.operators.arithmetic import ARITHMETIC
from qnnmem.loader.tflite.operators.layers import LAYERS
from qnnmem.loader.tflite.operators.movement import MOVEMENT
from qnnmem.loader.tflite.raw_graph import NEVER_FOLDED, SHAPE_QUERIES, RawOp
from qnnmem.loader.tflite.step import INTEGERS, TfliteDraft, TfliteStep, Translation
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

__all__ = ["OPERATORS", "translate"]

OPERATORS: Mapping[str, Translation] = LAYERS | ARITHMETIC | MOVEMENT
# Operators that also compute on 16-bit integers.
_OF_16_BITS = frozenset(
    {
        *("ADD", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEQUANTIZE", "EXPAND_DIMS"),
        *("FULLY_CONNECTED", "LEAKY_RELU", "MUL", "PACK", "QUANTIZE", "RELU", "RELU6", "RESHAPE"),
        *("SLICE", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "SUB", "TRANSPOSE", "UNPACK"),
    }
)
_VARIABLES = ("READ_VARIABLE", "ASSIGN_VARIABLE")
# In a damaged file, a translation may misread numbers and raise any of these exceptions.
_CONTRADICTIONS = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def translate(
    file: TfliteFile, model: Model, *, reals: bool = False
) -> tuple[Model, onnx.ModelProto, tuple[tuple[str, str], ...]]:
    """Return the model, the ONNX nodes that the ops refer to, and the states as pairs of names.

    A variable becomes an input and an output of the model, as in an ONNX file. Raise NotTranslated
    for an operator without a translation, and Damaged for an operator that contradicts the shapes
    in the file. With `reals`, quantized operators compute with real numbers, as in ONNX.
    """
    names, graph = file.names[0], file.graphs[0]
    kept = {op.sources[0]: op for op in model.ops}
    draft = TfliteDraft(graph=graph, names=names, tensors=model.tensors, reals=reals)
    draft.made = {*graph.inputs}
    variables = _Variables(file, model)
    ops: list[Op] = []
    for position, raw in enumerate(graph.ops):
        op = kept.get(position)
        if op is None:
            is_known = draft.made.isdisjoint(raw.inputs) or raw.type in SHAPE_QUERIES
            if is_known and raw.type not in NEVER_FOLDED:
                _fold(draft, position, raw)
            variables.follow(raw)
            continue
        draft.made.update(raw.outputs)
        ops.append(_translated(draft, position, raw, op, variables))
    ops += variables.finish(draft)
    translated = _with_states(model, ops, variables)
    return translated, draft.proto(translated), variables.pairs


def _fold(draft: TfliteDraft, position: int, raw: RawOp) -> None:
    try:
        draft.fold(raw)
    except NotTranslated as exc:
        raise NotTranslated(f"operator {position} ({quote(raw.type)}): {exc}") from exc


def _translated(draft: TfliteDraft, position: int, raw: RawOp, op: Op, variables: _Variables) -> Op:
    where = f"operator {position} ({quote(raw.type)})"
    if raw.custom:
        raise NotTranslated(f"{where} is a custom operator")
    try:
        step = TfliteStep(draft, position, raw)
        if raw.type in _VARIABLES:
            return variables.access(step, raw, op)
        if raw.type not in OPERATORS:
            raise NotTranslated(f"{where} is not supported")
        step.check_shapes()
        if raw.type not in _OF_16_BITS and step.has_type(DType.INT16):
            raise NotTranslated(f"{where} is not supported with 16 bits")
        OPERATORS[raw.type](step)
    except Damaged as exc:
        raise Damaged(f"{where} {exc}") from exc
    except NotTranslated as exc:
        raise NotTranslated(f"{where}: {exc}" if where not in str(exc) else str(exc)) from exc
    except _CONTRADICTIONS as exc:
        raise NotTranslated(f"{where} has invalid options or constants") from exc
    return replace(op, sources=step.sources)


@dataclass
class _Variables:
    """The variables of a model as pairs of an input and an output."""

    file: TfliteFile
    model: Model
    handles: dict[int, str] = field(default_factory=dict)  # tensor -> state that it is a handle of
    now: dict[str, str] = field(default_factory=dict)  # state -> tensor with its current value
    tensors: dict[str, Tensor] = field(default_factory=dict)
    encodings: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = {name: name for name in self.model.states}

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Names of the old and the new value of each variable."""
        return tuple(self.now.items())

    def follow(self, raw: RawOp) -> None:
        """Record which tensor is a handle of which variable."""
        if raw.type == "VAR_HANDLE":
            name = self.file.variables.get(raw.variable, "")
            self.handles.update(dict.fromkeys(raw.outputs, name))

    def access(self, step: TfliteStep, raw: RawOp, op: Op) -> Op:
        """Return READ_VARIABLE or ASSIGN_VARIABLE as an op that copies."""
        name = self.handles[raw.inputs[0]]
        index = raw.outputs[0] if raw.type == "READ_VARIABLE" else raw.inputs[1]
        tensor = self.file.graphs[0].tensors[index]
        if step.is_quantized(tensor):
            self.encodings[name] = step.encoding(tensor)
        if raw.type == "READ_VARIABLE":
            step.write_raw(step.emit("Identity", self.now[name]))
            return replace(op, inputs=(self.now[name],), sources=step.sources)
        source = step.raw(1)
        new = self._next(name)
        step.name_result(step.emit("Identity", source), new)
        inputs = tuple(source for source in op.inputs if source != name)
        return replace(op, inputs=inputs, outputs=(new,), sources=step.sources)

    def _next(self, name: str) -> str:
        new = self.file.unique(f"{name}:next", len(self.tensors))
        self.tensors[new] = replace(self.model.tensors[name], name=new)
        self.now[name] = new
        return new

    def finish(self, draft: TfliteDraft) -> list[Op]:
        """Check all initial values, then return ops that copy variables that no operator writes."""
        self._check_start()
        copies = []
        for name in [name for name, now in self.now.items() if name == now]:
            step = TfliteStep(draft, len(draft.graph.ops), RawOp("READ_VARIABLE", (), ()))
            new = self._next(name)
            step.name_result(step.emit("Identity", name), new)
            op = Op(f"keep {name}", "READ_VARIABLE", (name,), (new,), sources=step.sources)
            copies.append(op)
        return copies

    def _check_start(self) -> None:
        """Raise NotTranslated for variables with an initial value other than 0."""
        for call in self.file.graphs[0].ops:
            for index in call.subgraphs if call.type == "CALL_ONCE" else ():
                graph, handles = self.file.graphs[index], dict[int, str]()
                draft = TfliteDraft(graph=graph, names=self.file.names[index])
                for op in graph.ops:
                    if op.type == "VAR_HANDLE":
                        name = self.file.variables.get(op.variable, "")
                        handles.update(dict.fromkeys(op.outputs, name))
                    elif op.type != "ASSIGN_VARIABLE":
                        draft.fold(op)
                    elif name := handles.get(op.inputs[0], ""):
                        self._check_value(name, draft.value(op.inputs[1]))

    def _check_value(self, name: str, value: Any) -> None:
        _, zero = self.encodings.get(name, (1.0, 0))
        if value is None or (value != zero).any():
            start = "an unknown value" if value is None else "a value other than 0"
            raise NotTranslated(f"variable {quote(name)} starts with {start}")


def _with_states(model: Model, ops: list[Op], variables: _Variables) -> Model:
    """Return the model with variables as inputs and outputs, and with integer encodings."""
    graph = variables.file.graphs[0]
    encodings = dict(variables.encodings)
    for name, raw in zip(variables.file.names[0], graph.tensors, strict=True):
        if name in model.tensors and len(raw.scales) == 1 and model.tensors[name].dtype in INTEGERS:
            encodings[name] = (raw.scales[0], raw.zeros[0] if raw.zeros else 0)
    # The new value of a variable has the encoding of the old value.
    encodings |= {new: encodings[old] for old, new in variables.pairs if old in encodings}
    return replace(
        model,
        tensors={**model.tensors, **variables.tensors},
        ops=tuple(ops),
        inputs=(*model.inputs, *(old for old, _ in variables.pairs)),
        outputs=(*model.outputs, *(new for _, new in variables.pairs)),
        states=(),
        encodings=encodings,
    )
