"""Results about the doctor's knowledge base: entries, their checks, error codes."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from qnnmem.results.incident import EntryFacts, EntryTitle, Share
from qnnmem.results.result import Count, Result, describe


class KbEntry(EntryFacts, frozen=True, kw_only=True):
    """An entry of the knowledge base, with its line templates."""

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
    """A remark about an entry."""

    entry: Annotated[str, describe("Name of the entry.")]
    sentence: Annotated[str, describe("The finding in a sentence.")]


class KbCheckResult(Result, frozen=True, kw_only=True, tag="qnnmem.kb-check/1"):
    """The result of checking knowledge base entries."""

    passes: Annotated[bool, describe("Whether nothing is wrong.")]
    entries: Annotated[Count, describe("Entries that were checked.")]
    templates: Annotated[Count, describe("Line templates of those entries.")]
    cases: Annotated[Count, describe("Stored failures that they were tried on.")]
    healthy: Annotated[Count, describe("Stored logs of healthy runs that they were tried on.")]
    documented: Annotated[Count, describe("Entries without a stored log, which say so.")]
    findings: Annotated[tuple[EntryFinding, ...], describe("What is wrong.")]
    notes: Annotated[tuple[EntryFinding, ...], describe("Remarks, not faults.")]


class CodeMeaning(Struct, frozen=True):
    """A meaning of an error code, and the diagnoses that use it."""

    code: Annotated[int, describe("The number.")]
    hex: Annotated[str, Meta(pattern="^-?0x[0-9a-f]+$"), describe("The number in hexadecimal.")]
    name: Annotated[str, describe("Name of the constant.")]
    family: Annotated[
        str, describe("Table that the number belongs to, e.g. qnn, fastrpc, errno or prepare.")
    ]
    component: Annotated[str, describe("Who returns it.")]
    meaning: Annotated[str, describe("What the name says.")]
    aliases: Annotated[tuple[str, ...], describe("Other names of the same constant.")]
    also_written: Annotated[tuple[str, ...], describe("Other spellings seen in logs.")]
    in_practice: Annotated[
        str, describe("What it means in practice; empty when nothing is known beyond the name.")
    ]
    not_what_it_says: Annotated[
        str,
        describe("A wrong meaning that the name suggests; empty if there is none."),
    ]
    look_for: Annotated[tuple[str, ...], describe("What to look for above the line with the code.")]
    entries: Annotated[
        tuple[EntryTitle, ...],
        describe("Diagnoses that test or show the code, those that name a cause first."),
    ]


class NearCode(Struct, frozen=True):
    """A known code next to an unknown one."""

    code: Annotated[int, describe("The number.")]
    name: Annotated[str, describe("Name of the constant.")]


class Explanation(Struct, frozen=True):
    """All meanings of one error code or name."""

    asked: Annotated[str, describe("The question as it was typed.")]
    code: Annotated[int | None, describe("The number; null for a name.")]
    known: Annotated[bool, describe("Whether a table has it.")]
    nearest_range: Annotated[
        str, describe("Component whose numbers are near it when no table has it, else empty.")
    ] = ""
    near: Annotated[
        tuple[NearCode, ...],
        describe("The codes just below and above it in that range when no table has it."),
    ] = ()
    meanings: Annotated[
        tuple[CodeMeaning, ...], describe("One for each component that uses the number.")
    ] = ()


class ExplainResult(Result, frozen=True, kw_only=True, tag="qnnmem.explain/1"):
    """The meanings of error codes, and the diagnoses that use them."""

    codes: Annotated[
        tuple[Explanation, ...],
        Meta(min_length=1),
        describe("One answer for each code that was asked for, in that order."),
    ]
