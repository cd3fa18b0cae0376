"""Render a deployed file as text: binaries, CPU parts, what the file says about its binaries."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.provenance import Sourced
from qnnmem.report.shell import file_word, next_line
from qnnmem.report.table import size_words, thousands
from qnnmem.results.carrier import CarriedBinary, CarrierFacts, CarrierResult
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

SHOWN = 20  # rows of each kind; --json lists all
_WIDE = 200
_LONG = 400


def render_text(result: CarrierResult) -> str:
    """Render the binaries with their graphs, then the other parts; names become printable."""
    facts = result.facts
    binaries = counted(len(facts.binaries), "distinct context")
    title = facts.title.removeprefix("an ").removeprefix("a ")
    lines = [f"{title}: {binaries} for HTP", shorten(result.file, _WIDE)]
    for binary in facts.binaries[:SHOWN]:
        lines += ["", *_binary(binary)]
    lines += _more(len(facts.binaries))
    rest = list(facts_lines(facts))
    lines += ["", *rest] if rest else []
    if facts.binaries:
        command = ["qnnmem", "footprint", file_word(result.file)]
        lines += ["", next_line("show the memory bill", command)]
    return "\n".join(lines) + "\n"


def _binary(binary: CarriedBinary) -> Iterator[str]:
    yield f"{shorten(binary.name, _WIDE)}: {size_words(binary.bytes)}{_group(binary)}"
    if binary.used_by:
        yield f"  used by {_names(binary.used_by)}"
    yield f"  graphs: {_names(binary.graphs)}"


def _group(binary: CarriedBinary) -> str:
    return f", for devices of group {shorten(binary.group)}" if binary.group else ""


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(shorten(name) for name in names[:SHOWN]) + more


def binary_lines(facts: CarrierFacts) -> Iterator[str]:
    """Yield a heading, then each context binary with its total size and process-domain size."""
    if not facts.binaries:
        return
    yield f"{'total':>16}{'domain at most':>18}  context binary, counted once"
    for binary in facts.binaries[:SHOWN]:
        size, need = map(_known, (binary.total, binary.need_high))
        users = f", used by {_names(binary.used_by)}" if binary.used_by else ""
        yield f"{size:>16}{need:>18}  {shorten(binary.name, _WIDE)}{_group(binary)}{users}"
    yield from _more(len(facts.binaries))


def _known(size: Sourced | None) -> str:
    return thousands(None if size is None else size.value, "not known")


def facts_lines(facts: CarrierFacts) -> Iterator[str]:
    """Yield lines: CPU parts, KV cache, what the file says about its binaries, unread parts."""
    for part in facts.host[:SHOWN]:
        size = f"{part.size.value:>16,}{format_size(part.size.value):>13}"
        yield f"{size}  on the CPU: {shorten(part.name, _WIDE)}"
    yield from _more(len(facts.host))
    for known, name in (
        (facts.state, "KV cache, part of the IO"),
        (facts.shared_spill_fill, "spill/fill with one shared buffer, as the file requests"),
    ):
        if known is not None:
            yield f"{known.value:>16,}{format_size(known.value):>13}  {name}"
    if facts.cpu_operators:
        kinds = counted(len(facts.cpu_operators), "kind")
        yield f"operators on the CPU, {kinds}: {_names(facts.cpu_operators)}"
    for claim in facts.claims[:SHOWN]:
        mark = {True: "holds", False: "WRONG", None: "not checked"}[claim.holds]
        words = f"{shorten(claim.claimed, _WIDE)}; {shorten(claim.found, _WIDE)}"
        yield f"claim {mark}: {shorten(claim.what, _WIDE)}: {words}"
    yield from _more(len(facts.claims))
    for unread in facts.unread[:SHOWN]:
        yield f"memory unknown for {shorten(unread.name, _WIDE)}: {shorten(unread.why, _LONG)}"
    yield from _more(len(facts.unread))
    for note in facts.notes[:SHOWN]:
        yield f"note: {shorten(note, _LONG)}"


def _more(number: int) -> list[str]:
    return [f"… and {number - SHOWN:,} more; --json lists all"] if number > SHOWN else []
