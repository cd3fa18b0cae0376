"""Gates: short texts that let most lines of a log pass unread.

Engines that search for many texts at once slow down when those texts end like ordinary words, as
messages do. So lines are first searched for a few hundred gates: words of failure, of which one
stands in two templates of three, and for the rest the part of the text that ends least like
ordinary logs. Only lines with a gate are searched for the anchors of the templates.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qnnmem.doctor.kb.template import Template

# Rare in healthy logs; each saves many gates.
_WORDS = (
    *("fail", "could not", "cannot", "can't", "unsupp", "exceed", "kill", "crash", "invalid"),
    *("mismatch", "too ", "imed out", ") ["),
)
_LEAST = 10  # characters of a gate that is no such word
_KEY = 4
_SEARCH = 0.03  # a search through a text costs as much as hits in this share of its lines


def choose(templates: Sequence[Template]) -> list[str]:
    """For each template a text that every line it matches holds, in small letters."""
    ordinary = _ordinary()
    grams = Counter(ordinary[k : k + 3] for k in range(len(ordinary) - 2))
    return [_gate(template, ordinary, grams) for template in templates]


def _gate(template: Template, ordinary: str, grams: Counter[str]) -> str:
    for word in _WORDS:
        if any(word in run for run in template.runs):
            return word
    text = template.anchors[0]
    ends = range(min(_LEAST, len(text)), len(text) + 1)

    def cost(end: int) -> tuple[bool, int, int]:
        tail = text[max(end - 6, 0) : end]
        common = sum(grams[tail[k : k + 3]] for k in range(len(tail) - 2))
        return text[:end] in ordinary, common, -end

    return text[: min(ends, key=cost)]


def keys(
    templates: Sequence[Template], gates: Sequence[str], anchors: Sequence[str]
) -> dict[str, list[int]]:
    """Fewer texts for searching one by one, each with the anchors to look for where it stands."""
    number = {anchor: index for index, anchor in enumerate(anchors)}
    behind: dict[str, set[int]] = {}
    for template, gate in zip(templates, gates, strict=True):
        behind.setdefault(gate, set()).update(number[anchor] for anchor in template.anchors)
    found = {gate: behind.pop(gate) for gate in _WORDS if gate in behind}
    lines = _ordinary().split("\n")
    holders: dict[str, set[str]] = {}
    for gate in behind:
        for k in range(len(gate) - _KEY + 1):
            holders.setdefault(gate[k : k + _KEY], set()).add(gate)
    cost = {key: _SEARCH + sum(key in line for line in lines) / len(lines) for key in holders}
    while behind:
        best = min(holders, key=lambda key: (-len(holders[key] & behind.keys()) / cost[key], key))
        covered = holders[best] & behind.keys()
        found[best] = found.get(best, set()).union(*(behind.pop(gate) for gate in covered))
    return {key: sorted(numbers) for key, numbers in found.items()}


def _ordinary() -> str:
    """What logs of healthy runs look like."""
    from qnnmem.doctor.kb.stored import healthy

    return "\n".join(line for log in healthy() for line in log.lines).lower()
