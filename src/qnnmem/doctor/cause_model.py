"""A trained classifier for lines that match no template.

A linear model over hashed words, word pairs and character n-grams, trained by
`tools/train_doctor.py` and stored in `kb/cause_model.bin`:

    outcome  failing, healthy or foreign
    side     memory or other
    cause    one of the closed set of causes
    stage    the stage at which the run fails
    decides  whether the lines show the cause or leave it open
    tells    whether the lines show the side (memory or other) or leave it open

Weights are 8-bit integers, and a row holds one weight per class. The scores of all classes are
therefore computed together, with one multiplication and one addition of wide integers per n-gram.
numpy is not used, because importing it takes longer than reading a small log.
"""

from __future__ import annotations

import math
import sys
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec

from qnnmem.doctor.kb.entry import is_memory
from qnnmem.doctor.logs import header
from qnnmem.text import lazy_pattern

HEADS = ("outcome", "side", "cause", "stage", "decides", "tells")
SCHEMA = "qnnmem.cause-model/2"
FILE = "cause_model.bin"
MAX_TEXT = 4000  # characters of a text that are looked at
BUCKETS = 1 << 20  # of the hash; few of them have a row
IDF_STEP = 16  # the weight of an n-gram is stored in sixteenths
_LANE = 8  # bytes for the sum of one class
_BIAS = 128  # added to weights, so that bytes hold them
_SHARES = 1 << 10  # steps in which the share of an n-gram in a text is counted
_SHORTEST, _LONGEST = 2, 5  # of character n-grams
_LONG_WORD = 40  # characters of a word that are looked at
_REMEMBERED = 1024
_KNOWN_BUCKETS = 1 << 14
_SHOWN = 4  # words that are given as the reason

_STAMPS = lazy_pattern(
    r"\b\d{1,4}[-/]\d{1,2}(?:[-/]\d{1,4})?[ t]\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?z?"
    r"|\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?|\[\s*\d+\.\d{6}\]"
)
_FOLDERS = lazy_pattern(r"\b[a-z]{2,8}://\S+|(?:[a-z]:)?(?:[\w.+@~-]*[/\\]){2,}|(?<=[\s\"'(=])/")
_LONG_NUMBER = lazy_pattern(r"(?<![\w.])\d{6,}(?:\.\d+)?|0x[0-9a-f]{9,}")
_WORD = lazy_pattern(r"0x[0-9a-f]+|[a-z]+|\d+|[^\W\da-z_]+|[<>=!%]+")


class Guess(msgspec.Struct, frozen=True):
    """The model's probabilities for a text, highest first, and the words that support the cause."""

    outcomes: dict[str, float]
    sides: dict[str, float]
    causes: dict[str, float]
    stages: dict[str, float]
    decides: dict[str, float]  # whether such lines name a cause, or leave it open
    tells: dict[str, float]  # whether they tell a side, or leave it open
    words: tuple[str, ...]  # that weighed most for the first cause

    @property
    def ranked(self) -> dict[str, float]:
        """Probabilities of the causes, highest first; those of memory causes add up to `memory`."""
        share = self.memory_causes
        short, other = self.memory / max(share, 1e-9), (1 - self.memory) / max(1 - share, 1e-9)
        odds = {one: odd * (short if is_memory(one) else other) for one, odd in self.causes.items()}
        return dict(sorted(odds.items(), key=lambda pair: (-pair[1], pair[0])))

    @property
    def cause(self) -> str:
        """The likeliest cause."""
        return next(iter(self.causes))

    @property
    def odds(self) -> float:
        """Probability of the likeliest cause, lowered if the text might leave the cause open."""
        return self.causes[self.cause] * math.sqrt(self.decides["cause"]) * self._doubt

    @property
    def stage(self) -> str:
        """The likeliest stage."""
        return next(iter(self.stages))

    @property
    def stage_odds(self) -> float:
        """Probability of the likeliest stage."""
        return self.stages[self.stage]

    @property
    def side_odds(self) -> float:
        """Probability of the likelier side, lowered if the text might leave the side open."""
        tells = math.pow(self.tells["side"], 0.25)
        return max(self.memory, 1 - self.memory) * tells * self._doubt

    @property
    def _doubt(self) -> float:
        """Probability that the text shows a failed run, as a factor of `odds` and `side_odds`."""
        return self.outcomes["failing"]

    @property
    def memory(self) -> float:
        """Probability that a failure is due to memory: the mean of the heads for side and cause."""
        return (self.sides["memory"] + self.memory_causes) / 2

    @property
    def memory_causes(self) -> float:
        """Sum of the cause head's probabilities of all memory causes."""
        return sum(odds for cause, odds in self.causes.items() if is_memory(cause))


