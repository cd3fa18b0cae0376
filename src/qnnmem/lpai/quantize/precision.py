"""Whether a model is quantized as LPAI needs it, and which ops prevent that.

A model counts as quantized when every op that computes reads and writes integers. Floats may only
be at the border: a graph input may be float if it is quantized before anything computes on it, a
graph output may be float if it is dequantized after everything has been computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from qnnmem.ir import Effect, Model, Op, Tensor
from qnnmem.text import quote

# They move or convert data and compute nothing: allowed between a float at the border and integers.
_MOVERS = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "Transpose", "Cast"),
        *("QUANTIZE", "DEQUANTIZE", "TRANSPOSE", "CAST"),
    }
)
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class FloatOp:
    """An op that computes on floating-point numbers."""

    name: str
    type: str
    tensor: str  # the first float tensor that it reads or writes

    def __str__(self) -> str:
        return f"{quote(self.name)} ({quote(self.type)[1:-1]})"


@dataclass(frozen=True, slots=True)
class ModelPrecision:
    """What a model computes in."""

    ops: int  # all of them, those inside of branches and loops included
    float_ops: tuple[FloatOp, ...]  # in execution order
    float_io: tuple[str, ...]  # graph inputs and outputs that are float
    bits: tuple[int, ...]  # widths of the integer tensors between ops, ascending

    @property
    def is_quantized(self) -> bool:
        """Whether LPAI would take it: nothing computes on floats."""
        return not self.float_ops

    @property
    def sentence(self) -> str:
        """The verdict, with counts and the first ops that compute in floating point."""
        if self.is_quantized:
            border = f"; float at the border: {_some(self.float_io)}" if self.float_io else ""
            return f"quantized: none of {self.ops} ops computes in floating point{border}"
        named = ", ".join(str(op) for op in self.float_ops[:_MAX_NAMED])
        more = len(self.float_ops) - _MAX_NAMED
        rest = f" and {more} more" if more > 0 else ""
        return f"{len(self.float_ops)} of {self.ops} ops compute in floating point: {named}{rest}"


def float_tensors(model: Model) -> tuple[str, ...]:
    """Activations that are floating point, graph inputs and outputs included."""
    constants = set(model.constants)
    return tuple(n for n, t in model.tensors.items() if t.dtype.is_float and n not in constants)


def float_io(model: Model) -> tuple[str, ...]:
    """Graph inputs and outputs that are floating point, inputs first."""
    names = dict.fromkeys((*model.inputs, *model.outputs))
    return tuple(n for n in names if n in model.tensors and model.tensors[n].dtype.is_float)


def classify(model: Model) -> ModelPrecision:
    """What a model computes in, and which of its ops compute in floating point."""
    floats = frozenset(float_tensors(model)) - _unread(model)
    border = _Border(model, floats)
    found = [
        FloatOp(op.name, op.type, next(iter(_touched(op, floats)), ""))
        for op in model.ops
        if any(_touched(op, floats)) and not border.allows(op)
    ]
    inner = [item for op in model.ops for body in op.bodies for item in _inside(body, floats)]
    return ModelPrecision(
        ops=_count(model),
        float_ops=(*found, *inner),
        float_io=float_io(model),
        bits=tuple(sorted(_widths(model))),
    )


class _Border:
    """Float tensors that are still an input or already an output, under another shape."""

    def __init__(self, model: Model, floats: frozenset[str]) -> None:
        self.floats, self.outputs = floats, set(model.outputs)
        self.entering = {name for name in model.inputs if name in floats}
        for op in filter(_is_mover, model.ops):
            if all(name in self.entering for name in op.inputs if name in floats):
                # Out of integers comes something computed, which has not just entered.
                self.entering.update(n for n in op.outputs if n in floats and _reads(op, floats))
        self.leaving = self._leaving(model) - self.entering

    def allows(self, op: Op) -> bool:
        """Whether an op only brings data in or out."""
        before = {name for name in op.inputs if name in self.floats}
        after = {name for name in op.outputs if name in self.floats}
        if not _is_mover(op):
            return False
        # What enters and leaves as float was never quantized.
        enters = (before | after) <= self.entering and not after & self.outputs
        return enters or (before | after) <= self.leaving

    def _leaving(self, model: Model) -> set[str]:
        """Float outputs, and what is read by nothing but ops that move it to an output."""
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
    """Further results of ops that nothing reads; a compiler leaves them out."""
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
    """Ops of a branch or loop body that touch a float; there is no border inside."""
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
    made = (name for op in model.ops for name in op.outputs)
    return {tensors[n].dtype.bits for n in made if n in tensors and not tensors[n].dtype.is_float}


def _some(names: tuple[str, ...]) -> str:
    rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(quote(name) for name in names[:_MAX_NAMED]) + rest
