"""Operators that only their author knows: a plan has what goes in and out of them, no more."""

from __future__ import annotations

from collections.abc import Iterable

from qnnmem.text import quote

_SHOWN = 5


def unknown_inside(names: Iterable[str]) -> str:
    """What a plan of a model with these operators has to say first; nothing if there are none."""
    found = list(dict.fromkeys(names))
    if not found:
        return ""
    shown = ", ".join(map(quote, found[:_SHOWN]))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    many, need = ("s", "need") if len(found) > 1 else ("", "needs")
    return (
        f"without what custom operator{many} {shown}{more} {need} inside: that is not known, "
        "weights included"
    )


def custom_note(names: Iterable[str]) -> str:
    """The same for whoever reads notes only."""
    found = list(dict.fromkeys(names))
    return f"custom operators: {len(found)} ({', '.join(map(quote, found[:_SHOWN]))})"
