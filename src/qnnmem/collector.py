"""Garbage collector settings for work that creates millions of values without cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_AS_EVER = gc.get_threshold()
_SELDOM = (50_000, 20, 100)


def collect_seldom() -> None:
    """Make garbage collections rare during imports: imported modules stay in use anyway."""
    gc.set_threshold(*_SELDOM)


def collect_as_ever() -> None:
    """Restore Python's default collection thresholds.

    With many short-lived values, frequent collections keep young values in the CPU cache. Modules
    imported while a command started stay in use, so they are exempt: visiting all of them takes
    5 ms. In any other process, nothing is exempt, because existing garbage must be collected.
    """
    if gc.get_threshold() == _SELDOM:
        gc.freeze()
    gc.set_threshold(*_AS_EVER)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection in a block or a decorated function.

    Without the pause, garbage collection takes up to a third of the time in which many values are
    created.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
