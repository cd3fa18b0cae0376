"""Covers of a model by regions in bands, kept so that a search that was killed goes on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from qnnmem.fix.remedy import Change, FixBench
from qnnmem.fix.tiling.bands import BandedRegion, TileRegion
from qnnmem.fix.tiling.search import KeptCover
from qnnmem.planner.pools import PoolOptions


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
