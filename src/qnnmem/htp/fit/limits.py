"""The limits that a model or binary is held against, by pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qnnmem.errors import UsageError
from qnnmem.htp.fit.value import POOLS
from qnnmem.provenance import Sourced
from qnnmem.results.footprint import SizeRange
from qnnmem.targets.socs import Soc, pd_budget


def check_pools(names: Iterable[str]) -> None:
    """Refuses pools that no bill has."""
    for name in names:
        if name not in POOLS:
            raise UsageError(f"'{name[:40]}' is not a pool of HTP; there are {', '.join(POOLS)}")


def limits(
    soc: Soc | None, budgets: Mapping[str, Sourced], compile_limit: Sourced | None = None
) -> dict[str, Sourced | None]:
    """Every limit that counts by pool: those of the SoC, and those that the user set."""
    return {
        "compile": compile_limit or (soc.compile_limit if soc else None),
        "pd": pd_budget(),
        "vtcm": soc.vtcm_bytes if soc else None,
        **budgets,
    }


def exactly(part: Sourced | None) -> SizeRange | None:
    """A number that is known, as a need without a range."""
    return None if part is None else SizeRange(part, part)
