"""The order in which a region runs in bands: parts cut out, nodes, and at the end whole tensors.

Both the bytes that are alive and the nodes of the new model follow from it.
"""

from __future__ import annotations

from typing import NamedTuple

from qnnmem.fix.tiling.band_steps import BandStep, Rows, rows_of, share
from qnnmem.fix.tiling.bands import BandedRegion
from qnnmem.fix.tiling.graph import TiledGraph

WHOLE = -1  # the band of what is not in bands


class Part(NamedTuple):
    """Some rows of a tensor, made in a band."""

    tensor: str
    band: int
    rows: Rows
    is_cut: bool = False  # out of a part of more rows


class NodeRun(NamedTuple):
    """A node of the model run for a band; inputs without rows are read as they are."""

    at: int
    step: BandStep
    inputs: tuple[Part | None, ...]
    outputs: tuple[Part | None, ...]


class Cut(NamedTuple):
    """Rows cut out of a part."""

    source: Part
    result: Part


class Join(NamedTuple):
    """A tensor put together from its parts."""

    parts: tuple[Part, ...]
    result: Part


Work = NodeRun | Cut | Join


class _Scheduler:
    def __init__(self, graph: TiledGraph, banded: BandedRegion) -> None:
        self.graph, self.banded = graph, banded
        self.work: list[Work] = []
        self.exits: dict[str, list[Part]] = {name: [] for name in banded.exits}

    def whole(self, name: str) -> Part:
        size = rows_of(self.graph.shape(name) or (), self.banded.region.axis)
        return Part(name, WHOLE, Rows(0, size))

    def all(self) -> list[Work]:
        for band, steps in enumerate(self.banded.steps):
            self.band(band, steps)
        for name, parts in self.exits.items():
            self.work.append(Join(tuple(parts), self.whole(name)))
        return self.work

    def band(self, band: int, steps: tuple[tuple[int, BandStep], ...]) -> None:
        made: dict[str, Part] = {}
        cut: set[Part] = set()
        for at, step in steps:
            node = self.graph.nodes[at]
            inputs = tuple(
                self.part(name, step.reads[slot], band, made, cut) if slot in step.reads else None
                for slot, name in enumerate(node.input)
            )
            outputs = tuple(Part(name, band, step.makes) if name else None for name in node.output)
            self.work.append(NodeRun(at, step, inputs, outputs))
            made.update((one.tensor, one) for one in outputs if one is not None)
            for name in node.output:
                if name in self.exits:
                    own = share(self.whole(name).rows.end, band, self.banded.region.bands)
                    self.exits[name].append(self.part(name, own, band, made, cut))

    def part(self, name: str, rows: Rows, band: int, made: dict[str, Part], cut: set[Part]) -> Part:
        """These rows of a tensor, cut out of what there is where that is more."""
        there = made.get(name) or self.whole(name)
        if there.rows == rows:
            return there
        result = Part(name, band, rows, is_cut=True)
        if result not in cut:
            cut.add(result)
            self.work.append(Cut(there, result))
        return result


def schedule(graph: TiledGraph, banded: BandedRegion) -> list[Work]:
    """What is done in a region, in order."""
    return _Scheduler(graph, banded).all()
