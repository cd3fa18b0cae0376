"""Make a model fit the limits of HTP: the settings remedy, the search, the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qnnmem.errors import UsageError, join_words
from qnnmem.fix.graph.operators import OperatorRemedy, refused_by_htp, taken_by_htp
from qnnmem.fix.library.compile_judge import MODEL, TOGETHER, CompileJudge, HtpBench, htp_bench
from qnnmem.fix.library.resident_contexts import PlacementRemedy, read_resident_contexts
from qnnmem.fix.library.trials import (
    HtpParts,
    LibraryJudge,
    LibraryTrials,
    loaded_parts,
)
from qnnmem.fix.lossy.remedies import judged_steps, with_lossy
from qnnmem.fix.parts.parts_remedy import HtpPartsRemedy
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, ModelRemedy, Step
from qnnmem.fix.remedy_search import FixResult, Watcher, best_of, try_remedies, with_levels
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.first_fit import place
from qnnmem.targets.socs import MIB, Soc
from qnnmem.text import quote

_LEVELS = (1, 2, 3)
_LEVEL_MATTERS = 0.05  # share of op data from which a level matters: a level changes only the ops
_HOLD_VTCM = ("pd", "ram")
_HOLD_SPILLS = ("compile", "pd", "ram", "spill-fill")
_SLOWER = "a graph with less VTCM can run slower; measure it on a device"
_WORDS = {"vtcm_mb": "VTCM {} MiB", "opt_level": "optimisation level {}"}


@dataclass(frozen=True, slots=True)
class HtpSettingsRemedy:
    """Remedy that changes the VTCM size, then the optimisation level."""

    name: str = "settings"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield promising VTCM sizes, largest first, then optimisation levels at the best size."""
        own = htp_bench(bench)
        if "settings" in own.case.keep or base.change.parts is not None:
            return
        best = base
        for choices in (_vtcm_sizes, _levels):
            start = best
            for settings in choices(own, start):
                if not own.case.seconds_left:
                    return
                judged = own.judged(self._with_settings(start.change, settings))
                yield judged
                best = min(best, judged, key=lambda judged: judged.need.rank)

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` with a recipe's settings applied."""
        settings = {name: step[name] for name in _WORDS if name in step}
        for name, most in (("vtcm_mb", 64), ("opt_level", _LEVELS[-1])):
            value = settings.get(name, 1)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} must be a number from 1 to {most}")
        return self._with_settings(base, settings)

    def _with_settings(self, base: Change, settings: dict[str, Any]) -> Change:
        before, notes, vtcm_mb = base.compile_options, base.notes, settings.get("vtcm_mb")
        if vtcm_mb is not None and (before.vtcm_mb is None or vtcm_mb < before.vtcm_mb):
            notes = (*notes, _SLOWER)
        words = " and ".join(_WORDS[name].format(value) for name, value in settings.items())
        options = replace(before, **settings)
        return base.then(self.name, words, settings, options=options, notes=notes)


def _vtcm_sizes(bench: HtpBench, base: JudgedChange) -> Iterator[dict[str, Any]]:
    trials, over = bench.library.trials, base.need.over
    largest = trials.soc.vtcm_mb
    if largest is None or not over:
        return
    most = largest
    if "vtcm" in trials.budgets:
        most = min(most, trials.budgets["vtcm"].value // MIB)
    now = base.change.compile_options.vtcm_mb or largest
    if most < 1:
        return
    if now != most and (now > most or "vtcm" in over or _may_help(bench, base, _HOLD_SPILLS)):
        yield {"vtcm_mb": most}
    if set(over).intersection(_HOLD_VTCM):
        for size in _halves(min(now, most)):
            if _could_fit(bench, base, (now - size) * MIB):
                yield {"vtcm_mb": size}


def _halves(size: int) -> Iterator[int]:
    """Yield a half, a quarter, an eighth of a size and so on, down to 1."""
    while size > 1:
        size //= 2
        yield size


def _could_fit(bench: HtpBench, base: JudgedChange, less: int) -> bool:
    """Return True if saving `less` bytes could make the model fit next to the other contexts."""
    if base.need.what != TOGETHER:
        return base.need.missing <= less
    contexts = bench.library.residents(base.change)
    sizes = [c.size - (less if name == MODEL else 0) for name, c in contexts.items()]
    return place(sizes, bench.library.domain_bytes).fits


def _may_help(bench: HtpBench, base: JudgedChange, pools: tuple[str, ...]) -> bool:
    """Return True if one of `pools` is over its limit, but weights and IO alone are not.

    No setting changes the size of weights and IO.
    """
    if not set(base.need.over).intersection(pools):
        return False
    trial = bench.library.trials_of(base.change)[0]
    fixed = trial.fixed or bench.library.fixed_bytes(base.change)
    return base.need.limit is None or fixed < base.need.limit


def _levels(bench: HtpBench, base: JudgedChange) -> Iterator[dict[str, Any]]:
    need = base.need
    if not need.over or not _may_help(bench, base, (*_HOLD_SPILLS, "vtcm", "host-ram")):
        return
    is_near = need.missing <= _LEVEL_MATTERS * (need.size or 0)
    if not is_near and not {"vtcm", "spill-fill", "host-ram"}.intersection(need.over):
        return
    now = base.change.compile_options.opt_level or 2  # the library's default
    for level in _LEVELS:
        if level != now:
            yield {"opt_level": level}


REMEDIES: tuple[ModelRemedy, ...] = (HtpSettingsRemedy(), PlacementRemedy(), HtpPartsRemedy())
Repeat = Callable[[FixCase], Change]


@dataclass(frozen=True)
class HtpFixResult(FixResult):
    """Result of a fix, with the context binaries of the best change if this change fits."""

    soc: Soc | None = None
    binaries: tuple[Path, ...] = ()  # binary files in the caller's folder, one for each part
    parts: HtpParts | None = None
    rounds: tuple[tuple[str, ...], ...] = ()  # contexts that are loaded at the same time
    beside: Mapping[str, str] = field(default_factory=dict)  # file names of resident contexts
    domain_bytes: int | None = None  # size of one process domain, if the user set it


def fix_for_htp(
    case: FixCase,
    trials: LibraryTrials,
    *,
    beside: tuple[Path, ...] = (),
    watch: Watcher | None = None,
    remedies: Sequence[ModelRemedy] = REMEDIES,
) -> HtpFixResult:
    """Try remedies until the library compiles and loads a change within every limit."""
    with _bench(case, trials, beside) as bench:
        required = (operator_remedy(trials.soc, case),)
        tried, notes = try_remedies(bench, with_lossy(case, remedies), watch, required)
        return _result(bench, beside, tried, notes)


def operator_remedy(soc: Soc, case: FixCase) -> OperatorRemedy:
    """Return the remedy for refused operators; its change is kept even if it needs more memory."""
    options = case.options
    if not isinstance(options, CompileOptions):
        raise TypeError("this remedy is only for HTP")
    return OperatorRemedy(refused_by_htp(soc, options), taken_by_htp)


def repeat_for_htp(
    case: FixCase, trials: LibraryTrials, repeat: Repeat, beside: tuple[Path, ...] = ()
) -> HtpFixResult:
    """Repeat a recipe on this model and judge the result."""
    change = repeat(case)
    with _bench(case, trials, beside) as bench:
        bench.judged(Change("none", "as it is", case.model, case.options))
        _check_rounds(bench, change)
        judged = judged_steps(bench, change)
        if not judged.holds:
            raise UsageError(
                "the recipe changes the results of this model; run the search without the recipe"
            )
        return _result(bench, beside, (judged,), ())


def _check_rounds(bench: HtpBench, change: Change) -> None:
    """Raise UsageError if the contexts that a recipe loads differ from those of this run."""
    if not change.rounds:
        return
    expected = {name for names in change.rounds for name in names}
    different = sorted(expected ^ set(bench.library.residents(change)))
    if different:
        raise UsageError(
            f"the recipe is for a run with different loaded contexts: {quote(different[0])} is "
            "missing in the "
            "recipe or in this run"
        )


def _bench(case: FixCase, trials: LibraryTrials, beside: tuple[Path, ...]) -> HtpBench:
    others = read_resident_contexts(beside, trials.soc, trials.worker)
    return HtpBench(case, CompileJudge(case, trials, others), trials.memory)


def _result(
    bench: HtpBench,
    beside: tuple[Path, ...],
    tried: tuple[JudgedChange, ...],
    notes: tuple[str, ...],
) -> HtpFixResult:
    tried = with_levels(bench, tried)
    best = best_of(tried)
    change, library = best.change, bench.library
    trials = library.trials
    if not best.is_enough:
        reason = bench.obstacles[-1] if bench.obstacles else join_words(best.need.why)
        obstacle = reason if best.fits is False else ""
        return HtpFixResult(bench.case, tried, obstacle=obstacle, notes=notes, soc=trials.soc)
    rounds: tuple[tuple[str, ...], ...] = ()
    if library.others or change.parts is not None:
        rounds = change.rounds or (tuple(library.residents(change)),)
    parts: HtpParts | None = None
    binaries: tuple[Path, ...] = ()
    if change.parts is not None:
        judge = LibraryJudge(trials, change.compile_options)
        parts = bench.loaded.get(id(change.parts)) or loaded_parts(change.parts, judge)
        binaries = parts.binaries
    elif change.steps:
        binaries = (trials.binary(library.source(change), change.compile_options),)
    return HtpFixResult(
        bench.case,
        tried,
        notes=notes,
        soc=trials.soc,
        binaries=binaries,
        parts=parts,
        rounds=rounds,
        beside={c.name: str(path) for c, path in zip(library.others, beside, strict=True)},
        domain_bytes=trials.budgets["pd"].value if "pd" in trials.budgets else None,
    )
