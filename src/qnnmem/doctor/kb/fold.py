"""Normalised spelling of messages, so that one template matches all spellings.

    <E> Failed to createFromBinary, Error: 0x3EA   ->   e fail create from binary error 1002

Words are split where the case changes and put in lower case. Punctuation becomes blanks, numbers
and named codes become decimal numbers, synonyms become the same word, and small words are dropped.
A normalised template is also a template with holes, so `matcher` can match it. A name can become
several words, so a hole for a word then accepts any text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import msgspec

from qnnmem.doctor.kb.matcher import Matcher
from qnnmem.errors import UsageError
from qnnmem.text import lazy_pattern

_MOST_FORMS = 8  # expanded forms of a template with choices
_LEAST_WORDS = 3  # minimum fixed words of a template; fewer occur in many messages
_LEAST_TELLING = 2  # minimum of these words that are not common in all messages
_EVERYWHERE = frozenset(("qnn", "htp", "dsp", "npu", "not"))
_REMEMBERED = 4096

_SYMBOL = lazy_pattern(r"\b(?:qnn_[a-z0-9_]{4,60}|aee_[a-z0-9]{3,40})\b", re.IGNORECASE)
_HEX = lazy_pattern(r"\b0x([0-9a-f]{1,16})\b", re.IGNORECASE)
_UNIT = lazy_pattern(r"(?<=[0-9])(?=(?:[kmg]i?b|bytes?|ms|us|s)\b)", re.IGNORECASE)
_BINARY = lazy_pattern(r"\b([kmg])i(b)\b", re.IGNORECASE)
_THOUSANDS = lazy_pattern(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_CASES = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# ASCII punctuation; the negated class would take 7 ms to compile.
_OTHER = lazy_pattern(r"[\x00-\x2d/\x3a-\x60\x7b-\x7f]+|\.(?![0-9])|(?<![0-9])\.")
_DIGITS = lazy_pattern(r"[0-9]+")
_ONE_DIGIT = bytes.maketrans(b"0123456789", b"1" * 10)
_HOLE = lazy_pattern(r"(?<!\\)(\{[^{}]*\})")
_CHOICE = lazy_pattern(r"(?<!\\)\(([^()]*)(?<!\\)\)")
_ESCAPED = lazy_pattern(r"\\(.)")

_SMALL = frozenset(
    ("the", "a", "an", "to", "with", "of", "is", "was", "for", "be", "has", "have", "been", "by")
)
_SAME = {
    word: words.split()[0]
    for words in (
        "fail fails failed failure failures failing unable cannot cant couldnt unsuccessful",
        "error errors err errno",
        "create creates created creating creation",
        "init initialize initialise initialized initialised initializing initialization initing",
        "alloc allocate allocated allocates allocating allocation allocations",
        "finalize finalise finalized finalizing finalization",
        "register registers registered registering registration",
        "load loads loaded loading",
        "open opens opened opening",
        "map maps mapped mapping",
        "execute executes executed executing execution",
        "prepare prepares prepared preparing preparation",
        "serialize serialise serialized serializing serialization",
        "deserialize deserialise deserialized deserializing deserialization",
        "require requires required requiring",
        "exceed exceeds exceeded exceeding",
        "memory mem",
        "context contexts ctx",
        "library libraries lib",
        "buffer buffers buf",
        "graph graphs",
        "tensor tensors",
        "support supports supported supporting",
        "find found finds finding",
        "get gets got getting",
        "set sets setting",
        "return returns returned returning ret",
        "byte bytes",
    )
    for word in words.split()
}


def fold(text: str) -> str:
    """Return a message in its normalised spelling."""
    plain = _SYMBOL.sub(lambda found: _code(found[0]), text.replace("'", ""))
    plain = _HEX.sub(lambda found: str(int(found[1], 16)), plain)
    plain = _BINARY.sub(r"\1\2", _UNIT.sub(" ", _THOUSANDS.sub("", plain)))
    low = _CASES.sub(" ", plain).lower()
    low = low.replace("could not", "cannot").replace("can not", "cannot")
    words = (_SAME.get(word, word) for word in _OTHER.sub(" ", low).split())
    return " ".join(word for word in words if word not in _SMALL)


def _code(symbol: str) -> str:
    from qnnmem.qnn.numbers import code_named

    code = code_named(symbol)
    return symbol if code is None else str(code)


class FoldedTemplate(msgspec.Struct, frozen=True):
    """Template in normalised spelling."""

    number: int
    regex: str
    runs: tuple[str, ...]  # its fixed texts, with 1 for every number
    rarest: str = ""  # its word that occurs in the fewest templates


def folded(number: int, text: str) -> Iterator[FoldedTemplate]:
    """Yield the normalised forms of a template that contain enough fixed words."""
    from qnnmem.doctor.kb.template import parse

    for form in dict.fromkeys(map(_folded, _forms(text))):
        words = _HOLE.sub(" ", form).split()
        telling = sum(word not in _EVERYWHERE for word in words)
        if len(words) < _LEAST_WORDS or telling < _LEAST_TELLING:
            continue
        try:
            made = parse(form)
        except UsageError:  # too short, or too many holes
            continue
        yield FoldedTemplate(
            number, made.regex, tuple(_numberless(run.strip()) for run in made.runs)
        )


def with_rarest(every: Sequence[FoldedTemplate]) -> list[FoldedTemplate]:
    """Return the templates with `rarest` set, the word by which each template is looked up."""
    counts = Counter(word for one in every for word in _words(one.runs))
    return [
        msgspec.structs.replace(
            one, rarest=min(_words(one.runs), key=lambda word: (counts[word], word))
        )
        for one in every
    ]


def _folded(text: str) -> str:
    """Return the normalised text of a template that contains no choices."""
    parts = (
        _hole(piece) if index % 2 else fold(_ESCAPED.sub(r"\1", piece))
        for index, piece in enumerate(_HOLE.split(text))
    )
    return " ".join(part for part in parts if part)


def _hole(hole: str) -> str:
    name, _, kind = hole[1:-1].partition(":")
    if kind in ("", "word"):
        return f"{{{name}:text}}" if name and name != "*" else "{*}"
    return hole


def _forms(text: str) -> list[str]:
    """Return one expansion for each combination of a template's choices; [] above a limit."""
    pieces = _CHOICE.split(text)
    choices = [piece.split("|") if index % 2 else [piece] for index, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_FORMS:
        return []
    return ["".join(chosen) for chosen in product(*choices)]


class SecondReading:
    """Matcher that compares normalised spellings, for lines that no template matches literally."""

    def __init__(self, every: Sequence[FoldedTemplate]) -> None:
        self._by_word: dict[str, list[FoldedTemplate]] = {}
        for one in every:
            self._by_word.setdefault(one.rarest, []).append(one)
        self._matchers: dict[FoldedTemplate, Matcher] = {}
        self._known: dict[bytes, list[FoldedTemplate]] = {}  # by line, with all numbers alike

    def find(self, text: bytes) -> list[tuple[int, tuple[bytes, ...]]]:
        """Return the number and captured texts of each template whose normalised form matches."""
        shape = text.translate(_ONE_DIGIT)
        asked = self._known.get(shape)
        if asked is None:
            asked = list(self._candidates(_numberless(fold(shape.decode("utf-8", "replace")))))
            if len(self._known) < _REMEMBERED:
                self._known[shape] = asked
        if not asked:
            return []
        raw = fold(text.decode("utf-8", "replace")).encode()
        found: dict[int, tuple[bytes, ...]] = {}
        for one in asked:
            if one.number not in found and (hit := self._matcher(one).search(raw, raw)):
                found[one.number] = hit[1]
        return sorted(found.items())

    def _candidates(self, line: str) -> Iterator[FoldedTemplate]:
        for word in dict.fromkeys(line.split()):
            for one in self._by_word.get(word, ()):
                if all(run in line for run in one.runs):
                    yield one

    def _matcher(self, one: FoldedTemplate) -> Matcher:
        found = self._matchers.get(one)
        if found is None:
            found = self._matchers[one] = Matcher(one.regex)
        return found


def _numberless(text: str) -> str:
    """Return a normalised text with every number replaced by 1."""
    return _DIGITS.sub("1", text)


def _words(runs: Iterable[str]) -> set[str]:
    return {word for run in runs for word in run.split()}
