"""Render the contents of a file as text: LPAI and HTP context binaries, and DLC files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from qnnmem.report.shell import file_word, next_line
from qnnmem.report.table import as_text, size_words
from qnnmem.text import MAX_NAME, counted, shorten
from qnnmem.units import format_size

if TYPE_CHECKING:
    from qnnmem.htp.binary.context import HtpContext, HtpGraph
    from qnnmem.qnn.tensor import Quantization, TensorInfo
    from qnnmem.results.inspect import (
        DlcGraph,
        DlcOp,
        DlcResult,
        DlcTensor,
        FrameWindow,
        InspectedBinary,
        InspectedGraph,
        InspectedState,
        InspectedTensor,
    )
    from qnnmem.results.plan import TcmAnswer

SHOWN = 20  # operators, and tensors of each kind; --json lists all
_WIDE = 200  # columns for paths and notes
_STATIC = "STATIC"  # suffix of tensor types with bytes in the file
_DATA_TYPE = "QNN_DATATYPE_"
_SIDES = (("inputs", "WRITE"), ("outputs", "READ"))  # sides of a graph: part of the type name

Row = TypeVar("Row")


def render_lpai(binary: InspectedBinary, path: str) -> str:
    """Render an LPAI context binary, the verdict first; names are made printable."""
    from qnnmem.report.tcm import fatal_lines, shared_pools, together

    fatal = [line for graph in binary.graphs for line in fatal_lines(graph.tcm)]
    blocks = ["\n".join([*fatal[:1], *_about(binary, path)]), *map(_graph, binary.graphs)]
    if shared := together(binary.tcm, [graph.tcm for graph in binary.graphs]):
        pools = [(g.pools.get("scratch", 0), g.pools.get("persistent", 0)) for g in binary.graphs]
        lines = [f"{shared[0]} together", _tcm(shared[1]), *shared_pools(pools)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _about(ours: InspectedBinary, path: str) -> Iterator[str]:
    graphs = counted(len(ours.graphs), "graph")
    version = shorten(ours.hw_version)
    yield f"qnnmem context binary: {graphs} for LPAI {version}, checksums correct"
    floats = sum(graph.float_ops for graph in ours.graphs)
    if floats:
        yield (
            f"computes in floating point ({counted(floats, 'op')}): only for experiments on the "
            "host"
        )
    maker = f"format {ours.format_version}, made by {shorten(ours.producer)}"
    yield f"{shorten(path, _WIDE)}: {size_words(ours.file_bytes)}, {maker}"
    parts = [f"{name} {size:,}" for name, size in _parts(ours) if size]
    if len(parts) > 1:  # a layout-only binary has no other part
        yield f"in the file: {' + '.join(parts)} = {counted(ours.file_bytes, 'byte')}"


def _parts(ours: InspectedBinary) -> Iterator[tuple[str, int]]:
    """Yield the name and size of each part of the file; the sizes add up to the file size."""
    section, graphs = ours.constants_bytes, ours.graphs
    held = sum(graph.pools["constants"] for graph in graphs)
    programs = sum(graph.program_bytes for graph in graphs)
    if held <= section:
        yield "constants", held
        yield "gaps for alignment", section - held
    else:  # graphs of one binary may share constants
        yield "constants, some shared by several graphs,", section
    yield "programs", programs
    yield "description", ours.file_bytes - section - programs


def _graph(graph: InspectedGraph) -> str:
    tcm = graph.tcm
    lines = [*_heading(graph), *_pools(graph), *([] if tcm is None else [_tcm(tcm)])]
    parts = (_io, _states, _windows, _notes)
    return "\n".join([*lines, *(line for part in parts for line in part(graph))])


def _heading(graph: InspectedGraph) -> Iterator[str]:
    program = "program in planned order" if graph.in_order else "program"
    size = graph.program_bytes
    contents = f"{program} of {size_words(size)}" if size else "layout"
    facts = f"{counted(graph.ops, 'op')}, {contents}, alignment {graph.align}"
    yield f"graph {shorten(graph.name)}: {facts}"
    if not graph.program_bytes:
        yield "  layout only: the file has pools and offsets, but no program to run"


def _pools(graph: InspectedGraph) -> Iterator[str]:
    held: dict[str, int] = {}
    for buffer in graph.buffers:
        held[buffer.pool] = held.get(buffer.pool, 0) + 1
    held["constants"] = graph.constants
    yield f"  {'pool':<11}{'bytes':>15}{'size':>13}   holds"
    for pool, size in graph.pools.items():
        inside = ", IO among them" if pool == "scratch" and graph.io == "inside" else ""
        kind = "tensor" if pool == "constants" else "buffer"
        inside = ", in the file" if pool == "constants" else inside
        holds = f"{counted(held.get(pool, 0), kind)}{inside}"
        if pool == "constants" and not graph.program_bytes:
            holds = "a layout stores none; `qnnmem plan` of the model shows their size"
        yield f"  {pool:<11}{size:>15,}{format_size(size):>13}   {holds}"


def _tcm(answer: TcmAnswer) -> str:
    from qnnmem.report.tcm import verdict_words

    need = f"{answer.need_bytes:>15,}{format_size(answer.need_bytes):>13}"
    return f"  {'TCM':<11}{need}   binary and IO, {verdict_words(answer)}"


def _io(graph: InspectedGraph) -> Iterator[str]:
    for kind, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield from _side(kind, tensors, lambda tensor: f"{_tensor(tensor)}, at {_where(tensor)}")


def _states(graph: InspectedGraph) -> Iterator[str]:
    if graph.states:
        yield from _side("state, kept between executions", graph.states, _state)


def _state(pair: InspectedState) -> str:
    old, new = pair.old, pair.new
    moved = "in place" if _where(old) == _where(new) else f"copied from {_where(new)}"
    return f"{_tensor(old)}, at {_where(old)}, new value {shorten(new.name)}, {moved}"


def _windows(graph: InspectedGraph) -> Iterator[str]:
    if graph.windows:
        yield from _side("windows", graph.windows, _window)


def _window(window: FrameWindow) -> str:
    mode = "blocks until full" if window.blocking else "never blocks"
    frames = f"{window.frames:,} of {counted(window.size, 'frame')} arrive per execution"
    reset = f", reset by {shorten(window.reset)}" if window.reset is not None else ""
    padding = f", starts with {window.padding:,} zero frames" if window.padding else ""
    name, stride = shorten(window.name), window.stride
    return f"{name}: {frames}, moves by {stride:,}, {mode}{padding}{reset}"


def _notes(graph: InspectedGraph) -> Iterator[str]:
    if graph.float_ops:
        floats = counted(graph.float_ops, "op")
        yield f"  note: {floats} in floating point, which LPAI does not support"
    for note in graph.notes[:SHOWN]:
        yield f"  note: {shorten(note, _WIDE)}"
    if len(graph.notes) > SHOWN:
        yield f"  … and {counted(len(graph.notes) - SHOWN, 'more note')}; --json lists all"


def _side(title: str, rows: Sequence[Row], show: Callable[[Row], str]) -> Iterator[str]:
    yield f"  {title}:" if rows else f"  {title}: none"
    yield from (f"    {show(row)}" for row in rows[:SHOWN])
    if len(rows) > SHOWN:
        yield f"    … and {len(rows) - SHOWN:,} more; --json lists all"


def _tensor(tensor: InspectedTensor) -> str:
    quant = ""
    if tensor.scale is not None:
        quant = f", scale {tensor.scale:.6g} zero point {tensor.zero_point}"
    return _tensor_words(tensor.name, tensor.data_type, tensor.shape, tensor.bytes) + quant


def _tensor_words(name: str, data_type: str, dimensions: Sequence[int], size: int) -> str:
    shape = "x".join(map(str, dimensions)) or "scalar"
    return f"{shorten(name)}  {data_type} {shape[:_WIDE]}, {counted(size, 'byte')}"


def _where(tensor: InspectedTensor) -> str:
    if tensor.offset is None:
        return str(tensor.pool)
    return f"{tensor.pool} + {tensor.offset:,}"


# --- Context binaries for HTP ---------------------------------------------------------------------


@as_text
def render_vendor(context: HtpContext, path: str) -> Iterator[str]:
    """Render a context binary made by the vendor's tools; names are made printable."""
    from qnnmem.htp.binary.context import HTP_BACKEND

    is_htp = context.backend_id == HTP_BACKEND
    soc = "no SoC named" if context.soc_model is None else f"soc_model {context.soc_model}"
    arch = "" if context.dsp_arch is None else f", Hexagon v{context.dsp_arch}"
    graphs = counted(len(context.graphs), "graph") + ("" if is_htp else " for LPAI")
    yield f"QNN context binary: {graphs}, {soc}{arch}, by QAIRT {shorten(context.build_id)}"
    core = ".".join(map(str, context.core_api))
    size = size_words(context.file_bytes)
    yield f"{shorten(path, _WIDE)}: {size}, backend {context.backend_id}, core API {core}"
    for graph in context.graphs:
        yield ""
        yield f"graph {shorten(graph.name)}"
        if is_htp:
            yield from _htp_sizes(graph)
        for kind, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
            yield from _side(kind, tensors, _htp_tensor)
    yield ""
    if is_htp:
        yield next_line("show the memory bill", ["qnnmem", "footprint", file_word(path)])
        return
    yield (
        f"the other {size_words(context.blob_bytes)} (code, constants, sizes of scratch and "
        "persistent memory) are in an undocumented format: a device reports the sizes through "
        "QnnGraph_getProperty; without a device, prepare and plan the model itself"
    )


