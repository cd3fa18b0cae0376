"""A QNN context binary of the HTP backend as text."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.report.shell import file_word, next_line
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

SHOWN = 20  # tensors of one kind; --json has them all


def render_text(context: HtpContext, path: str) -> str:
    """The whole text; names are made safe to print."""
    return "\n".join(_lines(context, path)) + "\n"


def _lines(context: HtpContext, path: str) -> Iterator[str]:
    count = len(context.graphs)
    what = f"{count} graph{'' if count == 1 else 's'}"
    soc = "no SoC named" if context.soc_model is None else f"soc_model {context.soc_model}"
    arch = "" if context.dsp_arch is None else f", Hexagon v{context.dsp_arch}"
    yield f"QNN context binary: {what}, {soc}{arch}, by QAIRT {shorten(context.build_id)}"
    size = f"{counted(context.file_bytes, 'byte')} ({format_size(context.file_bytes)})"
    core = ".".join(map(str, context.core_api))
    yield f"{shorten(path, 200)}: {size}, backend {context.backend_id}, core API {core}"
    for graph in context.graphs:
        yield ""
        yield from _graph_lines(graph)
    yield ""
    yield next_line("the memory bill", ["qnnmem", "footprint", file_word(path)])


def _graph_lines(graph: HtpGraph) -> Iterator[str]:
    yield f"graph {shorten(graph.name)}"
    sizes = (
        *(("weights", graph.const), ("shared weights", graph.shared_weights), ("IO", graph.io)),
        *(("op data", graph.op_data), ("DDR tensors", graph.ddr_tensors)),
        *(("spill/fill", graph.spill_fill), ("VTCM as stored", graph.vtcm)),
    )
    for name, size in sizes:
        shown = "not in the file" if size is None else counted(size, "byte")
        yield f"  {name:<15}{shown:>22}"
    for kind, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield f"  {kind}:" if tensors else f"  {kind}: none"
        yield from (f"    {_tensor_line(tensor)}" for tensor in tensors[:SHOWN])
        if len(tensors) > SHOWN:
            yield f"    and {len(tensors) - SHOWN} more; --json has them all"


def _tensor_line(tensor: TensorInfo) -> str:
    shape = "x".join(map(str, tensor.dimensions)) or "scalar"
    pair = tensor.scale_offset
    quant = "" if pair is None else f", scale {pair.scale:.6g} offset {pair.offset}"
    what = f"{tensor.data_type.name} {shape}, {counted(tensor.nbytes, 'byte')}{quant}"
    return f"{shorten(tensor.name)}  {what}, {tensor.mem_type.name.lower()}"
