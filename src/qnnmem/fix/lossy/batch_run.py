"""Runs a model of a small batch on a larger one: split, run, put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.errors import LoadError, UsageError
from qnnmem.fix.parts.chain import TIME_LIMIT_S, ChainChild, packed
from qnnmem.fix.parts.chain_program import PartStep, RunChain
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WIDEST = 8  # bytes of one element, whatever its type


def run_in_batches(
    model: Path, inputs: Mapping[str, NDArray[Any]], *, time_limit_s: float = TIME_LIMIT_S
) -> dict[str, NDArray[Any]]:
    """Run a model with a small batch on a large one; return arrays by name of output.

    onnxruntime runs it on the CPU in a limited child; ChildFailed if it cannot. An input that has
    the model's own shape is given to every run.
    """
    import numpy

    wanted, outputs, room = _border(model)
    pieces = {name: _pieces(name, inputs, shape) for name, (_, shape) in wanted.items()}
    runs = max(map(len, pieces.values()), default=1)
    if any(len(found) not in (1, runs) for found in pieces.values()):
        raise UsageError("inputs do not agree on how many runs a batch takes")
    part = PartStep(model.absolute(), tuple(wanted), tuple(outputs))
    results = []
    with ChainChild(time_limit_s) as child:
        for at in range(runs):
            forms, payload = packed(wanted, {name: p[at % len(p)] for name, p in pieces.items()})
            results.append(child.run(RunChain((part,), forms, tuple(outputs)), payload, room))
    if runs == 1:
        return results[0]
    return {name: numpy.concatenate([one[name] for one in results]) for name in outputs}


def _border(model: Path) -> tuple[dict[str, tuple[str, tuple[int, ...]]], list[str], int]:
    """Return types and shapes of inputs, names of outputs, and the most bytes of outputs."""
    from onnx import helper

    from qnnmem.loader.onnx import read_guarded

    graph = read_guarded(model).proto.graph
    stored = {item.name for item in graph.initializer}
    wanted = {}
    for item in graph.input:
        kind = item.type.tensor_type
        shape = tuple(size.dim_value for size in kind.shape.dim)
        if item.name not in stored:
            wanted[item.name] = (helper.tensor_dtype_to_np_dtype(kind.elem_type).name, shape)
    sizes = [[d.dim_value for d in item.type.tensor_type.shape.dim] for item in graph.output]
    if not all(math.prod(shape) for _, shape in wanted.values()) or not all(map(math.prod, sizes)):
        raise LoadError(model, "leaves sizes of inputs or outputs open; fix them first")
    return wanted, [item.name for item in graph.output], _WIDEST * sum(map(math.prod, sizes))


def _pieces(
    name: str, inputs: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
) -> list[NDArray[Any]]:
    if name not in inputs:
        raise UsageError(f"the model needs the input {quote(name)}")
    value = inputs[name]
    if value.shape == shape:
        return [value]
    like = value.ndim == len(shape) > 0 and value.shape[1:] == shape[1:] and value.shape[0] > 0
    if not like or value.shape[0] % shape[0]:
        raise UsageError(
            f"input {quote(name)} has shape {value.shape}, which is no whole number of {shape}"
        )
    return [value[at : at + shape[0]] for at in range(0, value.shape[0], shape[0])]
