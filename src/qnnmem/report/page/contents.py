"""The content of DLC files and context binaries of HTP as parts of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from qnnmem.report.page.document import PageSection
from qnnmem.report.page.htp import file_name
from qnnmem.report.page.markup import Cell, Html, details, lines, table, tag
from qnnmem.results.context import ContextDocument, VendorGraphInfo
from qnnmem.results.dlc import DlcGraph, DlcResult
from qnnmem.text import counted

_MOST = 50  # graphs that are shown
_SIDES = {"QNN_TENSOR_TYPE_APP_WRITE": "input", "QNN_TENSOR_TYPE_APP_READ": "output"}
_TENSORS = ("", "tensor", "type", "shape")


def dlc_section(found: DlcResult) -> PageSection:
    """Graphs of a DLC: operators, inputs and outputs, bytes that are stored."""
    body = [
        *(part for graph in found.graphs[:_MOST] for part in _dlc_graph(graph)),
        *_beyond(len(found.graphs)),
    ]
    return PageSection(f"What {file_name(found.file)} holds", lines(body))


def _dlc_graph(graph: DlcGraph) -> Iterator[Html]:
    kinds = Counter(op.type for op in graph.ops)
    stored = sum(one.stored_bytes for one in graph.tensors)
    yield tag("h3", graph.name)
    yield tag("p", f"{counted(len(graph.ops), 'operator')}, {counted(stored, 'byte')} stored")
    rows = [
        (_SIDES[one.type], one.name, _short(one.data_type), _shape(one.dimensions), one.bytes)
        for one in graph.tensors
        if one.type in _SIDES
    ]
    yield table((*_TENSORS, "bytes"), rows)
    yield details("Operators", table(("operator", "number"), kinds.most_common()))


def htp_binary_section(found: ContextDocument, where: str) -> PageSection:
    """Graphs of a context binary of HTP: memory, inputs and outputs."""
    ours, info = found.qnnmem, found.info
    rows: list[Sequence[Cell]] = [
        (one.name, one.vtcm_stored_bytes, one.io_exact_bytes, ", ".join(one.mem_types[:8]))
        for one in ours.graphs
    ]
    facts = (f"{counted(ours.file_bytes, 'byte')}", info.build_id)
    body = [
        table(("graph", "VTCM bytes", "bytes of IO", "memory of IO"), rows),
        *(part for one in info.graphs[:_MOST] for part in _sides(one.info)),
        *_beyond(len(info.graphs)),
        tag("p", ", ".join(filter(None, facts)), class_="faint"),
    ]
    return PageSection(f"What {file_name(where)} holds", lines(body))


def _sides(graph: VendorGraphInfo) -> Iterator[Html]:
    rows = [
        (side, one.info.name, _short(one.info.data_type), _shape(one.info.dimensions))
        for side, listed in (("input", graph.graph_inputs), ("output", graph.graph_outputs))
        for one in listed
    ]
    yield details(f"Inputs and outputs of {graph.graph_name}", table(_TENSORS, rows))


def _short(data_type: str) -> str:
    return data_type.removeprefix("QNN_DATATYPE_")


def _shape(dimensions: Sequence[int]) -> str:
    return "x".join(map(str, dimensions[:32])) or "scalar"


def _beyond(number: int) -> Iterator[Html]:
    if number > _MOST:
        yield tag("p", f"{counted(number - _MOST, 'graph')} more in the result.")
