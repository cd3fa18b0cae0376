"""Does it fit: what a bill or a refusal needs against each limit of a SoC, in bytes."""

from __future__ import annotations

from qnnmem.htp.fit.check_bill import check_pools, checks_of, fit_bill, fit_failure
from qnnmem.htp.fit.fit import POOLS, TITLES, Fit, Suggestion, fit_result

__all__ = [
    "POOLS",
    "TITLES",
    "Fit",
    "Suggestion",
    "check_pools",
    "checks_of",
    "fit_bill",
    "fit_failure",
    "fit_result",
]
