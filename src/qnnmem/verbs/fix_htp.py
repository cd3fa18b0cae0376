"""`fix` for HTP: the real library as judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.errors import MissingSoc, UsageError

if TYPE_CHECKING:
    from qnnmem.cache import ResultCache
    from qnnmem.fix.htp import HtpFixResult
    from qnnmem.fix.remedy import FixCase
    from qnnmem.fix.remedy_search import Watcher
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.options.fix import FixOptions
    from qnnmem.results.fix import FixRecipe
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs.listener import VerbCall


def find_target(soc: str | None) -> Soc:
    """Return the SoC that is meant."""
    from qnnmem.targets.socs import find_soc

    if soc is None:
        raise MissingSoc(what="--backend htp needs --soc, for limits depend on it")
    return find_soc(soc)


def htp_compile(options: FixOptions, sizes: Mapping[str, Any]) -> CompileOptions:
    """Return the compile that is asked for; `sizes` are free sizes and values."""
    from qnnmem.htp.compile import CompileOptions, HtpPrecision, check_options

    found = CompileOptions(
        precision=HtpPrecision(options.precision or "fp16"),
        vtcm_mb=options.vtcm_mb,
        opt_level=options.opt_level,
        **sizes,
    )
    check_options(find_target(options.soc), found)
    return found


class HtpWork(NamedTuple):
    """Where the work is done, what is known of it, and who watches."""

    folder: Path
    memory: ResultCache | None
    watch: Watcher
    call: VerbCall
    first: tuple[str, ...] = ()  # remedies to begin with


def fixed_for_htp(
    case: FixCase,
    options: FixOptions,
    work: HtpWork,
    *,
    recipe: tuple[FixRecipe, Path] | None = None,
) -> HtpFixResult:
    """The result of a search, or of a recipe."""
    from qnnmem.fix.from_log import ordered
    from qnnmem.fix.htp import REMEDIES, fix_for_htp, operator_remedy, repeat_for_htp
    from qnnmem.fix.library.trials import LibraryTrials
    from qnnmem.fix.lossy.remedies import LOSSY_REMEDIES
    from qnnmem.fix.recipe import apply_recipe
    from qnnmem.htp.fit import check_pools
    from qnnmem.htp.worker import Worker
    from qnnmem.provenance import Origin, Sourced
    from qnnmem.verbs.compiler import need_compiler

    budgets, soc = options.budgets, find_target(options.soc)
    limits = {name.lower(): Sourced(size, Origin.GIVEN, "--budget") for name, size in budgets}
    if len(limits) < len(budgets):
        raise UsageError("a pool has two budgets; give one")
    check_pools(limits)
    need_compiler(case.path, (soc,), htp_compile(options, {}), work.call)
    beside = tuple(map(Path, options.beside))
    remedies, change = ordered(REMEDIES, work.first), None
    if recipe is not None:
        said, path = recipe
        known = (operator_remedy(soc, case), *REMEDIES, *LOSSY_REMEDIES)
        change = apply_recipe(case, said.steps, path, known)
    with Worker(warm=True) as worker:
        say = work.call.listener.say
        trials = LibraryTrials(soc, worker, work.folder, limits, work.memory, say)
        if change is not None:
            return repeat_for_htp(case, trials, change, beside)
        return fix_for_htp(case, trials, beside, watch=work.watch, remedies=remedies)
