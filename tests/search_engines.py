"""The search engines that are installed."""

from __future__ import annotations

import pytest

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.search import SearchEngine, choose_engine


def engine_named(knowledge: Knowledge, name: str) -> SearchEngine:
    """Return one of `ENGINES`; skip the test if its package or a compiler is missing."""
    try:
        return choose_engine(knowledge, 0, name)
    except ImportError as exc:
        pytest.skip(str(exc))
