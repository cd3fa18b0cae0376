"""The remedy that computes regions in bands: search, rewrite, compare, plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed
from qnnmem.fix.order import reordered
from qnnmem.fix.prove import Prover
from qnnmem.fix.remedy import FixCase, JudgedChange, self_contained
from qnnmem.fix.search import RegionSearch, TileCover
from qnnmem.fix.tiling.bands import BandedRegion, TileRegion
from qnnmem.fix.tiling.graph import TiledGraph
from qnnmem.fix.tiling.rewrite import rewrite
from qnnmem.plan.pools import MemoryPlan, PoolOptions
from qnnmem.text import counted

if TYPE_CHECKING:
    from qnnmem.load.onnx.passes.shape import ShapedModel

_ROUNDS = 6  # of searches after regions whose results differ, or plans with gaps
_LONGEST_PROOF_S = 3600.0
_TIGHTER = 0.98  # of the limit, where a plan cannot be as small as what is alive


@dataclass(frozen=True, slots=True)
class TilingRemedy:
    """Regions of convolutions, pooling and element-wise ops in bands of rows or columns."""

    name: str = "tiling"

    def changes(self, case: FixCase, before: int) -> Iterator[JudgedChange]:
        """With the options as they are, then with ops in place."""
        graph = TiledGraph.of(case.model)
        choices = list(dict.fromkeys((case.options, replace(case.options, inplace=True))))
        seconds = _LONGEST_PROOF_S
        with Prover(
            self_contained(case.model), samples=case.samples, seed=case.seed, time_limit_s=seconds
        ) as prover:
            for left, options in zip(range(len(choices), 0, -1), choices, strict=True):
                time = case.seconds_left / left
                search = RegionSearch(graph, options, seconds=time)
                yield from self._with(case, before, search, prover, is_last=left == 1)

    def _with(
        self, case: FixCase, before: int, search: RegionSearch, prover: Prover, *, is_last: bool
    ) -> Iterator[JudgedChange]:
        """Changes under one set of options; those that do not hold are tried otherwise."""
        limit = case.limit
        for _ in range(_ROUNDS):
            begin = monotonic()
            cover = _cover(search, limit, is_last=is_last)
            if cover is None or not cover.regions:
                return
            change = self._judged(case, before, search, prover, cover, begin)
            yield change
            if not change.holds:
                search.banned.update(_differing(search, prover, cover))
            elif limit is not None and cover.peak <= limit < change.after:
                limit = int(limit * _TIGHTER)
            else:
                return

    def _judged(
        self,
        case: FixCase,
        before: int,
        search: RegionSearch,
        prover: Prover,
        cover: TileCover,
        begin: float,
    ) -> JudgedChange:
        """A cover carried out, compared and planned."""
        tiled = rewrite(search.graph, cover.regions)
        model, plan = _planned(case, tiled, search.costs.options)
        proof = prover.compare(self_contained(model))
        return JudgedChange(
            self.name,
            _words(cover.regions),
            before,
            plan,
            model,
            tuple(one.region for one in cover.regions),
            proof,
            search.bander.macs(),
            cover.extra_macs,
            model is not tiled,
            monotonic() - begin,
        )


def _cover(search: RegionSearch, limit: int | None, *, is_last: bool) -> TileCover | None:
    """A cover within the limit; where there is none, the best, if nothing else will be tried."""
    if limit is None:
        return search.fewest()
    found = search.cover(limit)
    return search.fewest() if found is None and is_last else found


def _planned(
    case: FixCase, model: ShapedModel, options: PoolOptions
) -> tuple[ShapedModel, MemoryPlan]:
    """The changed model in its own order, or in another where that needs less and is wanted."""
    plan = case.plan(model, options)
    if case.limit is not None and plan.scratch_bytes <= case.limit:
        return model, plan
    other = reordered(case, model, options)
    if other is None or other[1].scratch_bytes >= plan.scratch_bytes:
        return model, plan
    return other


def _differing(search: RegionSearch, prover: Prover, cover: TileCover) -> set[TileRegion]:
    """Regions that alone give other results; all of them, where none does alone."""
    found = set()
    for one in cover.regions:
        try:
            alone = prover.compare(self_contained(rewrite(search.graph, [one])))
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
    return f"{nodes} in {region.bands} bands of {'rows' if region.axis == -2 else 'columns'}"
