"""How many random cases a seeded test tries: few at every run, more when asked for."""

from __future__ import annotations

import os


def seeds(few: int) -> range:
    """Return the seeds of a test; `QNNMEM_SEEDS` gives another number than `few`."""
    return range(int(os.environ.get("QNNMEM_SEEDS", few)))
