"""Find entries similar to a line that no entry matches (BM25 over words).

words of a line:  identifiers are split at changes of case and at underscores; variants of a
                  spelling count as one word
numbers:          dropped, except error codes, which are compared in hexadecimal
score of entry:   the rarity of each shared word, summed; repetitions and long entries count less
shown:            only the best entries, if they share more words than unrelated entries would
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from qnnmem.doctor.kb.entry import Entry
from qnnmem.doctor.kb.fold import fold
from qnnmem.doctor.kb.sections import section, typical_lines
from qnnmem.text import lazy_pattern
from qnnmem.wire import ready

_K1, _B = 1.5, 0.75  # the defaults of bm25s
# Minimum score, as a share of the maximum: the best score of ten unrelated lines plus a margin
# (measured by tests/doctor/test_similar.py).
THRESHOLD = 0.24
_LEAST_WORDS = 2
_LEAST_LETTERS = 5  # letters of words that are also searched literally
_LEAST_IN_SENTENCE = 3  # words that are together in one cause or remedy
_NOWHERE = 4
_NEAR_BEST = 0.5  # minimum share of the best score for further entries
_REMEMBERED = 1024

_WORD = lazy_pattern(r"0x[0-9a-fA-F]{1,16}|[0-9]+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CODE = lazy_pattern(r"(?:0x)?[0-9a-f]+")  # found in any notation, so not searched literally
_CODES = range(1000, 31_000)


class SimilarEntry(msgspec.Struct, frozen=True):
    """Entry that resembles a line; this is not a diagnosis."""

    entry: Entry
    score: float  # 0 to 1: share of the line's words in the entry, weighted by rarity
    shared: tuple[str, ...]  # shared words, the rarest first


class FoundEntry(msgspec.Struct, frozen=True):
    """Entry found by a search, and the line of the entry that fits the search best."""

    entry: Entry
    score: float
    line: str  # empty if none of its lines contains a word


def find(text: str, entries: Sequence[Entry], limit: int = 10) -> tuple[FoundEntry, ...]:
    """Return the entries that fit a search, best first; all parts of an entry are searched."""
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
    """Return where an entry contains `asked`, as a number from 0 (best) to 4.

    0: `asked` is the id; 1: the title contains it; 2: the cause or a typical line contains it;
    3: one sentence contains all its words, in any order; 4: not found.
    """
    if "-".join(asked.split()) == entry.id:
        return 0
    if len(asked) < _LEAST_LETTERS or _CODE.fullmatch(asked):
        return _NOWHERE
    cause = section(entry, "Root Cause")
    if asked in entry.title.lower():
        return 1
    if any(asked in one.lower() for one in (cause, *typical_lines(entry))):
        return 2
    if (fold(asked) or asked) in fold(f"{entry.title}\n{cause}"):
        return 2
    every = set(words(asked))
    if len(every) < _LEAST_IN_SENTENCE:
        return _NOWHERE
    advice = (one.partition("`")[0] for one in entry.remedies)  # without the commands
    sentences = (*cause.splitlines(), *advice)
    return 3 if any(every.issubset(words(one.lower())) for one in sentences) else _NOWHERE


def rank(
    text: str, entries: Sequence[Entry], limit: int = 3, threshold: float = THRESHOLD
) -> tuple[SimilarEntry, ...]:
    """Return the entries most similar to a line, best first; each scores at least `threshold`."""
    return ranker(tuple(entries)).rank(text, limit, threshold)


def words(text: str) -> list[str]:
    """Return the words of a text in a form that can be compared."""
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


class WordIndex(msgspec.Struct, frozen=True):
    """Index of the words in entries, in a form that can be cached."""

    ids: tuple[str, ...]  # ids of the entries
    totals: tuple[int, ...]  # number of words of each entry
    holders: dict[str, tuple[tuple[int, int], ...]]  # numbers of entries, and occurrences

    def weight(self, word: str) -> float:
        """Return the inverse document frequency of a word among the entries."""
        have = len(self.holders.get(word, ()))
        return math.log(1 + (len(self.ids) - have + 0.5) / (have + 0.5))

    def values(self, word: str) -> Iterator[tuple[int, float]]:
        """Yield the index of each entry that contains a word, with the word's weight in it."""
        weight, usual = self.weight(word), sum(self.totals) / max(len(self.totals), 1)
        for number, times in self.holders[word]:
            room = _K1 * (1 - _B + _B * self.totals[number] / usual)
            yield number, weight * times * (_K1 + 1) / (times + room)

    def has(self, number: int, word: str) -> bool:
        """Return True if the entry with this index contains the word."""
        return any(number == holder for holder, _ in self.holders.get(word, ()))


