"""The graphs of a DLC as text and as JSON, schema `qnnmem.inspect-dlc/1`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.qnn.graph import STATIC, ComposedGraph, ComposedTensor, Quantization
from qnnmem.report.shell import file_word, next_line
from qnnmem.results.schema import write_json
from qnnmem.text import MAX_NAME, counted, shorten
from qnnmem.units import format_size

SCHEMA = "qnnmem.inspect-dlc/1"
SHOWN = 20  # operators, and tensors of one kind; --json has them all
_SIDES = (("inputs", "WRITE"), ("outputs", "READ"))


def render_text(graphs: Sequence[ComposedGraph], path: str) -> str:
    """The whole text; names are made safe to print."""
    return "\n".join(_lines(graphs, path)) + "\n"


def _lines(graphs: Sequence[ComposedGraph], path: str) -> Iterator[str]:
    yield f"DLC: {counted(len(graphs), 'graph')}"
    yield shorten(path, 200)
    for graph in graphs:
        yield ""
        yield from _graph_lines(graph)
    yield ""
    yield next_line("the peak, and what lies where", ["qnnmem", "plan", file_word(path), "-v"])


def _graph_lines(graph: ComposedGraph) -> Iterator[str]:
    yield f"graph {shorten(graph.name, MAX_NAME)}"
    kinds = Counter(op.type for op in graph.ops).most_common()
    named = ", ".join(f"{count} {shorten(kind)}" for kind, count in kinds[:SHOWN])
    more = ", …" if len(kinds) > SHOWN else ""
    yield f"  {counted(len(graph.ops), 'operator')}: {named}{more}"
    constants = [one for one in graph.tensors if one.type in STATIC]
    size = sum(one.stored_bytes for one in constants)
    held = f"{counted(size, 'byte')} ({format_size(size)})"
    yield f"  {counted(len(constants), 'constant')} of {held}{_parameter_words(graph, constants)}"
    for kind, tensors in _sides(graph):
        yield f"  {kind}:" if tensors else f"  {kind}: none"
        yield from (f"    {_tensor_line(tensor)}" for tensor in tensors[:SHOWN])
        yield from _rest(tensors)
    yield "  what they make, in order:"
    made = {one.id: one for one in graph.tensors}
    for op in graph.ops[:SHOWN]:
        source = f", from {shorten(', '.join(op.origins))}" if op.origins else ""
        outputs = "; ".join(_tensor_line(made[one]) for one in op.outputs if one in made)
        yield f"    {shorten(op.type)} {shorten(op.name)}{source}: {outputs}"
    yield from _rest(graph.ops)


def _parameter_words(graph: ComposedGraph, constants: Sequence[ComposedTensor]) -> str:
    """How many constants say how operators compute, as those are in no pool of a plan."""
    read = {one for op in graph.ops for one in op.inputs}
    others = [one for one in constants if one.id not in read]
    if not others:
        return ""
    size = counted(sum(one.stored_bytes for one in others), "byte")
    return f", {len(others):,} of them parameters of operators ({size}), which a plan leaves out"


def _rest(listed: Sequence[object]) -> Iterator[str]:
    if len(listed) > SHOWN:
        yield f"    and {len(listed) - SHOWN} more; --json has them all"


def _sides(graph: ComposedGraph) -> list[tuple[str, list[ComposedTensor]]]:
    return [
        (kind, [one for one in graph.tensors if "APP_" in one.type.name and way in one.type.name])
        for kind, way in _SIDES
    ]


def _tensor_line(tensor: ComposedTensor) -> str:
    shape = "x".join(map(str, tensor.dimensions)) or "scalar"
    what = f"{tensor.data_type.name} {shape}, {counted(tensor.nbytes, 'byte')}"
    return f"{shorten(tensor.name)}  {what}{_quantization_words(tensor.quantization)}"


def _quantization_words(quant: Quantization | None) -> str:
    if quant is None:
        return ""
    if not quant.scales:
        return f", encoding {quant.encoding}"
    if quant.axis is not None:
        return f", {counted(len(quant.scales), 'scale')} along axis {quant.axis}"
    return f", scale {quant.scales[0]:.6g} offset {quant.offsets[0]}"


def render_json(graphs: Sequence[ComposedGraph], path: str) -> str:
    """One JSON object."""
    listed = [_graph(graph) for graph in graphs]
    return write_json({"schema": SCHEMA, "file": path, "graphs": listed})


def _graph(graph: ComposedGraph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "tensors": [_tensor(one) for one in graph.tensors],
        "ops": [
            {
                "name": op.name,
                "package": op.package,
                "type": op.type,
                "inputs": list(op.inputs),
                "outputs": list(op.outputs),
                "scalars": dict(op.scalars),
                "arrays": {name: _tensor(one) for name, one in op.arrays.items()},
                "from": list(op.origins),
            }
            for op in graph.ops
        ],
    }


def _tensor(tensor: ComposedTensor) -> dict[str, Any]:
    quant = tensor.quantization
    return {
        "id": tensor.id,
        "name": tensor.name,
        "type": f"QNN_TENSOR_TYPE_{tensor.type.name}",
        "data_type": f"QNN_DATATYPE_{tensor.data_type.name}",
        "dimensions": list(tensor.dimensions),
        "bytes": tensor.nbytes,
        "stored_bytes": tensor.stored_bytes,
        "quantization": None
        if quant is None
        else {
            "encoding": quant.encoding,
            "axis": quant.axis,
            "bits": quant.bits,
            "scales": list(quant.scales),
            "offsets": list(quant.offsets),
        },
    }
