"""Cached engines and shapes of a knowledge base; making them takes longer than a small log."""

from __future__ import annotations

import threading

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.search import Engines
from qnnmem.doctor.logs.shapes import ShapesByEngine


class KeptEngines:
    """A knowledge base with its search engines and the line shapes seen so far."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.shapes = ShapesByEngine(knowledge)
        self._engines: dict[str | None, Engines] = {}

    def engines(self, asked: str | None) -> Engines:
        """Return the engines with this name, or the best available ones."""
        if asked not in self._engines:
            self._engines[asked] = Engines(self.knowledge, asked)
        return self._engines[asked]


class _Last(threading.local):
    """The last cache of each thread: an engine has scratch memory of its own while it scans."""

    kept: KeptEngines | None = None


_LAST = _Last()


def kept_engines(knowledge: Knowledge) -> KeptEngines:
    """Return this thread's cache for a knowledge base; only the last one is kept."""
    kept = _LAST.kept
    if kept is None or kept.knowledge is not knowledge:
        kept = _LAST.kept = KeptEngines(knowledge)
    return kept