class Ranker:
    """Ranks entries by similarity to lines; lines with the same known words share a result."""

    def __init__(
        self,
        entries: tuple[Entry, ...],
        texts: Callable[[Entry], Iterable[str]] | None = None,
        index: WordIndex | None = None,
    ) -> None:
        """Index the entries; `texts` yields the searchable texts of an entry."""
        self._entries, self._index = entries, index or _index(entries, texts or _texts)
        self._scores: dict[tuple[str, ...], list[tuple[int, float]]] = {}

    def rank(
        self,
        text: str,
        limit: int = 3,
        threshold: float = THRESHOLD,
        *,
        least: int = _LEAST_WORDS,
    ) -> tuple[SimilarEntry, ...]:
        """Return the most similar entries, best first; each shares at least `least` words."""
        index = self._index
        asked = tuple(dict.fromkeys(words(text)))
        best = sum(index.weight(word) for word in asked) * (_K1 + 1)
        if len(asked) < least or not best:
            return ()
        found = []
        for number, points in self._best(tuple(w for w in asked if w in index.holders))[:limit]:
            shared = [word for word in asked if index.has(number, word)]
            score = points / best
            if score >= threshold and len(shared) >= least:
                shared.sort(key=lambda word: (-index.weight(word), word))
                found.append(SimilarEntry(self._entries[number], round(score, 3), tuple(shared)))
        return tuple(found)

    def best_line(self, text: str, found: SimilarEntry) -> str:
        """Return the entry's typical line or template that contains the rarest words of `text`."""
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
                for number, value in self._index.values(word):
                    scores[number] = scores.get(number, 0.0) + value
            order = sorted(scores, key=lambda number: (-scores[number], self._entries[number].id))
            ranked = [(number, scores[number]) for number in order]
            if len(self._scores) < _REMEMBERED:
                self._scores[known] = ranked
        return ranked


@lru_cache(maxsize=4)
def ranker(entries: tuple[Entry, ...]) -> Ranker:
    """Return a ranker for these entries; it is cached."""
    return Ranker(entries)


@lru_cache(maxsize=1)
def base_ranker() -> Ranker:
    """Return a ranker for the built-in entries; its index is cached between runs."""
    from qnnmem.doctor import cache
    from qnnmem.doctor.kb.knowledge import BUILT_IN, built_in, facts, read_folder

    name = cache.name_of("similar", facts(), ".json")
    kept = cache.load(name)
    index = None
    if kept is not None:
        with suppress(msgspec.DecodeError):  # another format: build the index again
            index = msgspec.json.decode(kept, type=ready(WordIndex))
    if index is None:
        _, every = read_folder(BUILT_IN)
        index = _index([one for one in every if not any(line.reads for line in one.lines)], _texts)
        cache.keep(name, msgspec.json.encode(index))
    entries = {entry.id: entry for entry in built_in().entries}
    return Ranker(tuple(entries[name] for name in index.ids), index=index)


def _index(entries: Sequence[Entry], parts: Callable[[Entry], Iterable[str]]) -> WordIndex:
    texts = [Counter(words(" ".join(parts(entry)))) for entry in entries]
    holders: dict[str, list[tuple[int, int]]] = {}
    for number, text in enumerate(texts):
        for word, times in text.items():
            holders.setdefault(word, []).append((number, times))
    return WordIndex(
        tuple(entry.id for entry in entries),
        tuple(map(Counter.total, texts)),
        {word: tuple(found) for word, found in holders.items()},
    )


def _texts(entry: Entry) -> Iterable[str]:
    """Yield the texts with which unknown lines are compared: title, log lines and root cause."""
    yield entry.title
    yield from (line.text for line in entry.lines)
    yield entry.body.partition("## Solutions")[0]


def _everything(entry: Entry) -> Iterable[str]:
    """Yield the texts that a search covers; the title is included twice, so it counts more."""
    yield from (entry.id, entry.cause, entry.title, entry.body)
    yield from (line.text for line in entry.lines)
    yield from (*entry.remedies, *_texts(entry))


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, str]:
    import tomllib

    text = Path(__file__).with_name("similar.toml").read_text("utf-8")
    aliases: Mapping[str, str] = tomllib.loads(text)["alias"]
    return aliases
