"""Render the table of SoCs as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.report.table import Column, text_table
from qnnmem.results.socs import Soc
from qnnmem.units import format_size

_COLUMNS = (
    Column("name", "<", 13),
    Column("id", width=4, gap=0),
    Column("arch", "<", 5),
    Column("VTCM", width=10, gap=0),
    Column("compile limit", width=15, gap=0),
    Column("fp16", "<", 5),
    Column("known as", "<", gap=0),
)


def render_text(chosen: Sequence[Soc]) -> str:
    """Render a table of SoCs, or all facts about a single SoC."""
    lines = _one(chosen[0]) if len(chosen) == 1 else _table(chosen)
    return "\n".join(lines) + "\n"


def _table(chosen: Sequence[Soc]) -> Iterator[str]:
    targets = sum(soc.has_htp for soc in chosen)
    others = f", {len(chosen) - targets} without HTP" if targets < len(chosen) else ""
    ids = len({soc.model_id for soc in chosen if soc.has_htp})
    names = f"{targets} SoC names" if ids < targets else f"{targets} SoCs"
    yield f"{names} with HTP{f', {ids} ids' if ids < targets else ''}{others}"
    yield from text_table(_COLUMNS, map(_cells, chosen))
    sources = dict.fromkeys(s.vtcm_size.source for s in chosen if s.vtcm_size is not None)
    for source in sources:
        yield f"measured: {source}; `qnnmem socs NAME` shows the details"


def _cells(soc: Soc) -> Sequence[str]:
    limit = "-" if soc.compile_limit is None else format_size(soc.compile_limit.value)
    facts = str(soc.model_id), _arch(soc), _vtcm(soc), limit, _fp16(soc)
    return soc.name, *facts, soc.marketing_name


def _one(soc: Soc) -> Iterator[str]:
    verdict = f"Hexagon {_arch(soc)} with HTP" if soc.has_htp else "not a target of the HTP backend"
    yield f"{soc.name}: {verdict}"
    if soc.marketing_name:
        yield f"known as       {soc.marketing_name}"
    yield f"soc_model id   {soc.model_id}"
    yield f"architecture   {_arch(soc)}"
    if soc.vtcm_size is not None:
        yield f"VTCM           {_vtcm(soc)} ({soc.vtcm_size.origin.value})"
    if soc.compile_limit is not None:
        limit = format_size(soc.compile_limit.value)
        yield f"compile limit  {limit} for each graph ({soc.compile_limit.origin.value})"
    if soc.fp16 is not None:
        yield f"fp16           {_fp16(soc)}, measured: {soc.fp16_source}"
    yield f"source         {soc.source}"
    if soc.library_name != soc.name:
        yield f"library name   {soc.library_name}, another name for the same id"
    if soc.note:
        yield f"note           {soc.note}"


def _arch(soc: Soc) -> str:
    return "-" if soc.arch is None else f"v{soc.arch}"


def _vtcm(soc: Soc) -> str:
    return "-" if soc.vtcm_bytes is None else format_size(soc.vtcm_bytes.value)


def _fp16(soc: Soc) -> str:
    return {True: "yes", False: "no", None: "-"}[soc.fp16]