def _htp_sizes(graph: HtpGraph) -> Iterator[str]:
    sizes = (
        *(("weights", graph.const), ("shared weights", graph.shared_weights), ("IO", graph.io)),
        *(("op data", graph.op_data), ("DDR tensors", graph.ddr_tensors)),
        *(("spill/fill", graph.spill_fill), ("VTCM as stored", graph.vtcm)),
    )
    for name, size in sizes:
        shown = "not in the file" if size is None else counted(size, "byte")
        yield f"  {name:<15}{shown:>22}"


def _htp_tensor(tensor: TensorInfo) -> str:
    words = _tensor_words(tensor.name, tensor.data_type.name, tensor.dimensions, tensor.nbytes)
    return f"{words}{_quantization_words(tensor.quantization)}, {tensor.mem_type.name.lower()}"


def _quantization_words(quant: Quantization | None) -> str:
    if quant is None:
        return ""
    if not quant.scales:
        return f", encoding {quant.encoding}"
    if quant.axis is not None:
        return f", {counted(len(quant.scales), 'scale')} along axis {quant.axis}"
    return f", scale {quant.scales[0]:.6g} offset {quant.offsets[0]}"


# --- DLC files ------------------------------------------------------------------------------------


@as_text
def render_dlc(result: DlcResult) -> Iterator[str]:
    """Render the graphs of a DLC file; names are made printable."""
    yield f"DLC: {counted(len(result.graphs), 'graph')}"
    yield shorten(result.file, _WIDE)
    for graph in result.graphs:
        yield ""
        yield from _dlc_graph(graph)
    yield ""
    command = ["qnnmem", "plan", file_word(result.file), "-v"]
    yield next_line("show the peak and the memory map", command)