def guess_of(answers: dict[str, dict[str, float]], words: tuple[str, ...]) -> Guess:
    """Return a guess that combines the answers of all heads."""
    return Guess(
        answers["outcome"],
        answers["side"],
        answers["cause"],
        answers["stage"],
        answers["decides"],
        answers["tells"],
        words,
    )


class Head(msgspec.Struct, frozen=True):
    """One output of the model: its classes, their biases, and the softmax temperature."""

    classes: tuple[str, ...]
    biases: tuple[float, ...]
    temperature: float


class ModelHeader(msgspec.Struct, frozen=True):
    """Header of the model file, stored before the weights."""

    schema: str
    rows: int
    scale: float  # of the weights
    heads: dict[str, Head]
    thresholds: dict[str, float]  # chosen by leaving repositories out


def normal(text: str) -> str:
    """Return the messages of a log in lower case, without times, folders and long numbers."""
    low = _STAMPS.sub(" ", "\n".join(map(_message, text[:MAX_TEXT].split("\n"))).lower())
    return _LONG_NUMBER.sub(" ", _FOLDERS.sub(" ", low))


def _message(line: str) -> str:
    """Return a line without its time, process, tag and level, which depend on the logger."""
    raw = line.encode("utf-8", "replace")
    return raw[header.parse(raw).body :].decode("utf-8", "replace")


def words_of(text: str) -> list[str]:
    """Return the words of a normalised text."""
    return [word[:_LONG_WORD] for word in _WORD.findall(text)]


def grams(word: str) -> list[str]:
    """Return the character n-grams of a word, word boundaries included."""
    edged = f" {word} "
    size = len(edged)
    return [
        edged[at : at + length]
        for length in range(_SHORTEST, min(_LONGEST, size) + 1)
        for at in range(size - length + 1)
    ]


@lru_cache(maxsize=_REMEMBERED * 4)
def buckets(word: str) -> tuple[int, ...]:
    """Return the hash buckets of a word and of its n-grams."""
    every = (*grams(word), f"={word}")
    return tuple([zlib.crc32(one.encode()) % BUCKETS for one in every])


def features(text: str) -> Counter[int]:
    """Return how often each hash bucket occurs in a text."""
    return _features(words_of(normal(text)))


def _features(words: Sequence[str]) -> Counter[int]:
    found: Counter[int] = Counter()
    for word, times in Counter(words).items():
        for bucket in buckets(word):
            found[bucket] += times
    for pair in pairwise(words):
        found[zlib.crc32("=".join(pair).encode()) % BUCKETS] += 1
    return found


