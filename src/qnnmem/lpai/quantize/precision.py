"""Checks whether a model is quantized as LPAI requires, and which ops prevent that.

A model counts as quantized if every op that computes reads and writes integers. Only graph inputs
and outputs may be float: an input if it is quantized before any computation, an output if it is
dequantized after all computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from qnnmem.errors import Setting, Words
from qnnmem.ir import Effect, Model, Op, Tensor
from qnnmem.loader.onnx.graph import QUANT_DOMAINS, OnnxGraph, is_op, live
from qnnmem.loader.onnx.sizes.free_dimensions import find_open_inputs
from qnnmem.lpai.program.contents import may_hold
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

# Ops that move or convert data without computing: allowed between float inputs or outputs and
# integers.
_MOVERS = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "Transpose", "Cast"),
        *("QUANTIZE", "DEQUANTIZE", "TRANSPOSE", "CAST"),
    }
)
_MAX_NAMED = 3

_CONTROL = ("If", "Loop", "Scan")
_QUANTIZED = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "QGemm")
_FLOAT = 1
_FLOATS = {10: "float16", 11: "float64", 16: "bfloat16"}  # ONNX element types


@dataclass(frozen=True, slots=True)
class FloatOp:
    """An op that computes in floating point."""

    name: str
    type: str
    tensor: str  # the first float tensor that the op reads or writes

    def __str__(self) -> str:
        return f"{quote(self.name)} ({quote(self.type)[1:-1]})"


@dataclass(frozen=True, slots=True)
class ModelPrecision:
    """The result of checking whether a model computes in integers, with the ops that use floats."""

    ops: int  # including those inside branches and loops
    float_ops: tuple[FloatOp, ...]  # in execution order
    float_io: tuple[str, ...]  # float graph inputs and outputs
    bits: tuple[int, ...]  # widths in bits of integer tensors that ops write, ascending

    @property
    def is_quantized(self) -> bool:
        """True if LPAI would accept the model, because no op computes in floating point."""
        return not self.float_ops

    @property
    def sentence(self) -> str:
        """The result as a sentence, with counts and the first ops that use floating point."""
        if self.is_quantized:
            border = f"; float inputs or outputs: {_some(self.float_io)}" if self.float_io else ""
            return f"quantized: 0 of {self.ops} ops compute in floating point{border}"
        named = ", ".join(str(op) for op in self.float_ops[:_MAX_NAMED])
        more = len(self.float_ops) - _MAX_NAMED
        rest = f" and {more} more" if more > 0 else ""
        return f"{len(self.float_ops)} of {self.ops} ops compute in floating point: {named}{rest}"


def float_tensors(model: Model) -> tuple[str, ...]:
    """Return the floating-point tensors except constants, including graph inputs and outputs."""
    constants = set(model.constants)
    return tuple(n for n, t in model.tensors.items() if t.dtype.is_float and n not in constants)


def float_io(model: Model) -> tuple[str, ...]:
    """Return the floating-point graph inputs and outputs, inputs first."""
    names = dict.fromkeys((*model.inputs, *model.outputs))
    return tuple(n for n in names if n in model.tensors and model.tensors[n].dtype.is_float)


def classify(model: Model) -> ModelPrecision:
    """Return which ops of a model compute in floating point, and the widths of its integers."""
    floats = frozenset(float_tensors(model)) - _unread(model)
    border = _Border(model, floats)
    outer = [
        FloatOp(op.name, op.type, next(_touched(op, floats)))
        for op in model.ops
        if any(_touched(op, floats)) and not border.allows(op)
    ]
    inner = [item for op in model.ops for body in op.bodies for item in _inside(body, floats)]
    return ModelPrecision(
        ops=_count(model),
        float_ops=(*outer, *inner),
        float_io=float_io(model),
        bits=tuple(sorted(_widths(model))),
    )


class _Border:
    """The float tensors that hold an unchanged input or output, possibly in another shape."""

    def __init__(self, model: Model, floats: frozenset[str]) -> None:
        self.floats, self.outputs = floats, set(model.outputs)
        self.entering = {name for name in model.inputs if name in floats}
        for op in filter(_is_mover, model.ops):
            if all(name in self.entering for name in op.inputs if name in floats):
                # An op that reads only integers computes its float result: that is not an unchanged
                # input.
                self.entering.update(n for n in op.outputs if n in floats and _reads(op, floats))
        self.leaving = self._leaving(model) - self.entering

    def allows(self, op: Op) -> bool:
        """Return whether an op only moves a float input or output."""
        before = {name for name in op.inputs if name in self.floats}
        after = {name for name in op.outputs if name in self.floats}
        if not _is_mover(op):
            return False
        # A tensor that is float from input to output was never quantized.
        enters = (before | after) <= self.entering and not after & self.outputs
        return enters or (before | after) <= self.leaving

    def _leaving(self, model: Model) -> set[str]:
        """Return the float outputs, and the tensors that are only moved to a float output."""
        readers: dict[str, list[Op]] = {}
        for op in model.ops:
            for name in op.inputs:
                readers.setdefault(name, []).append(op)
        leaving: set[str] = {name for name in model.outputs if name in self.floats}
        for op in reversed(model.ops):
            for name in op.outputs:
                moved = [_is_mover(r) and set(r.outputs) <= leaving for r in readers.get(name, [])]
                if name in self.floats and moved and all(moved):
                    leaving.add(name)
        return leaving


def _unread(model: Model) -> frozenset[str]:
    """Return the unread results of ops with several results; a compiler drops unread results."""
    read = {name for op in model.ops for name in op.inputs} | set(model.outputs)
    several = (op for op in model.ops if len(op.outputs) > 1)
    return frozenset(name for op in several for name in op.outputs if name not in read)


def _is_mover(op: Op) -> bool:
    return not op.bodies and (op.type in _MOVERS or op.effect is Effect.VIEW)


def _reads(op: Op, floats: frozenset[str]) -> bool:
    return any(name in floats for name in op.inputs)


def _touched(op: Op, floats: frozenset[str]) -> Iterator[str]:
    return (name for name in chain(op.inputs, op.outputs) if name in floats)


def _inside(body: Model, outer: frozenset[str]) -> Iterator[FloatOp]:
    """Yield the ops of a branch or loop body that read or write a float."""
    floats = outer | frozenset(float_tensors(body))
    for op in body.ops:
        if touched := next(_touched(op, floats), None):
            yield FloatOp(op.name, op.type, touched)
        for inner in op.bodies:
            yield from _inside(inner, floats)


def _count(model: Model) -> int:
    return len(model.ops) + sum(_count(body) for op in model.ops for body in op.bodies)


def _widths(model: Model) -> set[int]:
    tensors: Mapping[str, Tensor] = model.tensors
    written = (name for op in model.ops for name in op.outputs)
    return {
        tensors[n].dtype.bits for n in written if n in tensors and not tensors[n].dtype.is_float
    }


def _some(names: tuple[str, ...]) -> str:
    rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(quote(name) for name in names[:_MAX_NAMED]) + rest


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a model cannot be quantized, and whether qnnmem can run it unquantized."""

    words: Words
    runs_unquantized: bool = True
    unquantized: str = ""  # advice on what to do instead of quantizing


