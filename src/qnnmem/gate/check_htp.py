"""A model or a context binary on HTP, checked: the answers that `fit` gives for each SoC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from qnnmem.errors import Setting, Words, join_words
from qnnmem.gate.checked import BROKEN, GOOD, CheckedModel
from qnnmem.gate.pools import HTP
from qnnmem.gate.task import BudgetTask, settings_of
from qnnmem.options.htp import FitOptions
from qnnmem.results.check import PoolCheck

if TYPE_CHECKING:
    from qnnmem.htp.fit import Fit
    from qnnmem.provenance import Sourced
    from qnnmem.targets.socs import Soc

_SOURCE = "budget of the project"
# Parts of a bill that are pools with a budget.
_PARTS = {"weights": "weights", "shared weights": "weights", "IO": "io", "spill/fill": "spill-fill"}


def check_on_socs(task: BudgetTask, kind: str) -> Iterator[CheckedModel]:
    """The answer for each SoC; a binary is read, a model is compiled where the library runs."""
    from qnnmem.htp.fit import fit_stored
    from qnnmem.loader.file_kind import check_kind
    from qnnmem.provenance import Origin, Sourced
    from qnnmem.targets.socs import find_soc

    check_kind(task.path, "fit")
    socs = tuple(dict.fromkeys(find_soc(name) for name in task.entry.get("socs", ())))
    asked = task.budgets(HTP)
    budgets = {pool: Sourced(size, Origin.GIVEN, _SOURCE) for pool, size in asked.items()}
    answers, given = fit_stored(task.path, socs, budgets), _budgets_given(budgets)
    if answers is None:
        answers = _compiled(task, kind, socs, budgets)
        given += settings_of(task.options(FitOptions, kind))
    yield from (replace(_checked(task, fit, budgets), given=given) for fit in answers)


def _budgets_given(budgets: Mapping[str, Sourced]) -> tuple[Setting, ...]:
    return tuple(Setting("budget", f"{pool}={limit.value}") for pool, limit in budgets.items())


def _compiled(
    task: BudgetTask, kind: str, socs: tuple[Soc, ...], budgets: Mapping[str, Sourced]
) -> tuple[Fit, ...]:
    from qnnmem.htp.compile.compiled import compile_options
    from qnnmem.htp.fit import fit_all, judge_model
    from qnnmem.htp.library import find_library
    from qnnmem.htp.measure import compile_target
    from qnnmem.htp.worker import Worker

    compile_target(task.path, socs[0] if socs else None)
    find_library()  # says what is missing where it is
    options = compile_options(task.options(FitOptions, kind))
    with Worker(warm=True) as worker:
        return fit_all(
            socs, lambda soc: judge_model(task.path, soc, options, budgets, worker=worker)
        )


def _checked(task: BudgetTask, fit: Fit, budgets: Mapping[str, Sourced]) -> CheckedModel:
    pools: dict[str, int] = {}
    for name, size in fit.parts.items():
        if pool := _PARTS.get(name):
            pools[pool] = pools.get(pool, 0) + size.value
    pools |= {one.pool: one.need.high.value for one in fit.checks if one.need is not None}
    if fit.total is not None:
        pools.setdefault("ram", fit.total.value)
    soc = fit.soc.name
    return CheckedModel(
        name=f"{task.entry.name or task.file} ({soc})",
        file=task.file,
        place=task.place or task.file,
        target=soc,
        pools=pools,
        at_most=tuple(one.pool for one in fit.checks if one.need and not one.need.is_exact),
        checks=tuple(
            PoolCheck.of(
                one.pool,
                None if one.need is None else one.need.high.value,
                None if one.limit is None else one.limit.value,
                one.fits,
                budget=one.pool in budgets,
                at_least=None if one.need is None else one.need.low.value,
            )
            for one in fit.checks
        ),
        settings={"SoC": soc},
        why=join_words(_said_here(fit.why)) if fit.fits is None else "",
        # What cannot be compiled cannot be shipped, whatever its sizes: footprint says no, too.
        refusal=BROKEN if fit.fits is None and fit.code is not None else GOOD,
        seconds=fit.seconds or 0.0,
        line=task.entry.line,
    )


def _said_here(why: Words) -> Words:
    """Why there is no answer; what a compile could leave to the CPU is no setting of a budget."""
    if isinstance(why, str) or Setting("partition") not in why:
        return why
    at = why.index(Setting("partition"))
    return why[: at - 1]  # without the mark before it
