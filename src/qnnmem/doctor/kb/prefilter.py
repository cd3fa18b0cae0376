"""Prefilter: short texts whose absence rules out most lines of a log at low cost.

Engines that search for many texts in parallel slow down if the texts end like ordinary words, and
the texts of messages do. Therefore lines are first searched for a few hundred prefilter texts. Two
thirds of the templates contain a failure word, which is their prefilter text. For the other
templates, it is the beginning of an anchor, cut where the last characters are rarest in ordinary
logs. Only lines with a prefilter text are searched for the templates' anchors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heapreplace

from qnnmem.doctor.kb.stored import healthy
from qnnmem.doctor.kb.template import Template

# Words that are rare in healthy logs; each is the prefilter text of many templates.
_WORDS = (
    *("fail", "could not", "cannot", "can't", "unsupp", "exceed", "kill", "crash", "invalid"),
    *("mismatch", "too ", "imed out", ") ["),
)
_LEAST = 10  # minimum characters of a prefilter text other than these words
_KEY = 4
_SEARCH = 0.03  # cost of one search, as a share of its lines with a hit


def choose(templates: Sequence[Template]) -> list[str]:
    """Return, for each template, a lower-case text that every matching line contains."""
    ordinary = _ordinary()
    grams = Counter(ordinary[k : k + 3] for k in range(len(ordinary) - 2))
    return [_prefilter(template, ordinary, grams) for template in templates]


def _prefilter(template: Template, ordinary: str, grams: Counter[str]) -> str:
    for word in _WORDS:
        if any(word in run for run in template.runs):
            return word
    text = template.anchors[0]
    ends = range(min(_LEAST, len(text)), len(text) + 1)
    # A prefix that is missing from the healthy logs stays missing if it is extended.
    rare = next((end for end in ends if text[:end] not in ordinary), len(text) + 1)

    def cost(end: int) -> tuple[bool, int, int]:
        tail = text[max(end - 6, 0) : end]
        common = sum(grams[tail[k : k + 3]] for k in range(len(tail) - 2))
        return end < rare, common, -end

    return text[: min(ends, key=cost)]


def keys(
    templates: Sequence[Template], prefilters: Sequence[str], anchors: Sequence[str]
) -> dict[str, list[int]]:
    """Return short search texts, each with the anchors to search for in lines that contain it."""
    number = {anchor: index for index, anchor in enumerate(anchors)}
    behind: dict[str, set[int]] = {}
    for template, text in zip(templates, prefilters, strict=True):
        behind.setdefault(text, set()).update(number[anchor] for anchor in template.anchors)
    found = {word: behind.pop(word) for word in _WORDS if word in behind}
    lines = _ordinary().split("\n")
    holders: dict[str, set[str]] = {}
    for text in behind:
        for k in range(len(text) - _KEY + 1):
            holders.setdefault(text[k : k + _KEY], set()).add(text)
    common = Counter(
        gram for line in lines for gram in {line[k : k + _KEY] for k in range(len(line) - _KEY + 1)}
    )

    def gain(key: str) -> tuple[float, str]:
        return -len(holders[key]) / (_SEARCH + common[key] / len(lines)), key

    # The gain of a key only shrinks, so the top of the heap needs no comparison with the rest.
    ranked = [gain(key) for key in holders]
    heapify(ranked)
    while behind:
        was, best = ranked[0]
        if gain(best)[0] != was:
            heapreplace(ranked, gain(best))
            continue
        covered = set(holders[best])
        for text in covered:
            for k in range(len(text) - _KEY + 1):
                holders[text[k : k + _KEY]].discard(text)
        found[best] = found.get(best, set()).union(*(behind.pop(text) for text in covered))
    return {key: sorted(numbers) for key, numbers in found.items()}


def _ordinary() -> str:
    """Return the stored logs of healthy runs, in lower case."""
    return "\n".join(line for log in healthy() for line in log.lines).lower()
