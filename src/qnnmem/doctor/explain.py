"""Explain an error code: its names, its meaning in practice, and related diagnoses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from qnnmem.doctor.kb.entry import VERDICTS, Entry
from qnnmem.errors import UsageError
from qnnmem.qnn import c_names
from qnnmem.qnn.numbers import Number, nearest_range, neighbours
from qnnmem.qnn.pasted import read_pasted, similar_names
from qnnmem.results.incident import EntryTitle
from qnnmem.results.kb import CodeMeaning, Explanation, NearCode
from qnnmem.text import quote


def explain(asked: str, entries: Sequence[Entry]) -> Explanation:
    """Return the meanings of a code, given as a number, a name or part of a log line."""
    pasted = read_pasted(asked)
    if pasted is None:
        raise UsageError(f"{quote(asked)} is not an error code", cure=_cure(asked))
    found = tuple(_meaning(one, entries) for one in pasted.found)
    if found or pasted.code is None:
        return Explanation(asked, pasted.code, bool(found), meanings=found)
    near = tuple(NearCode(one.code, one.name) for one in neighbours(pasted.code))
    return Explanation(asked, pasted.code, False, nearest_range(pasted.code), near)


def _cure(asked: str) -> str:
    constant = getattr(c_names, asked.strip(), None)
    if isinstance(constant, int):
        name = asked.strip()
        return (
            f"it is the constant {int(constant):#x}; to find failures that involve it: "
            f"`qnnmem kb find {name}`"
        )
    if similar := similar_names(asked):
        return f"did you mean {' or '.join(similar)}?"
    return (
        "give a number such as 1002, 0x3ea or -12, or a name such as "
        "QNN_COMMON_ERROR_MEM_ALLOC; for a whole log, use `qnnmem doctor`"
    )


def _meaning(number: Number, entries: Sequence[Entry]) -> CodeMeaning:
    found = sorted(_involving(number, entries), key=lambda one: VERDICTS.index(one.verdict))
    note = number.note
    return CodeMeaning(
        number.code,
        hex_of(number.code),
        number.name,
        number.family,
        number.component,
        number.meaning,
        aliases=number.aliases,
        also_written=note.written,
        in_practice=note.practice,
        not_what_it_says=note.not_that,
        look_for=note.look_for,
        entries=tuple(EntryTitle(one.id, one.title, one.cause, one.stage) for one in found),
    )


def hex_of(code: int) -> str:
    """Return a code in hexadecimal; a negative code keeps its sign."""
    return f"-0x{-code:x}" if code < 0 else f"0x{code:x}"


def _involving(number: Number, entries: Iterable[Entry]) -> Iterable[Entry]:
    """Yield the entries that test the code in a condition or contain it in a typical log line."""
    words = _spellings(number)
    for entry in entries:
        if _tests(entry, number.code) or words.search(_typical(entry)):
            yield entry


def _tests(entry: Entry, code: int) -> bool:
    """Return True if a condition of the entry tests the code; always False for codes below 1000."""
    if code < 1000:
        return False
    return any(
        test.name in ("code", "error", "status") and test.operator == "==" and code in test.values
        for when in entry.whens
        for test in when.where
    )


def _spellings(number: Number) -> re.Pattern[str]:
    """Return a pattern that finds the code in logs; small numbers need a keyword before them."""
    names = [re.escape(name) for name in (number.name, *number.aliases, *number.note.written)]
    code = number.code
    if code >= 1000:
        names += [rf"(?<![\w.]){code}(?![\w.]*\d)", rf"0x0*{code:x}(?![0-9a-f])"]
    elif number.family == "prepare":
        names += [rf"(?:prepare|serialize\b.*) failed {code}\b", rf"with err: {code}\b"]
    elif number.family == "fastrpc":
        names += [rf"(?:error|failed)\w*[:,]? 0x0*{code:x}(?![0-9a-f])"]
    elif number.family == "errno":
        names += [rf"\berr(?:no|or)?[ :=(]+-?{code}\b", rf"\(-{code}\)", rf"with -{code}\b"]
    return re.compile("|".join(names), re.IGNORECASE)


def _typical(entry: Entry) -> str:
    """Return the part of an entry that contains its typical log lines."""
    return entry.body.partition("## Root Cause")[0]
