"""Does it fit: what a bill or a refusal needs against each limit of a SoC, in bytes."""

from __future__ import annotations

from qnnmem.htp.fit.limits import check_pools
from qnnmem.htp.fit.of_bill import checks_of, fit_bill
from qnnmem.htp.fit.of_failure import fit_failure
from qnnmem.htp.fit.value import POOLS, TITLES, Check, Fit, Suggestion, exit_code

__all__ = [
    "POOLS",
    "TITLES",
    "Check",
    "Fit",
    "Suggestion",
    "check_pools",
    "checks_of",
    "exit_code",
    "fit_bill",
    "fit_failure",
]
