"""Garbage collection, paused while millions of values without cycles are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_AS_EVER = gc.get_threshold()
_SELDOM = (50_000, 20, 100)


def collect_seldom() -> None:
    """Collect rarely, for the start of a command: imported modules stay anyway."""
    gc.set_threshold(*_SELDOM)


def collect_as_ever() -> None:
    """Restore Python's default collection thresholds.

    Where many values come and go, young values are still in the processor's cache.
    """
    gc.set_threshold(*_AS_EVER)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause collection in a block or a decorated function.

    Repeated collections cost up to a third of the time it takes to make the values.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
