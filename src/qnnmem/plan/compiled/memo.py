"""States that are known to fail, as a table of double hashes; importing this imports numba."""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from qnnmem.plan.compiled.arrays import Ints

_PROBES = 4


@register_jitable
def hash_state(unplaced: Ints, least: Ints) -> tuple[int, int]:
    """Two hashes of the unplaced buffers and their least offsets, whatever their order."""
    key, check = np.uint64(0), np.uint64(0)
    for u in unplaced:
        word = np.uint64(least[u]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(u)
        key += _mix(word)
        check += _mix(word ^ np.uint64(0x632BE59BD9B4E019))
    return int(np.int64(key)), int(np.int64(check))


@register_jitable
def _mix(x: np.uint64) -> np.uint64:
    # The finaliser of splitmix64 spreads a state over 64 bits.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@register_jitable
def is_known(memo: Ints, key: int, check: int) -> bool:
    """Whether a state with these hashes has failed before."""
    for probe in range(_PROBES):
        k = (key + probe) & (len(memo) - 1)
        if memo[k, 0] == key and memo[k, 1] == check:
            return True
    return False


@register_jitable
def remember(memo: Ints, key: int, check: int) -> None:
    """Notes a state that failed; the last place of a full row is written over."""
    for probe in range(_PROBES):
        k = (key + probe) & (len(memo) - 1)
        if memo[k, 0] == 0 or probe == _PROBES - 1:
            memo[k, 0], memo[k, 1] = key, check
            return
