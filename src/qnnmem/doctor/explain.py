"""What an error code means: its names, what it means in practice, which diagnoses it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from qnnmem.doctor.kb.entry import VERDICTS, Entry
from qnnmem.errors import UsageError
from qnnmem.qnn.numbers import Number, meanings, named, nearest_range

_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]{1,16}|[0-9]{1,20})", re.IGNORECASE)
_LAST_NUMBER = re.compile(rf"(?<![\w.])({_NUMBER.pattern})\W*$", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_:]{2,79}")
# Words beside a number that say who printed it.
_PRINTERS = (
    (re.compile(r"prepare failed|serialize\b.* failed", re.IGNORECASE), ("prepare",)),
    (re.compile(r"\berrno\b", re.IGNORECASE), ("errno",)),
    (re.compile(r"qnn_open|fastrpc|remote_|rpcmem|aee", re.IGNORECASE), ("fastrpc", "fastrpc-dsp")),
)


class CodeMeaning(msgspec.Struct, frozen=True):
    """One meaning of a code, and its diagnoses, those that name causes first."""

    number: Number
    entries: tuple[Entry, ...]


class Explanation(msgspec.Struct, frozen=True):
    """Everything about one question."""

    asked: str
    code: int | None  # None for a name
    meanings: tuple[CodeMeaning, ...]
    nearest: str = ""  # which component numbers like this belong to, when nothing is known


def explain(asked: str, entries: Sequence[Entry]) -> Explanation:
    """The meanings of a number, a name, or a piece of a log line that ends with a number."""
    text = asked.strip()
    if _NUMBER.fullmatch(text):
        return _number(asked, int(text, 0) if "x" in text.lower() else int(text), (), entries)
    if " " in text and (found := _LAST_NUMBER.search(text)):
        families = next((names for words, names in _PRINTERS if words.search(text)), ())
        number = found[1]
        code = int(number, 0) if "x" in number.lower() else int(number)
        return _number(asked, code, families, entries)
    if _NAME.fullmatch(text) and (known := named(text)):
        return Explanation(asked, None, tuple(_meaning(one, entries) for one in known))
    raise UsageError(
        f"'{asked}' is not an error code: give a number such as 1002, 0x3ea or -12, "
        "or a name such as QNN_COMMON_ERROR_MEM_ALLOC"
    )


def _number(
    asked: str, code: int, families: Sequence[str], entries: Sequence[Entry]
) -> Explanation:
    found = meanings(code)
    if families and any(one.family in families for one in found):
        found = tuple(one for one in found if one.family in families)
    nearest = "" if found else nearest_range(code)
    return Explanation(asked, code, tuple(_meaning(one, entries) for one in found), nearest)


def _meaning(number: Number, entries: Sequence[Entry]) -> CodeMeaning:
    found = sorted(_involving(number, entries), key=lambda one: VERDICTS.index(one.verdict))
    return CodeMeaning(number, tuple(found))


def _involving(number: Number, entries: Iterable[Entry]) -> Iterable[Entry]:
    """Diagnoses whose conditions test the code or whose typical lines show it."""
    words = _spellings(number)
    for entry in entries:
        if _tests(entry, number.code) or words.search(_typical(entry)):
            yield entry


def _tests(entry: Entry, code: int) -> bool:
    """Small numbers are left to the typical lines: a condition does not say whose they are."""
    if code < 1000:
        return False
    return any(
        test.name in ("code", "error", "status") and test.operator == "==" and code in test.values
        for when in entry.whens
        for test in when.where
    )


def _spellings(number: Number) -> re.Pattern[str]:
    """How a log writes the code: a QNN code by its number, small ones only beside their words."""
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
    """The log lines that an entry shows to people."""
    return entry.body.partition("## Root Cause")[0]
