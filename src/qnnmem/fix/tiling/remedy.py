"""Remedy that computes regions in bands: search, rewrite, plan, compare.

Covers of a model by regions are kept, so that a search that was killed goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from time import monotonic
from typing import Any

from qnnmem.errors import ChildFailed, UsageError
from qnnmem.fix.graph.plan_settings import flag, reordered, unplanned
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.fix.tiling.bands import BandedRegion, Bander, TileRegion
from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.fix.tiling.rewrite import rewrite
from qnnmem.fix.tiling.search import KeptCover, RegionSearch, TileCover
from qnnmem.planner.pools import PoolOptions
from qnnmem.text import counted, quote


@dataclass(frozen=True, slots=True)
class RememberedCovers:
    """The covers that a bench remembers for a change under some options."""

    bench: FixBench
    base: Change
    options: PoolOptions

    def find(self, limit: int, banned: Collection[TileRegion]) -> KeptCover | None:
        """What was found for a limit; a file that holds something else counts as missing."""
        kept = self.bench.remembered(self._question(limit, banned))
        if kept is None or set(kept) != {"regions"}:
            return None
        if kept["regions"] is None:
            return KeptCover(None)
        if not isinstance(kept["regions"], list):
            return None
        regions = [_region(one) for one in kept["regions"]]
        known = tuple(one for one in regions if one is not None)
        return KeptCover(known) if len(known) == len(regions) else None

    def keep(
        self, limit: int, banned: Collection[TileRegion], found: Sequence[BandedRegion] | None
    ) -> None:
        """Keep what was found, or that nothing was."""
        regions = None if found is None else [astuple(one.region) for one in found]
        self.bench.remember(self._question(limit, banned), {"regions": regions})

    def _question(self, limit: int, banned: Collection[TileRegion]) -> dict[str, Any]:
        return {
            "cover": limit,
            "steps": [dict(step) for step in self.base.steps],
            "options": {name: str(value) for name, value in asdict(self.options).items()},
            "banned": sorted(map(astuple, banned)),
        }


def _region(value: object) -> TileRegion | None:
    if isinstance(value, list) and [type(one) for one in value] == [int] * 4:
        return TileRegion(*value)
    return None


_ROUNDS = 6  # of searches after regions whose results differ, or plans with gaps
_TIGHTER = 0.98  # of the limit, where a plan cannot be as small as what is alive
_AXES = {"rows": -2, "columns": -1}


@dataclass(frozen=True, slots=True)
class TilingRemedy:
    """Regions of convolutions, pooling and element-wise ops in bands of rows or columns."""

    name: str = "tiling"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """With the options as they are, then with ops in place."""
        if base.need.over and "scratch" not in base.need.over:
            return  # bands change nothing else
        start = unplanned(base.change)
        options = start.pool_options
        choices = list(dict.fromkeys((options, replace(options, inplace=True))))
        graph = TiledGraph.of(start.model)
        for left, own in zip(range(len(choices), 0, -1), choices, strict=True):
            kept = RememberedCovers(bench, start, own)
            seconds = bench.case.seconds_left / left
            search = RegionSearch(graph, own, seconds=seconds, kept=kept)
            yield from self._with(bench, start, search, is_last=left == 1)

    def _with(
        self, bench: FixBench, base: Change, search: RegionSearch, *, is_last: bool
    ) -> Iterator[JudgedChange]:
        """Changes under one set of options; those that do not hold are tried otherwise."""
        limit = bench.case.limit
        for _ in range(_ROUNDS):
            begin = monotonic()
            cover = _cover(search, limit, is_last=is_last)
            if cover is None or not cover.regions:
                return
            made = self._made(bench, base, search.costs.options, cover.regions, search.graph)
            judged = bench.judged(made)
            yield replace(judged, seconds=monotonic() - begin)
            if not judged.holds:
                search.banned.update(_differing(bench, base, search, cover))
            elif limit is not None and cover.peak <= limit < (judged.need.size or 0):
                limit = int(limit * _TIGHTER)
            else:
                return

    def _made(
        self,
        bench: FixBench,
        base: Change,
        options: PoolOptions,
        regions: Sequence[BandedRegion],
        graph: TiledGraph,
    ) -> Change:
        """The change in its own order, or in another where that needs less and is wanted."""
        plain = self._change(base, graph, regions, options)
        need = bench.judge(plain)
        limit = bench.case.limit
        is_enough = limit is not None and (need.size or 0) <= limit
        if is_enough or "order" in bench.case.keep:
            return plain
        other = reordered(bench.case, plain.model, options)
        if other is None:
            return plain
        moved = _in_other_order(plain, other)
        return moved if bench.judge(moved).rank < need.rank else plain

    def _change(
        self,
        base: Change,
        graph: TiledGraph,
        regions: Sequence[BandedRegion],
        options: PoolOptions,
    ) -> Change:
        extra = sum(one.extra_macs for one in regions)
        step: dict[str, Any] = {
            "nodes": len(graph.nodes),
            "regions": [_as_json(graph, one.region) for one in regions],
            "inplace": options.inplace,
            "reorder": False,
        }
        return base.then(
            self.name,
            _words(regions),
            step,
            model=rewrite(graph, regions),
            options=options,
            macs=base.macs or Bander(graph).macs(),
            extra_macs=base.extra_macs + extra,
        )

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """The same regions in as many bands."""
        graph = TiledGraph.of(base.model)
        options = replace(base.pool_options, inplace=flag(step["inplace"]))
        made = self._change(base, graph, _banded(graph, step), options)
        if not flag(step["reorder"]):
            return made
        other = reordered(case, made.model, options)
        return made if other is None else _in_other_order(made, other)


def _in_other_order(change: Change, model: Any) -> Change:
    last = {**change.steps[-1], "reorder": True}
    return replace(change, model=model, steps=(*change.steps[:-1], last))


def _cover(search: RegionSearch, limit: int | None, *, is_last: bool) -> TileCover | None:
    """A cover within the limit; where there is none, the best, if nothing else will be tried."""
    if limit is None:
        return search.fewest()
    found = search.cheapest(limit)
    return search.fewest() if found is None and is_last else found


def _differing(
    bench: FixBench, base: Change, search: RegionSearch, cover: TileCover
) -> set[TileRegion]:
    """Regions that alone give other results; all of them, where none does alone."""
    found = set()
    for one in cover.regions:
        try:
            alone = bench.prove(replace(base, model=rewrite(search.graph, [one])))
        except ChildFailed:
            found.add(one.region)
            continue
        if not alone.identical:
            found.add(one.region)
    return found or {one.region for one in cover.regions}


def _words(regions: Sequence[BandedRegion]) -> str:
    """What is changed, in a few words."""
    bands = sorted({one.region.bands for one in regions})
    if len(regions) > 1:
        spread = f"{bands[0]}" if len(bands) == 1 else f"{bands[0]} to {bands[-1]}"
        return f"{len(regions)} regions in {spread} bands"
    region = regions[0].region
    nodes = counted(region.end - region.first, "node")
    return f"{nodes} in {region.bands} bands of {_axis_name(region)}"


def _axis_name(region: TileRegion) -> str:
    return next(word for word, axis in _AXES.items() if axis == region.axis)


def _as_json(graph: TiledGraph, region: TileRegion) -> dict[str, Any]:
    """A region by positions, and by the tensors that its first and last node make."""
    return {
        "first": region.first,
        "end": region.end,
        "first_tensor": graph.nodes[region.first].output[0],
        "last_tensor": graph.nodes[region.end - 1].output[0],
        "bands": region.bands,
        "axis": _axis_name(region),
    }


def _banded(graph: TiledGraph, step: Step) -> Sequence[BandedRegion]:
    """The regions of a recipe; refused where the model is another one."""
    nodes = count(step["nodes"])
    if len(graph.nodes) != nodes:
        raise UsageError(
            f"the recipe is for a model of {nodes} nodes, this one has {len(graph.nodes)}"
        )
    bander = Bander(graph)
    found, done = [], 0
    for one in step["regions"]:
        region = TileRegion(
            count(one["first"]), count(one["end"]), count(one["bands"]), _AXES[one["axis"]]
        )
        if not done <= region.first < region.end <= nodes or region.bands < 2:
            raise UsageError("the recipe has regions that overlap or are not in the model")
        ends = (graph.nodes[region.first].output[0], graph.nodes[region.end - 1].output[0])
        said = (str(one["first_tensor"]), str(one["last_tensor"]))
        if ends != said:
            raise UsageError(
                f"the recipe is for another model: {quote(said[0])} is not what node "
                f"{region.first} makes, or {quote(said[1])} not what node {region.end - 1} makes"
            )
        banded = bander.bands(region)
        if isinstance(banded, str):
            raise UsageError(f"a region of the recipe cannot be computed in bands: {banded}")
        found.append(banded)
        done = region.end
    return found


def count(value: object) -> int:
    """A number of a recipe."""
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{quote(value)} is no count")
    return value
