"""When Python looks for garbage cycles, and among what."""

from __future__ import annotations

import gc

from qnnmem.collector import collect_as_ever


def test_what_was_imported_is_not_looked_through() -> None:
    """What there is when a command begins its work stays out of every later look."""
    frozen, thresholds = gc.get_freeze_count(), gc.get_threshold()
    try:
        collect_as_ever()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
