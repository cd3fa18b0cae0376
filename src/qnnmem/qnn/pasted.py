"""Finds the error code in a pasted text: a number, a name, or a piece of a log line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from qnnmem.qnn.numbers import Number, meanings, named, squeezed
from qnnmem.text import lazy_pattern

_LONGEST = 4096  # characters of a text that are examined
_INTEGER = r"[-+]?(?:0x[0-9a-f]{1,16}|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,20})"
_TAIL = r"[ul]{0,3}"  # suffix of a C literal
_NUMBER = lazy_pattern(rf"({_INTEGER}){_TAIL}", re.IGNORECASE)
_BARE_HEX = lazy_pattern(r"(?=[a-f]*[0-9])([0-9a-f]{2,16})h?", re.IGNORECASE)
_END = r"(?!\w|[.,]\d)"
_WITHIN = lazy_pattern(rf"(?<![\w.])({_INTEGER}){_TAIL}{_END}", re.IGNORECASE)
_BETWEEN = (
    r"(?:[\s_-]*(?:code|no|number|status|value|with|is|of|err(?:or|no)?)\b){0,4}[\s:=,;(\[#'\"]*"
)
# Words before a number that mark it as an error code, the most specific first.
_SAID = tuple(
    re.compile(
        rf"(?<![a-z])(?:{words}){_BETWEEN}(?<![\w.])({_INTEGER}){_TAIL}{_END}", re.IGNORECASE
    )
    for words in (
        r"err(?:or|no)?|error_?code|code|rc|ret(?:val|urned|urn)?|status|result",
        r"fail(?:ed|ure)?|with|exit(?:ed)?",
    )
)
_LAST = lazy_pattern(rf"(?<![\w.])({_INTEGER}){_TAIL}\W*$", re.IGNORECASE)
_NAME = lazy_pattern(r"[A-Za-z][A-Za-z0-9_:. \t-]{2,99}")
_WORD = lazy_pattern(r"[A-Za-z][A-Za-z0-9_]{2,79}")
# Words near a number that identify the component which printed it.
_PRINTERS = (
    (re.compile(r"prepare failed|serialize\b.* failed", re.IGNORECASE), ("prepare",)),
    (re.compile(r"\berrno\b", re.IGNORECASE), ("errno",)),
    (re.compile(r"qnn_open|fastrpc|remote_|rpcmem|aee", re.IGNORECASE), ("fastrpc", "fastrpc-dsp")),
)
_QUOTES = " \t\r\n'\"`()[]{}<>.,;:!?#=*"


@dataclass(frozen=True, slots=True)
class Pasted:
    """The error code in a text: its number (None for a name), and the known codes that match."""

    code: int | None  # None if the text is a name
    found: tuple[Number, ...]


def read_pasted(text: str) -> Pasted | None:
    """Return the code in a text; None for a text without a code, or with an ambiguous number."""
    text = text[:_LONGEST]
    bare = text.strip(_QUOTES)
    if whole := _NUMBER.fullmatch(bare):
        return _of_number(whole[1])
    if _NAME.fullmatch(bare) and (known := named(bare)):
        return Pasted(None, known)
    if (hexadecimal := _BARE_HEX.fullmatch(bare)) and (known := meanings(int(hexadecimal[1], 16))):
        return Pasted(int(hexadecimal[1], 16), known)
    if known := _names_within(text):
        return Pasted(None, known)
    number = _number_within(text)
    return None if number is None else _of_number(number, text)


def _of_number(digits: str, text: str = "") -> Pasted:
    code = _value(digits)
    known = meanings(code)
    if not known and digits.isdigit() and (in_hex := meanings(int(digits, 16))):
        return Pasted(int(digits, 16), in_hex)  # a copied 0x80000406 that lost its first characters
    families = next((names for words, names in _PRINTERS if words.search(text)), ())
    likely = tuple(number for number in known if number.family in families)
    return Pasted(code, likely or known)


def _value(digits: str) -> int:
    digits = digits.replace(",", "")
    return int(digits, 16) if "x" in digits.lower() else int(digits)


def _names_within(text: str) -> tuple[Number, ...]:
    """Return the codes of the first full name in a text; partial names do not count."""
    for word in _WORD.finditer(text):
        is_name = "_" in word[0] or word[0].isupper()
        if is_name and (known := named(word[0], whole=True)):
            return known
    return ()


def _number_within(text: str) -> str | None:
    for pattern in _SAID:
        if numbers := pattern.findall(text):
            return str(numbers[-1])
    if last := _LAST.search(text):
        return last[1]
    numbers = list(_numbers(text))
    return numbers[0] if len(numbers) == 1 else None


def _numbers(text: str) -> Iterator[str]:
    yield from (match[1] for match in _WITHIN.finditer(text))


def similar_names(text: str, count: int = 3) -> tuple[str, ...]:
    """Return the names that start with a text or are similar to it."""
    from difflib import get_close_matches

    from qnnmem.qnn.numbers import every_name

    wanted = squeezed(text[:100])
    known = {squeezed(name): name for name in every_name()}
    begin = [name for key, name in known.items() if len(wanted) > 3 and key.startswith(wanted)]
    near = [known[key] for key in get_close_matches(wanted, known, n=count, cutoff=0.75)]
    return tuple(dict.fromkeys([*near, *begin]))[:count]
