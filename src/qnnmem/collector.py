"""Python's collector of garbage cycles, held back where millions of values are made without any."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
