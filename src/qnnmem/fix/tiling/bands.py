"""Rows of every tensor for each band of a region, and the execution order of the bands.

    each output of the region   a band computes its share of the output's rows
    each node, backwards        the rows that its readers need determine the rows that it reads

Rows that two bands need are computed in both. The schedule lists slices, nodes and the final
concats. The live bytes and the nodes of the new model both follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from qnnmem.fix.tiling.needed_rows import (
    BandStep,
    NodeFacts,
    Rows,
    band_step,
    multiply_adds,
    rows_of,
    share,
    sums_alike,
)
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.loader.onnx.graph import bodies

# maximum number of bands of a region
MOST_BANDS = 64


@dataclass(frozen=True, slots=True)
class TileRegion:
    """Nodes at positions `first <= at < end`, computed in bands along an axis."""

    first: int
    end: int
    bands: int
    axis: int = -2

    @property
    def nodes(self) -> range:
        """Positions of the region's nodes."""
        return range(self.first, self.end)


@dataclass(frozen=True)
class BandedRegion:
    """Region with the steps of every band, in execution order."""

    region: TileRegion
    exits: tuple[str, ...]
    steps: tuple[tuple[tuple[int, BandStep], ...], ...]  # by band: position of the node, its step
    macs: int  # multiply-adds of the unchanged nodes
    band_macs: int  # multiply-adds in bands

    @property
    def extra_macs(self) -> int:
        """Additional multiply-adds of rows computed twice, less those of unneeded rows."""
        return self.band_macs - self.macs


class Bander:
    """Computes the bands of regions in one graph, and caches the steps of its nodes."""

    def __init__(self, graph: TiledGraph) -> None:
        self.graph = graph
        self._steps: dict[tuple[int, int, Rows], BandStep | str] = {}

    @cached_property
    def _row_macs(self) -> dict[tuple[int, int], int]:
        return {
            (axis, index): multiply_adds(NodeFacts(self.graph, node, axis))
            for axis in (-2, -1)
            for index, node in enumerate(self.graph.nodes)
        }

    def step(self, index: int, axis: int, need: Rows) -> BandStep | str:
        """Return a node's band step for output rows `need`, or why the node cannot run in bands."""
        key = (index, axis, need)
        if key not in self._steps:
            node = self.graph.nodes[index]
            if any(True for _ in bodies(node)):
                self._steps[key] = f"{node.op_type} contains other graphs"
            else:
                self._steps[key] = band_step(NodeFacts(self.graph, node, axis), need)
        return self._steps[key]

    def obstacle(self, index: int, axis: int) -> str:
        """Return the reason why a node cannot be computed in bands, or ""."""
        node = self.graph.nodes[index]
        size = self._size(index, axis)
        if size < 2:
            return f"{node.op_type} has no rows to split"
        whole = self.step(index, axis, Rows(0, size))
        return whole if isinstance(whole, str) else ""

    def macs(self) -> int:
        """Return the multiply-adds of the whole model."""
        positions = range(len(self.graph.nodes))
        return sum(self._row_macs[-2, index] * max(self._size(index, -2), 1) for index in positions)

    def bands(self, region: TileRegion) -> BandedRegion | str:
        """Return the region with the steps of every band, or why the region cannot be cut."""
        graph, axis = self.graph, region.axis
        results = {name for index in region.nodes for name in graph.nodes[index].output if name}
        exits = tuple(
            name
            for index in region.nodes
            for name in graph.nodes[index].output
            if name and graph.last_read.get(name, -1) >= region.end
        )
        sizes = {name: rows_of(graph.shape(name) or (), axis) for name in exits}
        if not exits or min(sizes.values()) < region.bands or region.bands > MOST_BANDS:
            return "there are fewer rows than bands"
        steps, macs = [], 0
        for band in range(region.bands):
            need = {name: share(sizes[name], band, region.bands) for name in exits}
            band_steps = self._band(region, results, need)
            if isinstance(band_steps, str):
                return band_steps
            steps.append(band_steps)
            macs += sum(
                self._row_macs[axis, index] * step.makes.height for index, step in band_steps
            )
        whole = sum(self._row_macs[axis, index] * self._size(index, axis) for index in region.nodes)
        return BandedRegion(region, exits, tuple(steps), whole, macs)

    def _size(self, index: int, axis: int) -> int:
        return rows_of(self.graph.shape(self.graph.nodes[index].output[0]) or (), axis)

    def _band(
        self, region: TileRegion, results: set[str], need: dict[str, Rows]
    ) -> tuple[tuple[int, BandStep], ...] | str:
        """Return the steps of a band, or why it cannot run; add the rows it reads to `need`."""
        steps: list[tuple[int, BandStep]] = []
        for index in reversed(region.nodes):
            rows = None
            for name in self.graph.nodes[index].output:
                rows = need[name].hull(rows) if name in need else rows
            if rows is None:
                continue
            step = self.step(index, region.axis, rows)
            if isinstance(step, str):
                return step
            if not sums_alike(NodeFacts(self.graph, self.graph.nodes[index], region.axis), step):
                return f"{self.graph.nodes[index].op_type} would round differently in bands"
            for slot, name in enumerate(self.graph.nodes[index].input):
                if slot in step.reads:
                    need[name] = step.reads[slot].hull(need.get(name))
                elif name in results and slot not in step.values:
                    return (
                        f"{self.graph.nodes[index].op_type} reads all rows of a tensor that is "
                        "computed in bands"
                    )
            steps.append((index, step))
        return tuple(reversed(steps))


WHOLE = -1  # band number of tensors that are not in bands


class Part(NamedTuple):
    """Rows of a tensor that a band computes."""

    tensor: str
    band: int
    rows: Rows
    is_cut: bool = False  # sliced out of a part with more rows


class NodeRun(NamedTuple):
    """Execution of a node for a band; inputs that are None are read whole."""

    at: int
    step: BandStep
    inputs: tuple[Part | None, ...]
    outputs: tuple[Part | None, ...]


class Cut(NamedTuple):
    """Slice of a part."""

    source: Part
    result: Part


class Join(NamedTuple):
    """Concatenation of the parts of a tensor."""

    parts: tuple[Part, ...]
    result: Part


Work = NodeRun | Cut | Join


class _Scheduler:
    """Lists the slices, nodes and concats of a region in execution order."""

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
        for index, step in steps:
            node = self.graph.nodes[index]
            inputs = tuple(
                self.part(name, step.reads[slot], band, made, cut) if slot in step.reads else None
                for slot, name in enumerate(node.input)
            )
            outputs = tuple(Part(name, band, step.makes) if name else None for name in node.output)
            self.work.append(NodeRun(index, step, inputs, outputs))
            made.update((part.tensor, part) for part in outputs if part is not None)
            for name in node.output:
                if name in self.exits:
                    own = share(self.whole(name).rows.end, band, self.banded.region.bands)
                    self.exits[name].append(self.part(name, own, band, made, cut))

    def part(self, name: str, rows: Rows, band: int, made: dict[str, Part], cut: set[Part]) -> Part:
        """Return these rows of a tensor, sliced from a larger part if needed."""
        source = made.get(name) or self.whole(name)
        if source.rows == rows:
            return source
        result = Part(name, band, rows, is_cut=True)
        if result not in cut:
            cut.add(result)
            self.work.append(Cut(source, result))
        return result


def schedule(graph: TiledGraph, banded: BandedRegion) -> list[Work]:
    """Return the work of a region in execution order."""
    return _Scheduler(graph, banded).all()
