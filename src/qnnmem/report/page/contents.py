"""Render DLC files, context binaries and findings in config files as page sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from qnnmem.report.page.charts import Bar, bars, limit_bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.htp import file_name
from qnnmem.report.page.markup import Cell, Html, answer, badge, details, lines, table, tag
from qnnmem.report.page.memory_map import memory_map
from qnnmem.results.context import ContextDocument, VendorGraphInfo
from qnnmem.results.inspect import DlcGraph, DlcResult, InspectedBinary, InspectedGraph
from qnnmem.results.lint import LintResult, Severity
from qnnmem.results.plan import TcmAnswer
from qnnmem.text import by_sizes, counted
from qnnmem.units import format_size

_MOST = 50  # graphs shown
_SIDES = {"QNN_TENSOR_TYPE_APP_WRITE": "input", "QNN_TENSOR_TYPE_APP_READ": "output"}
_TENSORS = ("", "tensor", "type", "shape")
_POOLS = {"scratch": "scratch", "persistent": "persistent", "io": "io", "constants": "constants"}


def dlc_section(result: DlcResult) -> PageSection:
    """Return a section about a DLC file: operators, inputs, outputs, stored bytes."""
    body = [
        *(part for graph in result.graphs[:_MOST] for part in _dlc_graph(graph)),
        *_beyond(len(result.graphs)),
    ]
    return PageSection(f"Contents of {file_name(result.file)}", lines(body))


def _dlc_graph(graph: DlcGraph) -> Iterator[Html]:
    kinds = Counter(op.type for op in graph.ops)
    stored = sum(tensor.stored_bytes for tensor in graph.tensors)
    yield tag("h3", graph.name)
    yield tag("p", f"{counted(len(graph.ops), 'operator')}, {counted(stored, 'byte')} stored")
    rows = [
        (_SIDES[t.type], t.name, _short(t.data_type), by_sizes(t.dimensions[:32]), t.bytes)
        for t in graph.tensors
        if t.type in _SIDES
    ]
    yield table((*_TENSORS, "bytes"), rows)
    yield details("Operators", table(("operator", "number"), kinds.most_common()))


def htp_binary_section(document: ContextDocument, where: str) -> PageSection:
    """Return a section about an HTP context binary: each graph's memory, inputs and outputs."""
    ours, info = document.qnnmem, document.info
    rows: list[Sequence[Cell]] = [
        (graph.name, graph.vtcm_stored_bytes, graph.io_exact_bytes, ", ".join(graph.mem_types[:8]))
        for graph in ours.graphs
    ]
    facts = (f"{counted(ours.file_bytes, 'byte')}", info.build_id)
    body = [
        table(("graph", "VTCM bytes", "bytes of IO", "memory of IO"), rows),
        *(part for graph in info.graphs[:_MOST] for part in _sides(graph.info)),
        *_beyond(len(info.graphs)),
        tag("p", ", ".join(filter(None, facts)), class_="faint"),
    ]
    return PageSection(f"Contents of {file_name(where)}", lines(body))


def _sides(graph: VendorGraphInfo) -> Iterator[Html]:
    rows = [
        (
            side,
            tensor.info.name,
            _short(tensor.info.data_type),
            by_sizes(tensor.info.dimensions[:32]),
        )
        for side, listed in (("input", graph.graph_inputs), ("output", graph.graph_outputs))
        for tensor in listed
    ]
    yield details(f"Inputs and outputs of {graph.graph_name}", table(_TENSORS, rows))


def _short(data_type: str) -> str:
    return data_type.removeprefix("QNN_DATATYPE_")


def _beyond(number: int) -> Iterator[Html]:
    if number > _MOST:
        yield tag("p", f"{counted(number - _MOST, 'more graph')} in the JSON result.")


def binary_section(ours: InspectedBinary, file: str = "") -> PageSection:
    """Return a section about an LPAI binary: TCM of all graphs, TCM of each graph, the graphs."""
    name = PurePath(file).name or "a binary"
    facts = f"{counted(len(ours.graphs), 'graph')} for LPAI {ours.hw_version}, by {ours.producer}"
    return PageSection(
        f"LPAI binary {name}",
        lines(
            [
                *_tcm(ours),
                *(part for graph in ours.graphs for part in _graph(graph)),
                tag("p", f"{facts}; {counted(ours.file_bytes, 'byte')}", class_="faint wraps"),
            ]
        ),
        has_map=bool(ours.graphs),
    )


def _tcm(ours: InspectedBinary) -> Iterator[Html]:
    rows = [(f"{graph.name} alone", graph.tcm) for graph in ours.graphs]
    if len(ours.graphs) > 1:
        rows.insert(0, ("all graphs together", ours.tcm))
    known = [(name, tcm) for name, tcm in rows if tcm is not None]
    if not known:
        return
    name, first = known[0]
    spare = format_size(abs(first.spare))
    words = f"{name}: {spare} {'left' if first.spare >= 0 else 'over the limit'}"
    yield answer(first.fits, words)
    yield tag("h3", "TCM in aDSP direct mode: binary and IO")
    yield limit_bars(
        [
            Bar(name, [("total", tcm.need_bytes)], tcm.limit_bytes, 0, "computed", "documented")
            for name, tcm in known
        ],
        "Need against the TCM pool",
    )
    head = ("graphs", "answer", "bytes needed", "bytes available", "allocations", "allowed")
    yield table(head, [(name, *_numbers(tcm)) for name, tcm in known])


def _numbers(tcm: TcmAnswer) -> tuple[Html, int, int, int, int]:
    return badge(tcm.fits), tcm.need_bytes, tcm.limit_bytes, tcm.buffers, tcm.max_buffers


def _graph(graph: InspectedGraph) -> Iterator[Html]:
    yield tag("h3", f"Graph {graph.name}")
    rows = [
        Bar(pool, [(_POOLS.get(pool, "other"), need)], None, 0, "computed")
        for pool, need in graph.pools.items()
    ]
    yield bars(rows, f"Bytes of each pool of {graph.name}")
    if graph.buffers:
        yield memory_map(graph.map)


_SEVERITIES = {Severity.ERROR: "bad", Severity.WARNING: "open", Severity.NOTE: "faint"}
_ANSWER = ("nothing is wrong", "must be changed", "cannot tell")


def lint_section(lint: LintResult) -> PageSection:
    """Return a section with each finding, its place and its correction."""
    short = {file.path: PurePath(file.path).name for file in lint.files}
    if len(set(short.values())) < len(short):  # two files with the same name in two folders
        short = {}
    rows = [
        (
            tag("strong", finding.severity.value, class_=_SEVERITIES[finding.severity]),
            finding.sentence,
            finding.cure,
            short.get(finding.file, finding.file)
            + ("" if finding.line is None else f":{finding.line}"),
            tag("code", finding.key),
        )
        for finding in lint.findings
    ]
    body = [tag("p", badge(lint.passes, _ANSWER), Html(" "), lint.summary, class_="answer")]
    if rows:
        body.append(table(("", "what is wrong", "what to write", "where", "key"), rows))
    names = ", ".join(PurePath(file.path).name for file in lint.files[:3])
    return PageSection(f"Lint of {names or 'config files'}", lines(body))