def _dlc_graph(graph: DlcGraph) -> Iterator[str]:
    yield f"graph {shorten(graph.name, MAX_NAME)}"
    kinds = Counter(op.type for op in graph.ops).most_common()
    named = ", ".join(f"{count} {shorten(kind)}" for kind, count in kinds[:SHOWN])
    more = ", …" if len(kinds) > SHOWN else ""
    yield f"  {counted(len(graph.ops), 'operator')}: {named}{more}"
    constants = [tensor for tensor in graph.tensors if tensor.type.endswith(_STATIC)]
    held = size_words(sum(constant.stored_bytes for constant in constants))
    yield f"  {counted(len(constants), 'constant')} of {held}{_parameter_words(graph, constants)}"
    for kind, way in _SIDES:
        tensors = [t for t in graph.tensors if "APP_" in t.type and way in t.type]
        yield from _side(kind, tensors, _dlc_tensor)
    by_id = {tensor.id: tensor for tensor in graph.tensors}

    def made_by(op: DlcOp) -> str:
        source = f", from {shorten(', '.join(op.origins))}" if op.origins else ""
        outputs = "; ".join(_dlc_tensor(by_id[output]) for output in op.outputs if output in by_id)
        return f"{shorten(op.type)} {shorten(op.name)}{source}: {outputs}"

    yield from _side("outputs of the operators, in order", graph.ops, made_by)


def _parameter_words(graph: DlcGraph, constants: Sequence[DlcTensor]) -> str:
    """Return a note on constants that are operator parameters, which a plan does not count."""
    inputs = {name for op in graph.ops for name in op.inputs}
    parameters = [constant for constant in constants if constant.id not in inputs]
    if not parameters:
        return ""
    size = counted(sum(parameter.stored_bytes for parameter in parameters), "byte")
    count = f"{len(parameters):,} of them operator parameters"
    return f", {count} ({size}), which a plan does not count"


def _dlc_tensor(tensor: DlcTensor) -> str:
    data_type = tensor.data_type.removeprefix(_DATA_TYPE)
    words = _tensor_words(tensor.name, data_type, tensor.dimensions, tensor.bytes)
    return f"{words}{_quantization_words(tensor.quantization)}"
