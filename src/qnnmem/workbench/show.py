"""A result as part of the page: the sections of the report, and some that only the page has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from qnnmem.errors import UsageError
from qnnmem.report.page.document import PageSection, render_page
from qnnmem.report.page.markup import Html, badge, details, lines, table, tag
from qnnmem.report.page.plan import memory_map
from qnnmem.report.page.sections import SHOWN, sections_of
from qnnmem.report.page.values import Count, Loose, PlanBuffer, PlanValues
from qnnmem.text import counted
from qnnmem.workbench.summary import schema_of

_MOST = 8  # graphs of a binary that are drawn
_SEVERITIES = {"error": "bad", "warning": "open", "note": "faint"}


class LintFinding(Loose, frozen=True):
    """Something wrong in a config file."""

    file: str
    severity: str
    sentence: str
    key: str | None = None
    line: Count | None = None
    column: Count | None = None
    cure: str | None = None


class LintValues(Loose, frozen=True):
    """`qnnmem.lint/1`."""

    passes: bool
    errors: Count
    warnings: Count
    findings: list[LintFinding]


class BinaryBuffer(Loose, frozen=True):
    """A buffer of a graph in a binary."""

    name: str
    pool: str
    offset: Count
    size: Count
    first_step: Count
    end_step: Count
    aliases: list[str]


class BinaryGraph(Loose, frozen=True):
    """A graph of a context binary of LPAI."""

    name: str
    ops: Count
    align: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    io: str
    pools: dict[str, Count]
    buffers: list[BinaryBuffer]
    notes: list[str]


class BinaryValues(Loose, frozen=True):
    """What is ours in the result of `inspect`."""

    producer: str
    hw_version: str
    file_bytes: Count
    constants_bytes: Count
    graphs: list[BinaryGraph]


def shown_sections(result: Mapping[str, Any], name: str) -> list[PageSection]:
    """The parts of a page that show a result; UsageError where nothing shows it."""
    schema = schema_of(result)
    try:
        if schema == "qnnmem.lint/1":
            return [_lint(msgspec.convert(result, LintValues), name)]
        if schema == "qnnmem.inspect/1" and schema not in SHOWN:
            return list(_binary(msgspec.convert(result["qnnmem"], BinaryValues), name))
    except (msgspec.ValidationError, KeyError) as exc:
        raise UsageError(f"{name}: it is no {schema}: {exc}") from exc
    return sections_of(result, name)


def fragment(result: Mapping[str, Any], name: str) -> str:
    """A result as markup, to be put into the page."""
    return lines(part for one in shown_sections(result, name) for part in _part(one))


def _part(section: PageSection) -> Iterator[Html]:
    yield Html(f'<section class="shown">\n{tag("h2", section.title)}\n{section.body}\n</section>')


def whole_page(result: Mapping[str, Any], name: str) -> str:
    """The same as a file of its own, as `qnnmem report` writes it."""
    return render_page(shown_sections(result, name), name)


def _lint(lint: LintValues, name: str) -> PageSection:
    said = f"{counted(lint.errors, 'error')}, {counted(lint.warnings, 'warning')}"
    rows = [
        (
            tag("strong", one.severity, class_=_SEVERITIES.get(one.severity, "faint")),
            one.file if one.line is None else f"{one.file}:{one.line}",
            tag("code", one.key or ""),
            one.sentence,
            one.cure or "",
        )
        for one in lint.findings
    ]
    answer = badge(lint.passes, ("nothing is wrong", "to be changed", "cannot tell"))
    body = [tag("p", answer, Html(" "), said, class_="answer")]
    if rows:
        body.append(table(("", "where", "key", "what is wrong", "what to write"), rows))
    return PageSection(f"Lint of {name}", lines(body))


def _binary(binary: BinaryValues, name: str) -> Iterator[PageSection]:
    facts: list[tuple[str, str | int]] = [
        ("made by", binary.producer),
        ("hardware", binary.hw_version),
        ("bytes of the file", binary.file_bytes),
        ("bytes of constants", binary.constants_bytes),
        ("graphs", len(binary.graphs)),
    ]
    yield PageSection(f"Context binary {name}", table(("what", "value"), facts))
    for graph in binary.graphs[:_MOST]:
        yield PageSection(f"Graph {graph.name}", _graph(graph))


def _graph(graph: BinaryGraph) -> Html:
    plan = _as_plan(graph)
    pools = [(pool, size) for pool, size in graph.pools.items()]
    rows = [(one.name, one.pool, one.size, one.offset) for one in graph.buffers]
    listed = details(
        counted(len(rows), "buffer"), table(("tensor", "pool", "bytes", "offset"), rows[:2000])
    )
    notes = (tag("p", note) for note in graph.notes)
    return lines([table(("pool", "bytes"), pools), memory_map(plan), *notes, listed])


def _as_plan(graph: BinaryGraph) -> PlanValues:
    """The fixed offsets of a graph as the map draws them."""
    buffers = [
        PlanBuffer(
            name=one.name,
            pool=one.pool,
            size_bytes=one.size,
            lower=one.first_step,
            upper=one.end_step,
            offset_bytes=one.offset,
            aliases=one.aliases,
        )
        for one in graph.buffers
    ]
    scratch = graph.pools.get("scratch", 0)
    return PlanValues(
        input=graph.name,
        scratch_bytes=scratch,
        persistent_bytes=graph.pools.get("persistent", 0),
        io_bytes=graph.pools.get("io", 0),
        constant_bytes=0,
        lower_bound_bytes=scratch,
        optimal=False,
        align_bytes=graph.align,
        io=graph.io,
        buffers=buffers,
    )
