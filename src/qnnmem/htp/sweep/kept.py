"""A result of a sweep as it is kept on disk; nothing that is read is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qnnmem.htp import kept
from qnnmem.htp.sweep.value import SweepOutcome

_STATES = ("fits", "over", "refused")  # what failed is not kept
_MAX_SECONDS = 1e9


def from_kept(values: Mapping[str, Any] | None) -> SweepOutcome | None:
    """A kept result; None when a file holds something else."""
    found = kept.from_kept(SweepOutcome, values)
    if found is None or found.state not in _STATES or not 0 <= found.seconds < _MAX_SECONDS:
        return None
    return found
