"""Python's collector of garbage cycles, held back where millions of values are made without any."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_AS_EVER = gc.get_threshold()
_SELDOM = (50_000, 20, 100)


def collect_seldom() -> None:
    """Look for cycles seldom, as at the start of a command: what is imported stays."""
    gc.set_threshold(*_SELDOM)


def collect_as_ever() -> None:
    """Look for cycles as Python does by itself.

    Where many values come and go, those looked through so soon are still in the processor's cache.
    """
    gc.set_threshold(*_AS_EVER)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Look for no cycles in the block, nor in what a function so decorated calls.

    Going through all values again and again costs up to a third of the time it takes to make them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
