"""SoCs and LPAI profiles in data files, which give a source for each number."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from msgspec import Struct

from qnnmem.provenance import Origin, Sourced


class TcmLimits(Struct, frozen=True):
    """Limits of the tightly coupled memory (TCM) pool in aDSP direct mode."""

    size: Sourced
    max_allocations: Sourced


@cache
def tcm_pool() -> TcmLimits:
    """Return the size and allocation limit of the TCM pool."""
    facts = tomllib.loads(Path(__file__).with_name("lpai.toml").read_text("utf-8"))["tcm"]
    origin, source = Origin(facts["origin"]), facts["source"]
    return TcmLimits(
        Sourced(facts["size_bytes"], origin, source),
        Sourced(facts["max_allocations"], origin, source),
    )
