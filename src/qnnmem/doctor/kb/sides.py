"""Memory or not, by the words of a line that no entry knows.

Naive Bayes over words and pairs of words: each has a weight, the logarithm of how much more often
it stands in lines about memory than in others. They were learned once, from the entries and from
the logs that were looked at, and stand in `sides.csv`.

    score of a line:  sum of the weights of its words, over the root of how many are known
    told:             above a threshold, by at least so many words that say something
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

import msgspec

from qnnmem.doctor.kb.similar import words
from qnnmem.doctor.logs.glossary import in_english

# Of lines whose source was left out in learning, 87 of 100 that are told to be about memory are,
# and 98 of 100 that are told not to be; memory has more words that are used of other things too.
THRESHOLDS = {True: 2.0, False: 1.0}
_LEAST = 2  # words that say something, pairs not counted
_SAYS = 0.5  # weight of such a word
_SHOWN = 5
_REMEMBERED = 1024
_NAMED = 600  # characters of a line that are looked at

# What a line is about if it is about running networks on these chips.
_ABOUT = re.compile(
    r"qnn|htp|hexagon|npu|dsp|snpe|snapdragon|qualcomm|qairt|genie|rpcmem|fastrpc|vtcm|lpai|model|graph"
    r"|tensor|infer|llm|delegate|onnx|tflite|litert|executorch|skel|ggml|kv.?cache|token|remoteproc|q6v5"
    r"|smmu|dma.?heap|weight|quanti|\bop\b|operator|layer|\bnode|context|backend",
    re.IGNORECASE,
)
AMOUNT = "#amount"  # stands for any size
_LEAST_LETTERS = 3
# Who says something, not what.
_SPEAKERS = frozenset(
    (
        *("execu", "torch", "executorch", "onnx", "onnxruntime", "ort", "genie", "ggml", "hex"),
        *("lite", "litert", "tflite", "snpe", "cpp", "src", "vendor", "qcom", "proprietary"),
        *("line", "com", "app", "apps", "user", "main", "hwi", "info", "warning", "dsprpc"),
    )
)
_AMOUNT = re.compile(r"[0-9][0-9.,]* ?(?:[kmgt]i?b|bytes)\b|\b[0-9]{6,}\b", re.IGNORECASE)


class LikelySide(msgspec.Struct, frozen=True):
    """What words say of a line: memory or not, and which of them say so most."""

    is_memory: bool
    score: float
    told_by: tuple[str, ...]


def features(text: str) -> frozenset[str]:
    """The words of a line, its pairs of words, and whether there is a size in it."""
    plain = [
        word
        for word in words(in_english(text[:_NAMED]))
        if len(word) >= _LEAST_LETTERS and not word.startswith("0x") and word not in _SPEAKERS
    ]
    pairs = (f"{one} {other}" for one, other in pairwise(plain))
    amount = (AMOUNT,) if _AMOUNT.search(text) else ()
    return frozenset((*plain, *pairs, *amount))


def side_of(text: str, weights: Mapping[str, float], scale: float = 1.0) -> LikelySide | None:
    """Memory or not; None where too little is known of the words, or they disagree."""
    found = (word for word in features(text) if word in weights)
    known = sorted(found, key=lambda word: (-abs(weights[word]), word))
    saying = [word for word in known if abs(weights[word]) >= _SAYS]
    if sum(" " not in word for word in saying) < _LEAST:
        return None
    score = sum(weights[word] for word in known) / math.sqrt(len(known))
    if abs(score) < THRESHOLDS[score > 0] * scale:
        return None
    told = [word for word in saying if (weights[word] > 0) is (score > 0)]
    return LikelySide(score > 0, round(score, 2), tuple(told[:_SHOWN]))


@lru_cache(maxsize=_REMEMBERED)
def likely_side(text: str) -> LikelySide | None:
    """What the words of a line say, by the weights that were learned."""
    return side_of(text, _weights())


def first_side(texts: Iterable[str]) -> LikelySide | None:
    """The first of several lines that says something speaks for all; none on foreign matters."""
    lines = tuple(texts)
    if not any(map(_ABOUT.search, lines)):
        return None
    return next((one for text in lines if (one := likely_side(text))), None)


@lru_cache(maxsize=1)
def _weights() -> Mapping[str, float]:
    from importlib.resources import files

    text = files("qnnmem.doctor.kb").joinpath("sides.csv").read_text("utf-8")
    rows = (line.rpartition(",") for line in text.splitlines()[1:])
    return {word: float(weight) for word, _, weight in rows}
