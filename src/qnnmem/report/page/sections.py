"""Choose the page section of a result by its schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any

from msgspec.structs import fields

from qnnmem.errors import UsageError
from qnnmem.provenance import Sourced
from qnnmem.report.page import (
    budgets,
    contents,
    doctor,
    fix,
    htp,
    llm,
    plan,
    programs,
)
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Cell, Html, details, lines, size, table, tag, text
from qnnmem.results.files import SeveralFiles
from qnnmem.results.read import read_document, read_result, schema_in
from qnnmem.results.result import MAX_COUNT, SchemaDocument
from qnnmem.results.schema import schema_name, schema_of
from qnnmem.text import quote

_SECTIONS: Mapping[str, Callable[..., PageSection]] = {
    "qnnmem.plan/1": plan.plan_section,
    "qnnmem.together/1": plan.together_section,
    "qnnmem.footprint/1": htp.bill_section,
    "qnnmem.fit/1": htp.fit_section,
    "qnnmem.sweep/1": htp.sweep_section,
    "qnnmem.place/1": htp.place_section,
    "qnnmem.llm/1": llm.llm_section,
    "qnnmem.qmem/1": htp.qmem_section,
    "qnnmem.carrier/1": htp.carrier_section,
    "qnnmem.doctor/1": doctor.doctor_section,
    "qnnmem.check-client/1": programs.client_section,
    "qnnmem.watch/1": programs.watch_section,
    "qnnmem.fail-each/1": programs.fail_each_section,
    "qnnmem.fix/1": fix.fix_section,
    "qnnmem.lint/1": contents.lint_section,
    "qnnmem.check/1": budgets.check_section,
    "qnnmem.diff/1": budgets.diff_section,
    "qnnmem.inspect/1": contents.binary_section,
    "qnnmem.inspect-htp/1": contents.htp_binary_section,
    "qnnmem.inspect-dlc/1": contents.dlc_section,
}
# The description of a binary lacks its file name.
_UNNAMED = (contents.binary_section, contents.htp_binary_section)
_WITH_VENDOR = (contents.htp_binary_section,)  # these also show the vendor's nested JSON
_SEVERAL = ("qnnmem.plans/1", "qnnmem.fits/1", "qnnmem.fixes/1")
SHOWN = tuple(_SECTIONS)


def sections_of(result: Any, where: str) -> list[PageSection]:
    """Return the sections of a JSON result; raise UsageError for an unsupported schema."""
    several = read_result(result, where) if schema_in(result) in _SEVERAL else None
    if not isinstance(several, SeveralFiles):
        return [section_of(result, where)]
    sections = [
        _with_values(_SECTIONS[schema_name(type(each))](each), each) for each in several.each
    ]
    if several.refused:
        sentences = lines(tag("p", file.sentence) for file in several.refused)
        sections.append(PageSection("Without an answer", sentences))
    return sections


def section_of(result: Any, where: str) -> PageSection:
    """Return the section of a result read from JSON; raise UsageError for an unsupported schema."""
    name = schema_in(result)
    if name is None or name not in _SECTIONS:
        known = ", ".join(SHOWN)
        raise UsageError(f"{where}: results of {quote(name)} have no page; supported are {known}")
    render = _SECTIONS[name]
    ours = read_result(result, where)
    document = read_document(result, where) if render in _WITH_VENDOR else ours
    try:
        section = render(document, where) if render in _UNNAMED else render(document)
        return _with_values(section, ours)
    except (IndexError, UnicodeError) as exc:
        raise UsageError(f"{where} is not a valid {name}: {exc}") from exc


def _with_values(section: PageSection, result: SchemaDocument) -> PageSection:
    """Return the section followed by a folded table of all values.

    The table is generated, so that a new field of a result type appears without more code.
    """
    listed = details("All values", table(("name", "value", "meaning"), _values(result)))
    return replace(section, body=lines([section.body, listed]))


def _values(result: SchemaDocument) -> Iterator[tuple[Cell, ...]]:
    about = _descriptions(type(result))
    for field in fields(result):
        name, value = field.encode_name, getattr(result, field.name)
        if value is None or isinstance(value, str | int | float | Enum | Sourced):
            yield tag("code", name, class_="result-key"), _shown(name, value), about.get(name, "")


def _shown(name: str, value: str | float | Enum | Sourced | None) -> Cell:
    if isinstance(value, Sourced):
        return Html(f"{size(value.value)}, {text(value.origin.value)}")
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]  # JSON's own spelling
    if isinstance(value, int):
        # Some types do not bound their numbers, and a number beyond all floats cannot be rounded.
        is_size = name.endswith("_bytes") and abs(value) <= MAX_COUNT
        # As text: a number would right-align the column, and most values are words.
        return size(value) if is_size else f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else value


@cache
def _descriptions(kind: type[SchemaDocument]) -> Mapping[str, str]:
    named = schema_of(kind)["properties"]
    return {name: field.get("description", "") for name, field in named.items()}
