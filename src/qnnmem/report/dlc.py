"""The graphs of a DLC as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from qnnmem.qnn.tensor import Quantization
from qnnmem.report.shell import file_word, next_line
from qnnmem.results.dlc import DlcGraph, DlcResult, DlcTensor
from qnnmem.text import MAX_NAME, counted, shorten
from qnnmem.units import format_size

SHOWN = 20  # operators, and tensors of one kind; --json has them all
_STATIC = "STATIC"  # the end of a type whose bytes are in the file
_DATA_TYPE = "QNN_DATATYPE_"
_SIDES = (("inputs", "WRITE"), ("outputs", "READ"))


def render_text(result: DlcResult) -> str:
    """The whole text; names are made safe to print."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: DlcResult) -> Iterator[str]:
    graphs, path = result.graphs, result.file
    yield f"DLC: {counted(len(graphs), 'graph')}"
    yield shorten(path, 200)
    for graph in graphs:
        yield ""
        yield from _graph_lines(graph)
    yield ""
    yield next_line("the peak, and what lies where", ["qnnmem", "plan", file_word(path), "-v"])


def _graph_lines(graph: DlcGraph) -> Iterator[str]:
    yield f"graph {shorten(graph.name, MAX_NAME)}"
    kinds = Counter(op.type for op in graph.ops).most_common()
    named = ", ".join(f"{count} {shorten(kind)}" for kind, count in kinds[:SHOWN])
    more = ", …" if len(kinds) > SHOWN else ""
    yield f"  {counted(len(graph.ops), 'operator')}: {named}{more}"
    constants = [one for one in graph.tensors if one.type.endswith(_STATIC)]
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


def _parameter_words(graph: DlcGraph, constants: Sequence[DlcTensor]) -> str:
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


def _sides(graph: DlcGraph) -> list[tuple[str, list[DlcTensor]]]:
    return [
        (kind, [one for one in graph.tensors if "APP_" in one.type and way in one.type])
        for kind, way in _SIDES
    ]


def _tensor_line(tensor: DlcTensor) -> str:
    shape = "x".join(map(str, tensor.dimensions)) or "scalar"
    what = f"{tensor.data_type.removeprefix(_DATA_TYPE)} {shape}, {counted(tensor.bytes, 'byte')}"
    return f"{shorten(tensor.name)}  {what}{_quantization_words(tensor.quantization)}"


def _quantization_words(quant: Quantization | None) -> str:
    if quant is None:
        return ""
    if not quant.scales:
        return f", encoding {quant.encoding}"
    if quant.axis is not None:
        return f", {counted(len(quant.scales), 'scale')} along axis {quant.axis}"
    return f", scale {quant.scales[0]:.6g} offset {quant.offsets[0]}"
