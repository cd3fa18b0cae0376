"""The constants of a binary: graphs that hold the same bytes share them.

A model for several shapes is several graphs, and each has the same weights; they are stored once.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from qnnmem.lpai.compiled import CONSTANT_ALIGN, CompiledGraph, Constant
from qnnmem.units import Offset, round_up


class ConstantBlock:
    """Grows graph by graph."""

    def __init__(self) -> None:
        self._block = bytearray()
        self._places: dict[tuple[int, bytes], Offset] = {}

    def taken(self, graph: CompiledGraph, content: bytes) -> CompiledGraph:
        """The graph with its constants where they lie in the block.

        `content` are the bytes of its constants, from the first on.
        """
        start = min((constant.offset for constant in graph.constants), default=Offset(0))
        view = memoryview(content)
        found: dict[tuple[int, bytes], Offset] = {}
        placed = []
        for constant in graph.constants:
            begin = constant.offset - start
            own = view[begin : begin + constant.size]
            key = (len(own), hashlib.sha256(own).digest())
            offset = self._places.get(key)
            if offset is None:
                offset = found[key] = self._appended(own)
            placed.append(replace(constant, offset=offset))
        self._places |= found  # of other graphs: within one the layout is that of its program
        return replace(graph, constants=tuple[Constant, ...](placed))

    def _appended(self, content: memoryview) -> Offset:
        offset = Offset(round_up(len(self._block), CONSTANT_ALIGN))
        self._block.extend(bytes(offset - len(self._block)))
        self._block.extend(content)
        return offset

    def view(self) -> memoryview:
        """All of it, read-only."""
        return memoryview(bytes(self._block))
