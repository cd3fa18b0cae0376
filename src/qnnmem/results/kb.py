"""Results about the doctor's knowledge base: entries, their checks, error codes."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from qnnmem.results.incident import EntryFacts, EntryTitle, Share
from qnnmem.results.result import Count, Result, describe


class KbEntry(EntryFacts, frozen=True, kw_only=True):
    """An entry of the knowledge base, with its line templates."""

    lines: Annotated[tuple[str, ...], describe("Line templates that identify the failure.")]
    score: Annotated[
        Share | UnsetType,
        describe(
            "For a search: share of the query words that the entry contains; rare words "
            "have more weight."
        ),
    ] = UNSET
    best_line: Annotated[
        str | UnsetType,
        describe("For a search: line that contains the most query words; empty if none matches."),
    ] = UNSET


class KbResult(Result, frozen=True, kw_only=True, tag="qnnmem.kb/1"):
    """Entries of the doctor's knowledge base."""

    entries: Annotated[
        tuple[KbEntry, ...],
        describe("The entries: a team's own entries first, then the built-in entries."),
    ]
    notes: Annotated[
        tuple[str, ...] | UnsetType,
        describe(
            "Files of the team's folders that were skipped, and why; absent if there are none."
        ),
    ] = UNSET


class EntryFinding(Struct, frozen=True):
    """A remark about an entry."""

    entry: Annotated[str, describe("Name of the entry.")]
    sentence: Annotated[str, describe("Finding in one sentence.")]


class KbCheckResult(Result, frozen=True, kw_only=True, tag="qnnmem.kb-check/1"):
    """The result of checking knowledge base entries."""

    passes: Annotated[bool, describe("Whether there are no findings.")]
    entries: Annotated[Count, describe("Number of entries checked.")]
    templates: Annotated[Count, describe("Number of line templates in the checked entries.")]
    cases: Annotated[Count, describe("Number of stored failures that were checked.")]
    healthy: Annotated[Count, describe("Number of stored healthy logs that were checked.")]
    documented: Annotated[
        Count, describe("Number of entries based only on documents, without a stored log.")
    ]
    findings: Annotated[tuple[EntryFinding, ...], describe("Problems found.")]
    notes: Annotated[tuple[EntryFinding, ...], describe("Notes that do not fail the check.")]


class CodeMeaning(Struct, frozen=True):
    """A meaning of an error code, and the diagnoses that use it."""

    code: Annotated[int, describe("Error code as a number.")]
    hex: Annotated[str, Meta(pattern="^-?0x[0-9a-f]+$"), describe("Error code in hexadecimal.")]
    name: Annotated[str, describe("Name of the constant.")]
    family: Annotated[
        str, describe("Table that the number belongs to, e.g. qnn, fastrpc, errno or prepare.")
    ]
    component: Annotated[str, describe("Component that returns the code.")]
    meaning: Annotated[str, describe("Meaning according to the name.")]
    aliases: Annotated[tuple[str, ...], describe("Other names of the same constant.")]
    also_written: Annotated[tuple[str, ...], describe("Other spellings seen in logs.")]
    in_practice: Annotated[str, describe("Meaning in practice; empty if only the name is known.")]
    not_what_it_says: Annotated[
        str,
        describe("Wrong meaning that the name suggests; empty if there is none."),
    ]
    look_for: Annotated[tuple[str, ...], describe("What to look for above the line with the code.")]
    entries: Annotated[
        tuple[EntryTitle, ...],
        describe("Diagnoses for this code; diagnoses that name a cause come first."),
    ]


class NearCode(Struct, frozen=True):
    """A known code whose number is close to an unknown code."""

    code: Annotated[int, describe("Error code as a number.")]
    name: Annotated[str, describe("Name of the constant.")]


class Explanation(Struct, frozen=True):
    """All meanings of one error code or name."""

    asked: Annotated[str, describe("Question as typed.")]
    code: Annotated[int | None, describe("Error code as a number; null for a name.")]
    known: Annotated[bool, describe("Whether a table contains the code or name.")]
    nearest_range: Annotated[
        str, describe("For an unknown code: component with the nearest numbers; else empty.")
    ] = ""
    near: Annotated[
        tuple[NearCode, ...],
        describe("For an unknown code: the nearest known codes of that component."),
    ] = ()
    meanings: Annotated[
        tuple[CodeMeaning, ...], describe("Meanings, one for each component that uses the number.")
    ] = ()


class ExplainResult(Result, frozen=True, kw_only=True, tag="qnnmem.explain/1"):
    """The meanings of error codes, and the diagnoses that use them."""

    codes: Annotated[
        tuple[Explanation, ...],
        Meta(min_length=1),
        describe("Answers, one for each code or name asked about, in order."),
    ]
