"""How full a pool was when a request failed, summed from the lines before the failure.

    TCM pool current size: 0 max_size: 2035712     the level at the start
    Allocate size 1500032 from tcm pool 0          added
    Allocate size 300032 from tcm pool 0           added
    TCM memory allocation failure: required size: 300032

Logs do not show what a client frees. Therefore the number of bytes in use stays unknown if the sum
exceeds the size of the pool, or if there are more allocations than the pool allows.
"""

from __future__ import annotations

from typing import NamedTuple

from qnnmem.provenance import Origin

_ADDED = f"{Origin.COMPUTED.value}: the allocations before the failure, added up"
_KNOWN = f"{Origin.DOCUMENTED.value}: LPAI memory page"
_AT_LEAST = f"{Origin.COMPUTED.value}: at least this much, because the pool is assumed to be empty"
# The pool of aDSP direct mode serves 32 allocations (LPAI memory page); the limits of other pools
# are unknown.
_MAX_PIECES = 32


class PoolNumbers(NamedTuple):
    """Numbers that are known about a pool at the time of a failure."""

    quantities: dict[str, int | str]
    origins: dict[str, str]  # of numbers that no line prints
    shortage: int | None


class FailedPool(NamedTuple):
    """A pool's documented size, and the log lines about it as pairs of position and bytes."""

    documented: int  # documented size, used if no line states it
    levels: list[tuple[int, int]]
    added: list[tuple[int, int]]

    def numbers(self, said: dict[str, int | str], failed: int) -> PoolNumbers:
        """Return the numbers in `said`, and the bytes in use and bytes missing at `failed`."""
        quantities, origins = dict(said), {}
        size, needed = said.get("size_bytes"), said.get("needed_bytes")
        if not isinstance(size, int):
            quantities["size_bytes"] = size = self.documented
            origins["size_bytes"] = _KNOWN
        if not isinstance(needed, int) or min(needed, size) < 0:
            return PoolNumbers(quantities, origins, None)
        in_use = self._in_use(failed)
        if in_use is None or in_use > size:
            if needed <= size:
                return PoolNumbers(quantities, origins, None)
            origins["shortage_bytes"] = _AT_LEAST
            return PoolNumbers(quantities, origins, needed - size)
        quantities["in_use_bytes"], origins["in_use_bytes"] = in_use, _ADDED
        missing = needed - (size - in_use)
        return PoolNumbers(quantities, origins, missing if missing > 0 else None)

    def _in_use(self, failed: int) -> int | None:
        start, level = max((one for one in self.levels if one[0] < failed), default=(-1, 0))
        pieces = [size for place, size in self.added if start < place < failed]
        if (start < 0 and not pieces) or len(pieces) > _MAX_PIECES or min(level, *pieces, 0) < 0:
            return None
        return level + sum(pieces)
