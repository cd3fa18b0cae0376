"""Entries that resemble a line which no entry knows (BM25 over words).

words of a line:  identifiers split at case and underscore, other spellings put right,
                  numbers dropped, codes and hexadecimal kept
score of entry:   sum over shared words of how rare the word is among the entries, less for each
                  repetition and for long entries
shown:            at most a few, and none whose share of the line's words is that of strangers
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from qnnmem.doctor.kb.entry import Entry
from qnnmem.doctor.kb.fold import fold
from qnnmem.doctor.kb.sections import section, typical_lines

_K1, _B = 1.5, 0.75  # as bm25s has them
# Of all that a line's words could score, how much the best of ten unrelated lines reached, and a
# little more (tests/doctor/test_similar.py measures it).
THRESHOLD = 0.24
_LEAST_WORDS = 2
_LEAST_LETTERS = 5  # of words that are also looked for as they are written
_NOWHERE = 3
_NEAR_BEST = 0.5  # of the best score, how much another entry needs to be found beside it
_REMEMBERED = 1024

_WORD = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CODE = re.compile(r"(?:0x)?[0-9a-f]+")  # in whichever spelling, so not as it is written
_CODES = range(1000, 31_000)


class SimilarEntry(msgspec.Struct, frozen=True):
    """An entry that resembles a line; the resemblance is no diagnosis."""

    entry: Entry
    score: float  # 0 to 1: the share of the line's words that the entry has, weighed by rarity
    shared: tuple[str, ...]  # words that both have, the rarest first


class FoundEntry(msgspec.Struct, frozen=True):
    """An entry found by a search, and its line that contains most of the words."""

    entry: Entry
    score: float
    line: str  # empty when none of its lines has any


def find(text: str, entries: Sequence[Entry], limit: int = 10) -> tuple[FoundEntry, ...]:
    """Return the entries that contain the words in any part, best first."""
    searched = Ranker(tuple(entries), _everything)
    found = {one.entry.id: one for one in searched.rank(text, len(entries), 0.0, least=1)}
    least = _NEAR_BEST * max((one.score for one in found.values()), default=0.0)
    asked = " ".join(text.lower().split())
    near: list[tuple[int, SimilarEntry]] = []
    for entry in entries:
        one = found.get(entry.id, SimilarEntry(entry, 0.0, ()))
        place = _place(asked, entry)
        if place < _NOWHERE or (one.shared and one.score >= least):
            near.append((place, one))
    near.sort(key=lambda pair: (pair[0], -pair[1].score, pair[1].entry.id))
    return tuple(
        FoundEntry(one.entry, one.score, searched.best_line(text, one)) for _, one in near[:limit]
    )


def _place(asked: str, entry: Entry) -> int:
    """Return a rank for the exact words: 0 in the id, 1 in the title, 2 in the root cause."""
    if "-".join(asked.split()) == entry.id:
        return 0
    if len(asked) < _LEAST_LETTERS or _CODE.fullmatch(asked):
        return _NOWHERE
    cause = section(entry, "Root Cause")
    if asked in entry.title.lower():
        return 1
    if asked in cause.lower() or (fold(asked) or asked) in fold(f"{entry.title}\n{cause}"):
        return 2
    return _NOWHERE


def rank(
    text: str, entries: Sequence[Entry], limit: int = 3, threshold: float = THRESHOLD
) -> tuple[SimilarEntry, ...]:
    """Return the entries most like a line; none if the likeness is no more than chance."""
    return ranker(tuple(entries)).rank(text, limit, threshold)


def words(text: str) -> list[str]:
    """Return the words of a text that are compared."""
    found = []
    for word in _WORD.findall(text):
        if word[0].isdigit():
            code = int(word, 0) if word[:2].lower() == "0x" else int(word)
            if code in _CODES or code >> 12 == 0x80000:
                found.append(f"0x{code:x}")
            continue
        plain = word.lower()
        plain = _aliases().get(plain, plain)
        if plain:
            found.append(plain)
    return found


class _Index(msgspec.Struct, frozen=True):
    """Entries by word, with the weight of each word in an entry."""

    words: tuple[frozenset[str], ...]
    holders: Mapping[str, Sequence[tuple[int, float]]]
    counts: Mapping[str, int]  # of entries that have the word

    def weight(self, word: str) -> float:
        """Return the inverse document frequency of a word among the entries."""
        have = self.counts.get(word, 0)
        return math.log(1 + (len(self.words) - have + 0.5) / (have + 0.5))


class Ranker:
    """Ranks entries for many lines; lines with the same known words share one result."""

    def __init__(
        self,
        entries: tuple[Entry, ...],
        texts: Callable[[Entry], Iterable[str]] | None = None,
    ) -> None:
        """`texts` yields the searchable texts of an entry: by default lines and their meaning."""
        self._entries, self._index = entries, _index(entries, texts or _texts)
        self._scores: dict[tuple[str, ...], list[tuple[int, float]]] = {}

    def rank(
        self,
        text: str,
        limit: int = 3,
        threshold: float = THRESHOLD,
        *,
        least: int = _LEAST_WORDS,
    ) -> tuple[SimilarEntry, ...]:
        """Return the entries most like a line, best first; they share at least `least` words."""
        index = self._index
        asked = tuple(dict.fromkeys(words(text)))
        best = sum(index.weight(word) for word in asked) * (_K1 + 1)
        if len(asked) < least or not best:
            return ()
        found = []
        for number, points in self._best(tuple(w for w in asked if w in index.counts))[:limit]:
            shared = [word for word in asked if word in index.words[number]]
            score = points / best
            if score >= threshold and len(shared) >= least:
                shared.sort(key=lambda word: (-index.weight(word), word))
                found.append(SimilarEntry(self._entries[number], round(score, 3), tuple(shared)))
        return tuple(found)

    def best_line(self, text: str, found: SimilarEntry) -> str:
        """Return the typical line or template of an entry that contains most of the words."""
        asked = set(words(text))
        lines = [*typical_lines(found.entry), *(line.text for line in found.entry.lines)]
        points = [sum(map(self._index.weight, asked.intersection(words(line)))) for line in lines]
        best = max(points, default=0.0)
        return lines[points.index(best)].strip() if best else ""

    def _best(self, known: tuple[str, ...]) -> list[tuple[int, float]]:
        ranked = self._scores.get(known)
        if ranked is None:
            scores: dict[int, float] = {}
            for word in known:
                for number, value in self._index.holders[word]:
                    scores[number] = scores.get(number, 0.0) + value
            order = sorted(scores, key=lambda number: (-scores[number], self._entries[number].id))
            ranked = [(number, scores[number]) for number in order]
            if len(self._scores) < _REMEMBERED:
                self._scores[known] = ranked
        return ranked


@lru_cache(maxsize=4)
def ranker(entries: tuple[Entry, ...]) -> Ranker:
    """Return the cached ranker of these entries."""
    return Ranker(entries)


def _index(entries: Sequence[Entry], parts: Callable[[Entry], Iterable[str]]) -> _Index:
    texts = [Counter(words(" ".join(parts(entry)))) for entry in entries]
    counts = Counter(word for text in texts for word in text)
    index = _Index(tuple(map(frozenset, texts)), {}, counts)
    usual = sum(map(Counter.total, texts)) / max(len(texts), 1)
    holders: dict[str, list[tuple[int, float]]] = {}
    for number, text in enumerate(texts):
        room = _K1 * (1 - _B + _B * text.total() / usual)
        for word, times in text.items():
            value = index.weight(word) * times * (_K1 + 1) / (times + room)
            holders.setdefault(word, []).append((number, value))
    return msgspec.structs.replace(index, holders=holders)


def _texts(entry: Entry) -> Iterable[str]:
    """Yield the texts that unknown lines are compared with: title, log lines, their meaning."""
    yield entry.title
    yield from (line.text for line in entry.lines)
    yield entry.body.partition("## Solutions")[0]


def _everything(entry: Entry) -> Iterable[str]:
    """Yield the texts that a search covers; the title is included twice."""
    yield from (entry.id, entry.cause, entry.title, entry.body)
    yield from (line.text for line in entry.lines)
    yield from (*entry.remedies, *_texts(entry))


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, str]:
    import tomllib
    from importlib.resources import files

    text = files("qnnmem.doctor.kb").joinpath("similar.toml").read_text("utf-8")
    aliases: Mapping[str, str] = tomllib.loads(text)["alias"]
    return aliases
