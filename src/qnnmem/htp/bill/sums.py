"""Sums of parts of a bill; a sum with a part that is not known is not known either."""

from __future__ import annotations

from collections.abc import Iterable

from qnnmem.provenance import Origin, Sourced


def total(parts: Iterable[Sourced | None], source: str) -> Sourced | None:
    """The sum of parts."""
    result = 0
    for part in parts:
        if part is None:
            return None
        result += part.value
    return Sourced(result, Origin.COMPUTED, source)


def over_graphs(parts: Iterable[Sourced | None]) -> Sourced | None:
    """The sum of a part over graphs; a single graph keeps its own origin."""
    given = tuple(parts)
    return given[0] if len(given) == 1 else total(given, "sum over graphs")


def largest(parts: Iterable[Sourced | None]) -> Sourced | None:
    """The largest part over graphs, for what graphs use in turn or what has a limit for each."""
    given = tuple(parts)
    known = [part for part in given if part is not None]
    if not known or len(known) < len(given):
        return None
    return max(known, key=lambda part: part.value)
