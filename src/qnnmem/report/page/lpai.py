"""The needs of LPAI as parts of a page: a context binary with its TCM pool, and config files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from qnnmem.report.page.charts import Bar, bars, limit_bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, answer, badge, lines, table, tag
from qnnmem.report.page.memory_map import memory_map
from qnnmem.results.inspect import InspectedBinary, InspectedGraph
from qnnmem.results.lint import LintResult, Severity
from qnnmem.results.plan import TcmAnswer
from qnnmem.text import counted
from qnnmem.units import format_size

_POOLS = {"scratch": "scratch", "persistent": "persistent", "io": "io", "constants": "constants"}


def binary_section(ours: InspectedBinary, file: str = "") -> PageSection:
    """TCM of all graphs together and of each alone, then the graphs."""
    name = PurePath(file).name or "a binary"
    made = f"{counted(len(ours.graphs), 'graph')} for LPAI {ours.hw_version}, by {ours.producer}"
    return PageSection(
        f"LPAI binary {name}",
        lines(
            [
                *_tcm(ours),
                *(part for graph in ours.graphs for part in _graph(graph)),
                tag("p", f"{made}; {counted(ours.file_bytes, 'byte')}", class_="faint wraps"),
            ]
        ),
        has_map=bool(ours.graphs),
    )


def _tcm(ours: InspectedBinary) -> Iterator[Html]:
    rows = [(f"{graph.name} alone", graph.tcm) for graph in ours.graphs]
    if len(ours.graphs) > 1:
        rows.insert(0, ("all graphs in one run", ours.tcm))
    known = [(what, tcm) for what, tcm in rows if tcm is not None]
    if not known:
        return
    what, first = known[0]
    spare = format_size(abs(first.spare))
    words = f"{what}: {spare} {'left' if first.spare >= 0 else 'over the limit'}"
    yield answer(first.fits, words)
    yield tag("h3", "TCM of aDSP direct mode: binary and IO")
    yield limit_bars(
        [
            Bar(what, [("total", tcm.need_bytes)], tcm.limit_bytes, 0, "computed", "documented")
            for what, tcm in known
        ],
        "Need against the TCM pool",
    )
    head = ("run", "answer", "bytes", "there", "allocations", "at most")
    yield table(head, [(what, *_numbers(tcm)) for what, tcm in known])


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
    """Every finding with its place and what to write instead."""
    short = {one.path: PurePath(one.path).name for one in lint.files}
    if len(set(short.values())) < len(short):  # files of one name in two folders
        short = {}
    rows = [
        (
            tag("strong", one.severity.value, class_=_SEVERITIES[one.severity]),
            one.sentence,
            one.cure,
            f"{short.get(one.file, one.file)}{'' if one.line is None else f':{one.line}'}",
            tag("code", one.key),
        )
        for one in lint.findings
    ]
    body = [tag("p", badge(lint.passes, _ANSWER), Html(" "), lint.summary, class_="answer")]
    if rows:
        body.append(table(("", "what is wrong", "what to write", "where", "key"), rows))
    names = ", ".join(PurePath(one.path).name for one in lint.files[:3])
    return PageSection(f"Lint of {names or 'config files'}", lines(body))
