"""Engines of the search, where they can be had."""

from __future__ import annotations

import pytest

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.search import SearchEngine, choose_engine


def engine_named(knowledge: Knowledge, name: str) -> SearchEngine:
    """One of `ENGINES`; the test is skipped where its package or a compiler is missing."""
    try:
        return choose_engine(knowledge, 0, name)
    except ImportError as exc:
        pytest.skip(str(exc))