def find_obstacle(model: onnx.ModelProto) -> Obstacle | None:
    """Return the first reason why a float model cannot be quantized, or None."""
    nodes = [model.graph.node[index] for index in live(model.graph)]
    if words := _foreign(nodes):
        return Obstacle(words, runs_unquantized=False)
    if words := _quantized_already(nodes):
        advice = ", or do not quantize if no op computes in floating point"
        return Obstacle(words, unquantized=advice)
    clause = _nothing_known(nodes) or _other_float(nodes, _kinds(model.graph))
    return Obstacle(clause) if clause else None


def find_control(model: onnx.ModelProto) -> Obstacle | None:
    """Return an obstacle that names the first branch or loop with float results, or None.

    The body of such a branch or loop would not be quantized.
    """
    nodes = [model.graph.node[index] for index in live(model.graph)]
    clause = _float_control(model, nodes, _kinds(model.graph))
    return Obstacle(clause) if clause else None


def _kinds(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the element type of each tensor."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    return {
        **{info.name: info.type.tensor_type.elem_type for info in infos},
        **{item.name: item.data_type for item in graph.initializer},
    }


def _quantized_already(nodes: Iterable[onnx.NodeProto]) -> str:
    """Return a clause that names the first quantized node, or ""."""
    for node in nodes:
        kind = node.op_type
        if kind in _QUANTIZED or kind.startswith("QLinear") or kind.endswith("Integer"):
            return (
                f"is already partly quantized, as {_title(node)} shows; quantize the original "
                "float model"
            )
    return ""


def _nothing_known(nodes: Iterable[onnx.NodeProto]) -> str:
    """Return a clause if no operator can be quantized, as in tree models, otherwise ""."""
    domains = dict.fromkeys(node.domain for node in nodes)
    if not domains or any(domain in QUANT_DOMAINS for domain in domains):
        return ""
    return f"all operators belong to domain {quote(next(iter(domains)))}, so none can be quantized"


def _foreign(nodes: Iterable[onnx.NodeProto]) -> str:
    for node in nodes:
        if not may_hold(node):
            domain = f" of domain {quote(node.domain)}" if node.domain else ""
            return f"{_title(node)}{domain} cannot be prepared; export it as other ONNX operators"
    return ""


def _other_float(nodes: Iterable[onnx.NodeProto], kinds: Mapping[str, int]) -> str:
    """Return a clause that names the first node with an unsupported float type, or ""."""
    for node in nodes:
        for name in (*node.input, *node.output):
            if kinds.get(name) in _FLOATS and not is_op(node, "Cast"):
                kind = _FLOATS[kinds[name]]
                return (
                    f"{_title(node)} computes in {kind}, but only float32 can be quantized; "
                    "convert the model to float32 first"
                )
    return ""


def _float_control(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], kinds: Mapping[str, int]
) -> Words:
    """Return a clause about the first branch or loop with float results, or ""."""
    control = (node for node in nodes if is_op(node, *_CONTROL))
    node = next((n for n in control if any(kinds.get(o, _FLOAT) == _FLOAT for o in n.output)), None)
    if node is None:
        return ""
    what = f"the ops inside {_title(node)} cannot be quantized; "
    switches = find_open_inputs(OnnxGraph.of(model.graph)).switches
    if is_op(node, "If") and switches:
        switch = switches[0]
        value = str(switch.value(switch.candidates[0])).lower()
        setting = Setting("values", f"{switch.input}={value}")
        return (f"{what}fix the input that decides the branch, e.g. with ", setting)
    if is_op(node, "If"):
        return f"{what}export the model with the branch that is taken"
    return f"{what}export the model with the loop unrolled"


def _title(node: onnx.NodeProto) -> str:
    """Return a node's operator and name, worded for a message."""
    name = node.name or next(iter(node.output), "")
    return f"{quote(node.op_type)[1:-1]} {quote(name)}"
