"""Cache of engines and line shapes: creating them takes longer than reading a small log."""

from __future__ import annotations

import threading

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.search import Engines
from qnnmem.doctor.logs.shapes import ShapesByEngine


class KeptEngines:
    """Search engines for a knowledge base, and the line shapes seen so far."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.shapes = ShapesByEngine(knowledge)
        self._engines: dict[str | None, Engines] = {}

    def engines(self, asked: str | None) -> Engines:
        """Return the engines with the requested name; for None, the best available engines."""
        if asked not in self._engines:
            self._engines[asked] = Engines(self.knowledge, asked)
        return self._engines[asked]


class _Last(threading.local):
    """Last cache of each thread: engines have scratch memory, so threads cannot share them."""

    kept: KeptEngines | None = None


_LAST = _Last()


def kept_engines(knowledge: Knowledge) -> KeptEngines:
    """Return this thread's cache for a knowledge base; a thread keeps only its last cache."""
    kept = _LAST.kept
    if kept is None or kept.knowledge is not knowledge:
        kept = _LAST.kept = KeptEngines(knowledge)
    return kept
