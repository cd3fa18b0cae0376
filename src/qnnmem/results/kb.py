"""The doctor's knowledge base: its entries, and whether they keep what they promise."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from qnnmem.results.incident import EntryFacts, Share
from qnnmem.results.result import Count, Result, describe


class KbEntry(EntryFacts, frozen=True, kw_only=True):
    """An entry of the knowledge base, as it is listed."""

    lines: Annotated[tuple[str, ...], describe("Line templates by which it is recognised.")]
    score: Annotated[
        Share | UnsetType,
        describe("Of a search: the share of the words that the entry has, rare ones first."),
    ] = UNSET
    best_line: Annotated[
        str | UnsetType,
        describe("Of a search: the line with most of the words; empty if none has any."),
    ] = UNSET


class KbResult(Result, frozen=True, kw_only=True, tag="qnnmem.kb/1"):
    """Entries of the doctor's knowledge base."""

    entries: Annotated[
        tuple[KbEntry, ...], describe("A team's own entries first, then the built-in ones.")
    ]
    notes: Annotated[
        tuple[str, ...] | UnsetType,
        describe(
            "Files of a team's folders that were left out, and why; only where there are any."
        ),
    ] = UNSET


class EntryFinding(Struct, frozen=True):
    """A sentence about an entry."""

    entry: Annotated[str, describe("Name of the entry.")]
    sentence: Annotated[str, describe("What is to be said about it.")]


class KbCheckResult(Result, frozen=True, kw_only=True, tag="qnnmem.kb-check/1"):
    """Whether entries of the knowledge base keep what they promise."""

    passes: Annotated[bool, describe("Whether nothing is wrong.")]
    entries: Annotated[Count, describe("Entries that were checked.")]
    templates: Annotated[Count, describe("Line templates of those entries.")]
    cases: Annotated[Count, describe("Stored failures that they were tried on.")]
    healthy: Annotated[Count, describe("Stored logs of healthy runs that they were tried on.")]
    documented: Annotated[Count, describe("Entries without a stored log, which say so.")]
    findings: Annotated[tuple[EntryFinding, ...], describe("What is wrong.")]
    notes: Annotated[tuple[EntryFinding, ...], describe("Worth knowing, but not wrong.")]
