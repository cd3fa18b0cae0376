"""Engines and shapes of a knowledge base, made once: that takes longer than to read a small log."""

from __future__ import annotations

import threading

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.search import Engines
from qnnmem.doctor.logs.shapes import ShapesByEngine


class KeptEngines:
    """A knowledge base with the engines that it was searched with and the shapes of lines seen."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.shapes = ShapesByEngine(knowledge)
        self._engines: dict[str | None, Engines] = {}

    def engines(self, asked: str | None) -> Engines:
        """Those of this name, or the best ones at hand."""
        if asked not in self._engines:
            self._engines[asked] = Engines(self.knowledge, asked)
        return self._engines[asked]


class _Last(threading.local):
    """One for each thread: an engine has memory of its own while it scans."""

    kept: KeptEngines | None = None


_LAST = _Last()


def kept_engines(knowledge: Knowledge) -> KeptEngines:
    """What this thread has for a knowledge base; the last one is kept."""
    kept = _LAST.kept
    if kept is None or kept.knowledge is not knowledge:
        kept = _LAST.kept = KeptEngines(knowledge)
    return kept
