"""What binaries hold, as text: context binaries for LPAI and for HTP, and DLC files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.qnn.tensor import Quantization, TensorInfo
from qnnmem.report.shell import file_word, next_line
from qnnmem.report.table import size_words
from qnnmem.report.tcm import fatal_lines, together, verdict_words
from qnnmem.results.dlc import DlcGraph, DlcResult, DlcTensor
from qnnmem.results.inspect import (
    FrameWindow,
    InspectedBinary,
    InspectedGraph,
    InspectedState,
    InspectedTensor,
)
from qnnmem.results.plan import TcmAnswer
from qnnmem.text import MAX_NAME, counted, shorten
from qnnmem.units import format_size

SHOWN = 20  # operators, and tensors of one kind; --json has them all
_WIDE = 200  # for paths and notes
_STATIC = "STATIC"  # the end of a type whose bytes are in the file
_DATA_TYPE = "QNN_DATATYPE_"
_SIDES = ("WRITE", "READ")

Row = TypeVar("Row")


def render_text(binary: InspectedBinary, path: str) -> str:
    """The whole report; names are made safe to print."""
    fatal = [line for graph in binary.graphs for line in fatal_lines(graph.tcm)]
    blocks = ["\n".join([*fatal[:1], *_about(binary, path)]), *map(_graph, binary.graphs)]
    if shared := together(binary.tcm, [graph.tcm for graph in binary.graphs]):
        blocks.append(f"{shared[0]} in one run\n{_tcm(shared[1])}")
    return "\n\n".join(blocks) + "\n"


def _about(ours: InspectedBinary, path: str) -> Iterator[str]:
    graphs = counted(len(ours.graphs), "graph")
    version = shorten(ours.hw_version)
    yield f"qnnmem context binary: {graphs} for LPAI {version}, checksums fine"
    floats = sum(graph.float_ops for graph in ours.graphs)
    if floats:
        yield f"computes in floating point ({counted(floats, 'op')}): desk experiment only"
    maker = f"format {ours.format_version}, made by {shorten(ours.producer)}"
    yield f"{shorten(path, _WIDE)}: {size_words(ours.file_bytes)}, {maker}"
    parts = [f"{what} {size:,}" for what, size in _parts(ours) if size]
    if len(parts) > 1:  # a layout is nothing but its description
        yield f"in the file: {' + '.join(parts)} = {counted(ours.file_bytes, 'byte')}"


def _parts(ours: InspectedBinary) -> Iterator[tuple[str, int]]:
    """What the bytes of the file are, so that they add up."""
    section, graphs = ours.constants_bytes, ours.graphs
    held = sum(graph.pools["constants"] for graph in graphs)
    programs = sum(graph.program_bytes for graph in graphs)
    if held <= section:
        yield "constants", held
        yield "gaps that align them", section - held
    else:  # graphs of one binary may share them
        yield "constants, of which graphs share some,", section
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
    what = f"{program} of {size_words(size)}" if size else "layout"
    facts = f"{counted(graph.ops, 'op')}, {what}, alignment {graph.align}"
    yield f"graph {shorten(graph.name)}: {facts}"
    if not graph.program_bytes:
        yield "  no program: it has pools and places, and cannot compute"


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
            holds = "a layout has none; `qnnmem plan` of the model counts them"
        yield f"  {pool:<11}{size:>15,}{format_size(size):>13}   {holds}"


def _tcm(answer: TcmAnswer) -> str:
    need = f"{answer.need_bytes:>15,}{format_size(answer.need_bytes):>13}"
    return f"  {'TCM':<11}{need}   binary and IO, {verdict_words(answer)}"


def _io(graph: InspectedGraph) -> Iterator[str]:
    for kind, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield f"  {kind}:" if tensors else f"  {kind}: none"
        yield from _some(tensors, lambda tensor: f"{_tensor(tensor)}, at {_where(tensor)}")


def _states(graph: InspectedGraph) -> Iterator[str]:
    if graph.states:
        yield "  state, kept from one execute to the next:"
        yield from _some(graph.states, _state)


def _state(pair: InspectedState) -> str:
    old, new = pair.old, pair.new
    moved = "in place" if _where(old) == _where(new) else f"copied from {_where(new)}"
    return f"{_tensor(old)}, at {_where(old)}, next from {shorten(new.name)} {moved}"


def _windows(graph: InspectedGraph) -> Iterator[str]:
    if graph.windows:
        yield "  windows:"
        yield from _some(graph.windows, _window)


def _window(window: FrameWindow) -> str:
    mode = "blocks until full" if window.blocking else "never blocks"
    frames = f"{window.frames:,} of {counted(window.size, 'frame')} arrive per execute"
    reset = f", reset by {shorten(window.reset)}" if window.reset is not None else ""
    padding = f", starts with {window.padding:,} zero frames" if window.padding else ""
    name, stride = shorten(window.name), window.stride
    return f"{name}: {frames}, moves by {stride:,}, {mode}{padding}{reset}"


def _notes(graph: InspectedGraph) -> Iterator[str]:
    if graph.float_ops:
        floats = counted(graph.float_ops, "op")
        yield f"  note: {floats} in floating point, which LPAI does not have"
    for note in graph.notes[:SHOWN]:
        yield f"  note: {shorten(note, _WIDE)}"
    if len(graph.notes) > SHOWN:
        yield f"  … and {len(graph.notes) - SHOWN:,} more notes; --json lists all"


def _some(values: Sequence[Row], show: Callable[[Row], str]) -> Iterator[str]:
    yield from (f"    {show(value)}" for value in values[:SHOWN])
    if len(values) > SHOWN:
        yield f"    … and {len(values) - SHOWN:,} more; --json lists all"


def _tensor(tensor: InspectedTensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    quant = ""
    if tensor.scale is not None:
        quant = f", scale {tensor.scale:.6g} zero point {tensor.zero_point}"
    size = counted(tensor.bytes, "byte")
    return f"{shorten(tensor.name)}  {tensor.data_type} {shape[:_WIDE]}, {size}{quant}"


def _where(tensor: InspectedTensor) -> str:
    if tensor.offset is None:
        return str(tensor.pool)
    return f"{tensor.pool} + {tensor.offset:,}"


def context_text(context: HtpContext, path: str) -> str:
    """The whole text; names are made safe to print."""
    return "\n".join(_context_lines(context, path)) + "\n"


def _context_lines(context: HtpContext, path: str) -> Iterator[str]:
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
        yield from _context_graph(graph)
    yield ""
    yield next_line("the memory bill", ["qnnmem", "footprint", file_word(path)])


def _context_graph(graph: HtpGraph) -> Iterator[str]:
    yield f"graph {shorten(graph.name)}"
    sizes = (
        *(("weights", graph.const), ("shared weights", graph.shared_weights), ("IO", graph.io)),
        *(("op data", graph.op_data), ("DDR tensors", graph.ddr_tensors)),
        *(("spill/fill", graph.spill_fill), ("VTCM as stored", graph.vtcm)),
    )
    for name, size in sizes:
        shown = "not in the file" if size is None else counted(size, "byte")
        yield f"  {name:<15}{shown:>22}"
    yield from _io_lines((graph.inputs, graph.outputs), _context_tensor)


def _context_tensor(tensor: TensorInfo) -> str:
    shape = "x".join(map(str, tensor.dimensions)) or "scalar"
    pair = tensor.scale_offset
    quant = "" if pair is None else f", scale {pair.scale:.6g} offset {pair.offset}"
    what = f"{tensor.data_type.name} {shape}, {counted(tensor.nbytes, 'byte')}{quant}"
    return f"{shorten(tensor.name)}  {what}, {tensor.mem_type.name.lower()}"


def dlc_text(result: DlcResult) -> str:
    """The whole text; names are made safe to print."""
    return "\n".join(_dlc_lines(result)) + "\n"


def _dlc_lines(result: DlcResult) -> Iterator[str]:
    graphs, path = result.graphs, result.file
    yield f"DLC: {counted(len(graphs), 'graph')}"
    yield shorten(path, 200)
    for graph in graphs:
        yield ""
        yield from _dlc_graph(graph)
    yield ""
    yield next_line("the peak, and what lies where", ["qnnmem", "plan", file_word(path), "-v"])


def _dlc_graph(graph: DlcGraph) -> Iterator[str]:
    yield f"graph {shorten(graph.name, MAX_NAME)}"
    kinds = Counter(op.type for op in graph.ops).most_common()
    named = ", ".join(f"{count} {shorten(kind)}" for kind, count in kinds[:SHOWN])
    more = ", …" if len(kinds) > SHOWN else ""
    yield f"  {counted(len(graph.ops), 'operator')}: {named}{more}"
    constants = [one for one in graph.tensors if one.type.endswith(_STATIC)]
    size = sum(one.stored_bytes for one in constants)
    held = f"{counted(size, 'byte')} ({format_size(size)})"
    yield f"  {counted(len(constants), 'constant')} of {held}{_parameter_words(graph, constants)}"
    sides = [[one for one in graph.tensors if _is_side(one, way)] for way in _SIDES]
    yield from _io_lines(sides, _dlc_tensor)
    yield "  what they make, in order:"
    made = {one.id: one for one in graph.tensors}
    for op in graph.ops[:SHOWN]:
        source = f", from {shorten(', '.join(op.origins))}" if op.origins else ""
        outputs = "; ".join(_dlc_tensor(made[one]) for one in op.outputs if one in made)
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


def _is_side(tensor: DlcTensor, way: str) -> bool:
    return "APP_" in tensor.type and way in tensor.type


def _io_lines(sides: Sequence[Sequence[Row]], show: Callable[[Row], str]) -> Iterator[str]:
    """Inputs, then outputs."""
    for kind, tensors in zip(("inputs", "outputs"), sides, strict=True):
        yield f"  {kind}:" if tensors else f"  {kind}: none"
        yield from (f"    {show(tensor)}" for tensor in tensors[:SHOWN])
        yield from _rest(tensors)


def _dlc_tensor(tensor: DlcTensor) -> str:
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
