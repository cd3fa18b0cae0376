"""What a file tells before it is compiled: things that compile and go wrong, or take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError
from qnnmem.htp.compile.fp16 import may_overflow
from qnnmem.htp.compile.model import is_composed
from qnnmem.htp.compile.ranks import wrong_ranks
from qnnmem.htp.compile.value import CompileOptions, HtpPrecision
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

_NAMED = 3
_RECURRENT = ("GRU", "LSTM", "RNN")
_MANY_STEPS = 200
# Compiling a GRU with 64 units for SM8650 by onnxruntime-qnn 2.7.0 on two shared cores.
_SEEN = "a GRU of 64 units took 5 s for 200 steps and 24 s for 400"


def foreseen(path: Path, options: CompileOptions) -> tuple[str, ...]:
    """Warnings about a model, each with its numbers; none for a file that cannot be read."""
    if options.trust or is_composed(
        path
    ):  # its shapes are fixed and its recurrences are as they are
        return ()
    from qnnmem.load.onnx import read_guarded

    try:
        model = read_guarded(path)
    except LoadError:  # which the compile will say
        return ()
    graph = model.proto.graph
    found = [*list(wrong_ranks(graph, options))[:_NAMED], *_unrolled(graph, options)]
    if options.precision is HtpPrecision.FP16:
        found += may_overflow(path, model, options)
    return tuple(found)


def _unrolled(graph: onnx.GraphProto, options: CompileOptions) -> Iterator[str]:
    """Recurrent nodes over many steps, each of which becomes operators of its own."""
    shapes = {info.name: info.type.tensor_type.shape.dim for info in graph.input}
    shapes |= {info.name: info.type.tensor_type.shape.dim for info in graph.value_info}
    for node in graph.node:
        if node.op_type not in _RECURRENT or not node.input:
            continue
        name = node.input[0]
        layout = next((item.i for item in node.attribute if item.name == "layout"), 0)
        at = 1 if layout else 0
        steps = 0
        if name in options.shapes and len(options.shapes[name]) > at:
            steps = options.shapes[name][at]
        elif len(shapes.get(name, ())) > at:
            size = shapes[name][at]
            steps = size.dim_value or options.dims.get(size.dim_param, 0)
        if steps >= _MANY_STEPS:
            which = quote(node.name or next(iter(node.output), ""))
            yield (
                f"{which} ({node.op_type}) runs {steps:,} steps, which the compiler unrolls: that "
                f"may take minutes and gigabytes ({_SEEN}); fewer steps with the state as input "
                "and output compile sooner"
            )
