"""Choose regions of a model and numbers of bands that minimise the live bytes.

    cover for a limit T   disjoint regions that contain every step with more than T live bytes, and
                          need at most T in bands
    finding a cover       walk from the first node; at a step over T, try the regions around it, the
                          shortest first, with the fewest sufficient bands
    finding the best T    by bisection between a proven lower bound and the best peak found

Regions begin and end where few bytes are live. The same model and limits give the same answer,
unless the time limit ends the search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from time import monotonic
from typing import Any

from qnnmem.fix.remedy import Change, FixBench
from qnnmem.fix.tiling.bands import BandedRegion, Bander, TileRegion
from qnnmem.fix.tiling.cost import RegionCosts
from qnnmem.fix.tiling.needed_rows import rows_of
from qnnmem.fix.tiling.tiled_graph import TiledGraph
from qnnmem.htp.compile_cache import from_builtins
from qnnmem.planner.pools import PoolOptions

BANDS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
AXES = (-2, -1)
# candidate starts, and as many candidate ends, of regions around a step
_RECORDS, _VALLEYS = 12, 8
_FARTHEST = 160  # nodes between a region's end and the oversized step
_CLOSE = 0.005  # relative gain below which a better answer is not worth a search
_MOST_REGIONS = 200
_LOWER, _LOWER_LIMITS = 0.9, 3  # factor between limits below the requested limit, and their number
_PATIENCE = 2  # consecutive band counts without a gain


@dataclass(frozen=True, slots=True)
class TileCover:
    """Regions to compute in bands, and the peak that the model then has."""

    regions: tuple[BandedRegion, ...]
    peak: int

    @property
    def cost(self) -> tuple[int, int]:
        """Additional multiply-adds, and the number of nodes in bands."""
        nodes = sum(len(steps) for region in self.regions for steps in region.steps)
        return sum(region.extra_macs for region in self.regions), nodes


@dataclass(frozen=True, slots=True)
class KeptCover:
    """Regions of the cover that an earlier search found; None if the search found no cover."""

    regions: tuple[tuple[int, int, int, int], ...] | None


@dataclass(frozen=True, slots=True)
class RememberedCovers:
    """Cached covers of earlier runs for a change and some options."""

    bench: FixBench
    base: Change
    options: PoolOptions

    def find(self, limit: int, banned: Collection[TileRegion]) -> KeptCover | None:
        """Return the cached cover; None if no search was cached, or the cached file is invalid."""
        return from_builtins(KeptCover, self.bench.remembered(self._question(limit, banned)))

    def keep(
        self, limit: int, banned: Collection[TileRegion], cover: Sequence[BandedRegion] | None
    ) -> None:
        """Cache the cover that a search found; `cover` is None if the search found no cover."""
        regions = None if cover is None else [astuple(banded.region) for banded in cover]
        self.bench.remember(self._question(limit, banned), {"regions": regions})

    def _question(self, limit: int, banned: Collection[TileRegion]) -> dict[str, Any]:
        return {
            "cover": limit,
            "steps": [dict(step) for step in self.base.steps],
            "options": {name: str(value) for name, value in asdict(self.options).items()},
            "banned": sorted(map(astuple, banned)),
        }


class RegionSearch:
    """A search for covers of one model; it caches the cost of every region."""

    def __init__(
        self,
        graph: TiledGraph,
        options: PoolOptions,
        *,
        seconds: float = 60.0,
        kept: RememberedCovers | None = None,
    ) -> None:
        self.graph, self.bander = graph, Bander(graph)
        self.costs = RegionCosts(graph, options)
        self._ends_at = monotonic() + seconds
        self._kept = kept
        self._banded: dict[TileRegion, tuple[BandedRegion, int] | None] = {}
        self.banned: set[TileRegion] = set()  # regions whose results differed
        self.cut_by_clock = False

    @property
    def peak(self) -> int:
        """Peak of live bytes of the unchanged model."""
        return max(self.costs.at_step)

    def fewest(self) -> TileCover:
        """Return the cover with the lowest peak that the search finds."""
        best = TileCover((), self.peak)
        low, high = self._floor(), self.peak
        while high - low > max(_CLOSE * high, 1) and not self._is_late():
            target = (low + high) // 2
            cover = self.cover(target)
            if cover is None:
                low = target
            else:
                best, high = cover, min(cover.peak, target)
        return best

    def cheapest(self, limit: int) -> TileCover | None:
        """Return the cheapest cover for a limit; covers for slightly lower limits compete too.

        A cover uses the shortest sufficient regions, so a cover for a lower limit can cost less.
        """
        cover = best = self.cover(limit)
        for _ in range(_LOWER_LIMITS):
            if cover is None or best is None:
                break
            limit = int(min(limit, cover.peak) * _LOWER)
            cover = self.cover(limit)
            best = best if cover is None else min(best, cover, key=lambda cover: cover.cost)
        return best

    def cover(self, limit: int) -> TileCover | None:
        """Return regions with which the model meets a limit; None if no regions suffice."""
        known = None if self._kept is None else self._kept.find(limit, self.banned)
        if known is not None:
            rows = known.regions
            again = None if rows is None else self._again([TileRegion(*row) for row in rows])
            if rows is None or (again is not None and again.peak <= limit):
                return again
        regions = self._from(0, limit, set(), _MOST_REGIONS)
        if self._kept is not None and not self.cut_by_clock:
            self._kept.keep(limit, self.banned, regions)
        return None if regions is None else self._covered(regions)

    def _again(self, regions: Sequence[TileRegion]) -> TileCover | None:
        """Return the cover of cached regions; None if the regions do not match this model."""
        banded, done = [], 0
        for region in regions:
            inside = done <= region.first < region.end <= self._end
            is_valid = inside and region.bands in BANDS and region.axis in AXES
            known = self._in_bands(region) if is_valid and region not in self.banned else None
            if known is None:
                return None
            banded.append(known[0])
            done = region.end
        return self._covered(banded)

    def _covered(self, banded: Sequence[BandedRegion]) -> TileCover:
        inside = {index for item in banded for index in item.region.nodes}
        rest = [size for index, size in enumerate(self.costs.at_node) if index not in inside]
        known = (self._in_bands(item.region) for item in banded)
        sizes = [item[1] for item in known if item is not None]
        edges = (self.costs.at_step[len(self.costs.model.ops)], self.costs.before_node[0])
        return TileCover(tuple(banded), max([*rest, *sizes, *edges]))

    def obstacles(self, limit: int) -> Iterator[tuple[int, str]]:
        """Yield each node over the limit that cannot be computed in bands, with a reason."""
        for index, size in enumerate(self.costs.at_node):
            if size > limit:
                reasons = [self.bander.obstacle(index, axis) for axis in AXES]
                if all(reasons):
                    yield index, reasons[0]

    def _floor(self) -> int:
        """Return a lower bound on the peak: the live bytes at nodes that cannot run in bands."""
        return max((self.costs.at_node[index] for index, _ in self.obstacles(0)), default=0)

    def _from(self, start: int, limit: int, dead: set[int], most: int) -> list[BandedRegion] | None:
        """Return at most `most` regions that cover, from `start` on, all nodes over the limit.

        Return None if the search finds no such regions.
        """
        sizes = self.costs.at_node
        hot = next((index for index in range(start, len(sizes)) if sizes[index] > limit), None)
        if hot is None:
            return []
        if not most:
            return None
        for first, end in self._places(start, hot, limit):
            if self._is_late():
                return None
            banded = None if end in dead else self._fitting(first, end, limit)
            if banded is not None:
                rest = self._from(end, limit, dead, most - 1)
                if rest is not None:
                    return [banded, *rest]
                dead.add(end)
        return None

    def _places(self, start: int, hot: int, limit: int) -> list[tuple[int, int]]:
        """Return candidate regions around a node as pairs (first node, end), the shortest first."""
        before = self.costs.before_node
        regions: set[tuple[int, int]] = set()
        for axis in AXES:
            low, high = hot, hot
            while low >= max(start, hot - _FARTHEST) and not self.bander.obstacle(low, axis):
                low -= 1
            top = min(len(self.graph.nodes), hot + _FARTHEST)
            while high < top and not self.bander.obstacle(high, axis):
                high += 1
            firsts = self._low_positions(range(low + 1, hot + 1)[::-1], limit)
            ends = self._low_positions(range(hot + 1, high + 1), limit)
            regions |= {(first, end) for first in firsts for end in ends}
        likely = [
            (first, end)
            for first, end in regions
            if before[end] + self.costs.exit_bytes(first, end) <= limit
        ]
        return sorted(likely, key=lambda region: (region[1] - region[0], region))

    def _low_positions(self, places: Sequence[int], limit: int) -> list[int]:
        """Return positions with few live bytes: records, then local minima.

        A record has clearly fewer live bytes than every nearer position. A position farther away
        can have fewer live bytes but makes the region longer, so both kinds are tried.
        """
        before = self.costs.before_node
        fit = [index for index in places if before[index] <= limit]
        records, least = [], None
        for index in fit:
            if least is None or before[index] < least * (1 - _CLOSE):
                records.append(index)
                least = before[index]
        valleys = [
            index
            for index in fit
            if before[index] < before[max(index - 1, 0)]
            and before[index] <= before[min(index + 1, self._end)]
        ]
        return list(dict.fromkeys((*records[:_RECORDS], *valleys[:_VALLEYS])))

    @property
    def _end(self) -> int:
        return len(self.graph.nodes)

    def _fitting(self, first: int, end: int, limit: int) -> BandedRegion | None:
        """Return the region in the fewest bands that meet the limit; None if no number does."""
        for axis in self._axes(first, end):
            least, idle = None, 0
            for bands in BANDS:
                region = TileRegion(first, end, bands, axis)
                known = self._in_bands(region)
                if known is None or self._is_late():
                    break
                banded, cost = known
                if cost <= limit and region not in self.banned:
                    return banded
                idle = idle + 1 if least is not None and cost >= least * (1 - _CLOSE) else 0
                least = cost if least is None else min(least, cost)
                if idle >= _PATIENCE:
                    break
        return None

    def _axes(self, first: int, end: int) -> list[int]:
        """Return the usable axes, the axis with more rows first."""
        name = self.graph.nodes[end - 1].output[0]
        shape = self.graph.shape(name) or ()
        usable = [
            axis
            for axis in AXES
            if not any(self.bander.obstacle(index, axis) for index in range(first, end))
        ]
        return sorted(usable, key=lambda axis: -rows_of(shape, axis))

    def _in_bands(self, region: TileRegion) -> tuple[BandedRegion, int] | None:
        """Return a region in bands and its peak of live bytes; None if the region cannot be cut."""
        if region not in self._banded:
            banded = self.bander.bands(region)
            known = None if isinstance(banded, str) else (banded, self.costs.of(banded))
            self._banded[region] = known
        return self._banded[region]

    def _is_late(self) -> bool:
        late = monotonic() > self._ends_at
        self.cut_by_clock = self.cut_by_clock or late
        return late
