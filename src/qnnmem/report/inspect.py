"""A context binary of ours as text, with the verdict first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from qnnmem.report.table import size_words
from qnnmem.report.tcm import fatal_lines, together, verdict_words
from qnnmem.results.inspect import (
    FrameWindow,
    InspectedBinary,
    InspectedGraph,
    InspectedState,
    InspectedTensor,
)
from qnnmem.results.plan import TcmAnswer
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

SHOWN = 20  # tensors of one kind; --json has them all
_WIDE = 200  # for paths and notes

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