class CauseModel:
    """The stored model, ready to classify texts."""

    def __init__(self, data: bytes) -> None:
        head, _, body = data.partition(b"\n")
        self.header = msgspec.json.decode(head, type=ModelHeader)
        rows = self.header.rows
        width = sum(len(one.classes) for one in self.header.heads.values())
        if self.header.schema != SCHEMA or len(body) != rows * (4 + width):
            raise ValueError("the data is not a cause model of this version")
        self._width = width
        self._places = _integers(body[: 3 * rows])  # in rising order
        self._idf = body[3 * rows : 4 * rows]
        self._weights = body[4 * rows :]
        self._rows: dict[int, int | None] = {}  # of the buckets that were asked for
        self._lanes: dict[int, int] = {}
        self._guesses: dict[tuple[str, ...], Guess] = {}

    @property
    def thresholds(self) -> dict[str, float]:
        """Minimum probabilities at which answers are used, by name of the answer."""
        return self.header.thresholds

    def guess(self, text: str) -> Guess:
        """Return the probabilities of every head for a text; texts with equal words share them."""
        words = tuple(words_of(normal(text)))
        made = self._guesses.get(words)
        if made is None:
            made = self._guess(words)
            if len(self._guesses) < _REMEMBERED:
                self._guesses[words] = made
        return made

    def _guess(self, words: Sequence[str]) -> Guess:
        shares = self._shares(_features(words))
        scores = self._scores(shares)
        answers: dict[str, dict[str, float]] = {}
        at = 0
        for name, head in self.header.heads.items():
            part = scores[at : at + len(head.classes)]
            answers[name] = _softmax(head, part)
            at += len(head.classes)
        first = next(iter(answers["cause"]))
        reason = self._reason(words, first, shares)
        return guess_of(answers, reason)

    def _row(self, bucket: int) -> int | None:
        """Return the row of weights for a bucket; None for most buckets, which have no row."""
        try:
            return self._rows[bucket]
        except KeyError:
            at = bisect_left(self._places, bucket)
            known = at < len(self._places) and self._places[at] == bucket
            row = at if known else None
            if len(self._rows) < _KNOWN_BUCKETS:
                self._rows[bucket] = row
            return row

    def _shares(self, found: Counter[int]) -> dict[int, int]:
        """Return the normalised TF-IDF weight of each row, in steps of `1 / _SHARES`."""
        weighed: dict[int, float] = {}
        row_of, idf = self._row, self._idf
        for bucket, times in found.items():
            if (row := row_of(bucket)) is not None:
                often = 1.0 if times == 1 else 1.0 + math.log(times)
                weighed[row] = often * idf[row] / IDF_STEP
        norm = math.sqrt(sum(value * value for value in weighed.values())) or 1.0
        return {row: int(value * _SHARES / norm + 0.5) for row, value in weighed.items()}

    def _scores(self, shares: dict[int, int]) -> list[float]:
        """Return the score of each class; one wide integer sums all classes in separate lanes."""
        width, lanes_of = self._width, self._lanes
        total = whole = 0
        for row, share in shares.items():
            lanes = lanes_of.get(row)
            total += share * (self._made_lanes(row) if lanes is None else lanes)
            whole += share
        sums = total.to_bytes(_LANE * width, "little")
        scale = self.header.scale / _SHARES
        return [
            (int.from_bytes(sums[at : at + _LANE], "little") - _BIAS * whole) * scale
            for at in range(0, _LANE * width, _LANE)
        ]

    def _made_lanes(self, row: int) -> int:
        """Pack the weights of a row into one wide integer, cache it and return it."""
        width = self._width
        spread = bytearray(_LANE * width)
        spread[::_LANE] = self._weights[row * width : (row + 1) * width]
        lanes = int.from_bytes(spread, "little")
        if len(self._lanes) < _REMEMBERED * 4:
            self._lanes[row] = lanes
        return lanes

    def _reason(self, words: Sequence[str], cause: str, shares: dict[int, int]) -> tuple[str, ...]:
        """Return the words that favour this cause most, compared with the average cause."""
        lane, first, count = 0, 0, 0
        for name, head in self.header.heads.items():
            if name == "cause":
                first, count = lane, len(head.classes)
                break
            lane += len(head.classes)
        column = first + self.header.heads["cause"].classes.index(cause)
        weights, width, row_of = self._weights, self._width, self._row
        spoken: dict[str, float] = {}
        for word in dict.fromkeys(words):
            if len(word) < _SHORTEST:
                continue
            for bucket in buckets(word):
                if (row := row_of(bucket)) is None or row not in shares:
                    continue
                base = row * width
                mean = sum(weights[base + first : base + first + count]) / count
                spoken[word] = spoken.get(word, 0.0) + shares[row] * (weights[base + column] - mean)
        order = sorted((word for word in spoken if spoken[word] > 0), key=lambda w: (-spoken[w], w))
        return tuple(order[:_SHOWN])


def _integers(data: bytes) -> memoryview:
    """Decode little-endian unsigned integers of three bytes each."""
    wide = bytearray(len(data) // 3 * 4)
    for place in range(3):
        wide[place if sys.byteorder == "little" else 3 - place :: 4] = data[place::3]
    return memoryview(wide).cast("I")


def _softmax(head: Head, scores: list[float]) -> dict[str, float]:
    sums = [
        (score + bias) / head.temperature for score, bias in zip(scores, head.biases, strict=True)
    ]
    most = max(sums)
    odds = [math.exp(one - most) for one in sums]
    whole = sum(odds)
    pairs = sorted(zip(head.classes, odds, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return {name: odd / whole for name, odd in pairs}


@cache
def cause_model() -> CauseModel:
    """Return the built-in model, which is loaded on the first call."""
    return CauseModel(Path(__file__).parent.joinpath("kb", FILE).read_bytes())


def threshold(name: str) -> float:
    """Return the minimum probability at which this answer of the model is used."""
    return cause_model().thresholds[name]


@lru_cache(maxsize=_REMEMBERED)
def guess(text: str) -> Guess:
    """Return the model's probabilities for a text."""
    return cause_model().guess(text)
