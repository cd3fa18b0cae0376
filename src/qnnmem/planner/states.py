"""State that survives from one execution to the next: pairs of an input and an output."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qnnmem.errors import Setting, UsageError
from qnnmem.ir.model import Effect, Model

StatePair = tuple[str, str]

# Words by which exporters tell the old value of a state from the new one.
_OLD_NEW = re.compile(
    r"past_key_values|past|present|previous|prev|next|new|old|updated|initial|init|input|output|in|out"
)


def check_states(model: Model, pairs: Iterable[StatePair]) -> tuple[StatePair, ...]:
    """The pairs, if each names an input and an output of the same type and shape."""
    pairs = tuple(pairs)
    for old, new in pairs:
        wrong = _fault(model, old, new)
        if wrong:
            raise UsageError((Setting("states", f"{old}={new}"), f": {wrong}"))
    names = [name for pair in pairs for name in pair]
    if len(set(names)) != len(names):
        raise UsageError((Setting("states"), " names the same tensor twice"))
    return pairs


def _fault(model: Model, old: str, new: str) -> str:
    """What keeps an output from becoming an input of the next run; nothing if it can."""
    if old not in model.inputs or new not in model.outputs:
        return (
            f"expected input=output; inputs are {_list(model.inputs)}, "
            f"outputs are {_list(model.outputs)}"
        )
    if new in model.constants or new in model.states:
        return f"output {new} is never written by an op"
    a, b = model.tensors[old], model.tensors[new]
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype.value} {_shape(a.shape)} cannot hold {b.dtype.value} {_shape(b.shape)}"
    return ""


def suggest_states(model: Model) -> tuple[StatePair, ...]:
    """Input and output pairs that look like state: same type, shape and stem of the name.

    An output that only hands an input through keeps nothing that the caller has not given.
    """
    outputs: dict[tuple[object, ...], list[str]] = {}
    handed = _handed_through(model)
    for name in model.outputs:
        if name in handed:
            continue
        outputs.setdefault(_trace(model, name), []).append(name)
    pairs = []
    for name in model.inputs:
        trace = _trace(model, name)
        if trace[0] and outputs.get(trace):
            pairs.append((name, outputs[trace].pop(0)))
    return tuple(pairs)


def _handed_through(model: Model) -> set[str]:
    """Inputs, and tensors that are one under another name or shape."""
    found = set(model.inputs)
    for op in model.ops:
        if op.effect is Effect.VIEW and op.inputs[0] in found:
            found.add(op.outputs[0])
    return found


def _trace(model: Model, name: str) -> tuple[object, ...]:
    tensor = model.tensors[name]
    return (_stem(name), tensor.dtype, tensor.shape)


def _stem(name: str) -> str:
    """The part of `h0`, `hn`, `state_in`, `stateN` or `past.0.key` that names the state."""
    bare = _OLD_NEW.sub("", name.lower()[:200])
    bare = re.sub(r"[^a-z0-9]+", "", bare)
    stem = re.sub(r"(?<=.)(n|\d+)$", "", bare)
    return stem if re.search("[a-z]", stem) else ""  # a bare number names nothing


def _list(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 8 else shown or "none"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
