"""A context binary of ours: text with the verdict first, and JSON (`qnnmem.inspect/1`).

Both show the values of `lpai.inspect.binary_info`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qnnmem.lpai.tcm import BinaryTcm, TcmVerdict
from qnnmem.report.sizes import size_words
from qnnmem.report.tcm import fatal_lines, together, verdict_words
from qnnmem.results.schema import write_json
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

SHOWN = 20  # tensors of one kind; --json has them all
_WIDE = 200  # for paths and notes

Values = Mapping[str, Any]


def render_text(info: Values, tcm: BinaryTcm, path: str) -> str:
    """The whole report; names are made safe to print."""
    ours = info["qnnmem"]
    fatal = [
        line
        for verdict in tcm.graphs
        for line in fatal_lines(None if verdict is None else verdict.answer)
    ]
    blocks = ["\n".join([*fatal[:1], *_about(ours, path)])]
    graphs = zip(ours["graphs"], tcm.graphs, strict=True)
    blocks += [_graph(graph, alone) for graph, alone in graphs]
    if shared := together(tcm):
        blocks.append(f"{shared[0]} in one run\n{_tcm(shared[1])}")
    return "\n\n".join(blocks) + "\n"


def render_json(info: Values) -> str:
    """One JSON object with the nesting of qnn-context-binary-utility."""
    return write_json(info)


def _about(ours: Values, path: str) -> Iterator[str]:
    graphs = counted(len(ours["graphs"]), "graph")
    version = shorten(ours["hw_version"])
    yield f"qnnmem context binary: {graphs} for LPAI {version}, checksums fine"
    floats = sum(graph["float_ops"] for graph in ours["graphs"])
    if floats:
        yield f"computes in floating point ({counted(floats, 'op')}): desk experiment only"
    maker = f"format {ours['format_version']}, made by {shorten(ours['producer'])}"
    yield f"{shorten(path, _WIDE)}: {size_words(ours['file_bytes'])}, {maker}"
    parts = [f"{what} {size:,}" for what, size in _parts(ours) if size]
    if len(parts) > 1:  # a layout is nothing but its description
        yield f"in the file: {' + '.join(parts)} = {counted(ours['file_bytes'], 'byte')}"


def _parts(ours: Values) -> Iterator[tuple[str, int]]:
    """What the bytes of the file are, so that they add up."""
    section, graphs = ours["constants_bytes"], ours["graphs"]
    held = sum(graph["pools"]["constants"] for graph in graphs)
    programs = sum(graph["program_bytes"] for graph in graphs)
    if held <= section:
        yield "constants", held
        yield "gaps that align them", section - held
    else:  # graphs of one binary may share them
        yield "constants, of which graphs share some,", section
    yield "programs", programs
    yield "description", ours["file_bytes"] - section - programs


def _graph(graph: Values, tcm: TcmVerdict | None) -> str:
    lines = [*_heading(graph), *_pools(graph), *([] if tcm is None else [_tcm(tcm)])]
    parts = (_io, _states, _windows, _notes)
    return "\n".join([*lines, *(line for part in parts for line in part(graph))])


def _heading(graph: Values) -> Iterator[str]:
    program = "program in planned order" if graph["in_order"] else "program"
    size = graph["program_bytes"]
    what = f"{program} of {size_words(size)}" if size else "layout"
    facts = f"{counted(graph['ops'], 'op')}, {what}, alignment {graph['align']}"
    yield f"graph {shorten(graph['name'])}: {facts}"
    if not graph["program_bytes"]:
        yield "  no program: it has pools and places, and cannot compute"


def _pools(graph: Values) -> Iterator[str]:
    held: dict[str, int] = {}
    for buffer in graph["buffers"]:
        held[buffer["pool"]] = held.get(buffer["pool"], 0) + 1
    held["constants"] = graph["constants"]
    yield f"  {'pool':<11}{'bytes':>15}{'size':>13}   holds"
    for pool, size in graph["pools"].items():
        inside = ", IO among them" if pool == "scratch" and graph["io"] == "inside" else ""
        kind = "tensor" if pool == "constants" else "buffer"
        inside = ", in the file" if pool == "constants" else inside
        holds = f"{counted(held.get(pool, 0), kind)}{inside}"
        if pool == "constants" and not graph["program_bytes"]:
            holds = "a layout has none; `qnnmem plan` of the model counts them"
        yield f"  {pool:<11}{size:>15,}{format_size(size):>13}   {holds}"


def _tcm(verdict: TcmVerdict) -> str:
    need = f"{verdict.need:>15,}{format_size(verdict.need):>13}"
    return f"  {'TCM':<11}{need}   binary and IO, {verdict_words(verdict.answer)}"


def _io(graph: Values) -> Iterator[str]:
    for kind in ("inputs", "outputs"):
        yield f"  {kind}:" if graph[kind] else f"  {kind}: none"
        yield from _some(graph[kind], lambda tensor: f"{_tensor(tensor)}, at {_where(tensor)}")


def _states(graph: Values) -> Iterator[str]:
    if graph["states"]:
        yield "  state, kept from one execute to the next:"
        yield from _some(graph["states"], _state)


def _state(pair: Values) -> str:
    old, new = pair["old"], pair["new"]
    moved = "in place" if _where(old) == _where(new) else f"copied from {_where(new)}"
    return f"{_tensor(old)}, at {_where(old)}, next from {shorten(new['name'])} {moved}"


def _windows(graph: Values) -> Iterator[str]:
    if graph["windows"]:
        yield "  windows:"
        yield from _some(graph["windows"], _window)


def _window(window: Values) -> str:
    mode = "blocks until full" if window["blocking"] else "never blocks"
    frames = f"{window['frames']:,} of {counted(window['size'], 'frame')} arrive per execute"
    reset = f", reset by {shorten(window['reset'])}" if window["reset"] is not None else ""
    padding = f", starts with {window['padding']:,} zero frames" if window["padding"] else ""
    name, stride = shorten(window["name"]), window["stride"]
    return f"{name}: {frames}, moves by {stride:,}, {mode}{padding}{reset}"


def _notes(graph: Values) -> Iterator[str]:
    if graph["float_ops"]:
        floats = counted(graph["float_ops"], "op")
        yield f"  note: {floats} in floating point, which LPAI does not have"
    for note in graph["notes"][:SHOWN]:
        yield f"  note: {shorten(note, _WIDE)}"
    if len(graph["notes"]) > SHOWN:
        yield f"  … and {len(graph['notes']) - SHOWN:,} more notes; --json lists all"


def _some(values: Sequence[Values], show: Callable[[Values], str]) -> Iterator[str]:
    yield from (f"    {show(value)}" for value in values[:SHOWN])
    if len(values) > SHOWN:
        yield f"    … and {len(values) - SHOWN:,} more; --json lists all"


def _tensor(tensor: Values) -> str:
    shape = "x".join(map(str, tensor["shape"])) or "scalar"
    quant = ""
    if tensor["scale"] is not None:
        quant = f", scale {tensor['scale']:.6g} zero point {tensor['zero_point']}"
    size = counted(tensor["bytes"], "byte")
    return f"{shorten(tensor['name'])}  {tensor['data_type']} {shape[:_WIDE]}, {size}{quant}"


def _where(tensor: Values) -> str:
    if tensor["offset"] is None:
        return str(tensor["pool"])
    return f"{tensor['pool']} + {tensor['offset']:,}"
