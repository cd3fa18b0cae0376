"""Checks before a compile: models that compile and go wrong, or take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError, UsageError
from qnnmem.htp.compile.compiled import CompileOptions, HtpPrecision
from qnnmem.htp.compile.fp16 import may_overflow
from qnnmem.htp.compile.model import is_composed
from qnnmem.htp.compile.ranks import wrong_ranks
from qnnmem.loader.onnx.graph import bodies, integer
from qnnmem.loader.onnx.tensor import UNKNOWN
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx.passes.guard import GuardedModel
    from qnnmem.loader.onnx.passes.shape import ShapedModel


_NAMED = 3
_RECURRENT = ("GRU", "LSTM", "RNN")
_MANY_STEPS = 200
_SHAPING_S = 60.0  # for shapes inside a model: a warning is not worth more
# Compiling a GRU with 64 units for SM8650 by onnxruntime-qnn 2.7.0 on two shared cores.
_SEEN = "a GRU of 64 units took 5 s for 200 steps and 24 s for 400"


def foreseen(path: Path, options: CompileOptions) -> tuple[str, ...]:
    """Warnings about a model, each with its numbers; none for a file that cannot be read."""
    if options.trust or is_composed(
        path
    ):  # its shapes are fixed and its recurrences are as they are
        return ()
    from qnnmem.loader.onnx import read_guarded

    try:
        model = read_guarded(path)
    except LoadError:  # which the compile will say
        return ()
    graph = model.proto.graph
    found = [*list(wrong_ranks(graph, options))[:_NAMED], *_unrolled(path, model, options)]
    if options.precision is HtpPrecision.FP16:
        found += may_overflow(path, model, options)
    return tuple(found)


def _unrolled(path: Path, model: GuardedModel, options: CompileOptions) -> Iterator[str]:
    """Recurrent nodes over many steps, each of which becomes operators of its own."""
    if not any(map(_recurs, (model.proto.graph, *model.proto.functions))):
        return
    from qnnmem.loader.onnx.inputs import Fixed
    from qnnmem.loader.onnx.passes.resolve import open_model
    from qnnmem.loader.onnx.sizes.search import shape_model
    from qnnmem.loader.onnx.trial import TrialChild

    # Few files state the length of a sequence inside; shape inference finds it.
    given = Fixed(options.dims, options.shapes, options.values)
    try:
        with TrialChild(path, min(_SHAPING_S, options.time_limit_s)) as child:
            shaped = shape_model(open_model(model, child), given, child)
    except (LoadError, UsageError):  # which the compile will say
        return
    for node, steps in _recurrences(shaped):
        if steps >= _MANY_STEPS:
            which = quote(node.name or next(iter(node.output), ""))
            yield (
                f"{which} ({node.op_type}) runs {steps:,} steps, which the compiler unrolls: that "
                f"may take minutes and gigabytes ({_SEEN}); fewer steps with the state as input "
                "and output compile sooner"
            )


def _recurs(graph: onnx.GraphProto | onnx.FunctionProto) -> bool:
    return any(node.op_type in _RECURRENT or any(map(_recurs, bodies(node))) for node in graph.node)


def _recurrences(shaped: ShapedModel) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Recurrent nodes, those of bodies included, and their steps."""
    for scope in shaped.scope.with_bodies():
        for node in scope.graph.node:
            if node.op_type in _RECURRENT and node.input:
                shape = scope.types.get(node.input[0], UNKNOWN).shape or ()
                axis = integer(node, "layout", 0)  # 1: the batch comes first
                yield node, shape[axis] if 0 <= axis < len(shape) else 0
