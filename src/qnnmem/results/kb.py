"""The doctor's knowledge base: its entries, and whether they keep what they promise."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from qnnmem.results.incident import Confidence, Share, Stage, Verdict
from qnnmem.results.result import Count, Result, describe


class KbEntry(Struct, frozen=True):
    """An entry of the knowledge base."""

    id: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,63}$"), describe("Name of the entry.")]
    title: Annotated[str, describe("The diagnosis in one line.")]
    stage: Stage
    cause: Annotated[str, describe("The cause, one of a closed set.")]
    verdict: Verdict
    confidence: Confidence
    own: Annotated[
        bool, describe("Whether it is a team's entry, which speaks before the built-in ones.")
    ]
    documented: Annotated[
        bool, describe("Whether it is known from its sources only: no stored log shows it.")
    ]
    remedies: Annotated[tuple[str, ...], describe("What to do, the first thing first.")]
    sources: Annotated[tuple[str, ...], describe("Where this is known from.")]
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
