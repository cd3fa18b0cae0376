"""Entries of the knowledge base as JSON results."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from qnnmem.doctor.kb.entry import Entry
from qnnmem.doctor.kb.similar import FoundEntry
from qnnmem.results.incident import EntryFacts
from qnnmem.results.kb import KbEntry, KbResult


def list_entries(entries: Sequence[Entry], notes: Sequence[str] = ()) -> KbResult:
    """Return a JSON result that lists these entries and notes about skipped files."""
    return KbResult(entries=tuple(map(_listed, entries)), notes=tuple(notes) or UNSET)


def list_found(found: Sequence[FoundEntry]) -> KbResult:
    """Return a JSON result that lists the entries found, each with its score and best line."""
    rows = (replace(_listed(one.entry), score=one.score, best_line=one.line) for one in found)
    return KbResult(entries=tuple(rows))


def _listed(entry: Entry) -> KbEntry:
    facts = {name: getattr(entry, name) for name in EntryFacts.__struct_fields__}
    return KbEntry(**facts, lines=tuple(line.text for line in entry.lines))
