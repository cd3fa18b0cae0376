"""Fit of a context binary that was compiled before: it is read, no library is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qnnmem.errors import NotCompiled
from qnnmem.htp.bill.loading import LOAD_TIME_LIMIT_S
from qnnmem.htp.bill.measure import bill_of_loaded
from qnnmem.htp.bill.stored import no_soc_named, stored_bill
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.fit.of_bill import fit_bill
from qnnmem.htp.fit.value import Fit
from qnnmem.provenance import Sourced
from qnnmem.targets.socs import Soc, soc_by_id


def fit_stored(
    path: Path,
    targets: tuple[Soc, ...],
    budgets: Mapping[str, Sourced],
    *,
    load: bool = False,
    time_limit_s: float = LOAD_TIME_LIMIT_S,
) -> tuple[Fit, ...] | None:
    """The answers for a context binary; None for a model that has to be compiled first.

    With `load` the real library says its exact estimate. Without targets the SoC counts that the
    binary was made for.
    """
    try:
        context = read_context(path)
    except NotCompiled:
        return None
    made_for = None if context.soc_model is None else soc_by_id(context.soc_model)
    if not targets and made_for is None:
        raise no_soc_named(path)
    chosen = targets or ((made_for,) if made_for else ())
    return tuple(
        fit_bill(
            bill_of_loaded(path, soc, time_limit_s) if load else stored_bill(path, soc, context),
            soc,
            budgets,
        )
        for soc in chosen
    )
