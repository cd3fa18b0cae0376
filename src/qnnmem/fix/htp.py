"""Makes a model fit the limits of HTP: its remedies, and what stands in the way of more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qnnmem.cache import ResultCache
from qnnmem.errors import UsageError, join_words
from qnnmem.fix.graph.operators import OperatorRemedy, refused_by_htp, taken_by_htp
from qnnmem.fix.library.judge import CompileJudge, HtpBench
from qnnmem.fix.library.resident_contexts import PlacementRemedy, read_resident_contexts
from qnnmem.fix.library.settings import HtpSettingsRemedy
from qnnmem.fix.library.trials import LibraryTrials
from qnnmem.fix.lossy.remedies import judged_steps, with_lossy
from qnnmem.fix.parts.partition_htp import HtpParts, LibraryJudge, loaded_parts
from qnnmem.fix.parts.remedy_htp import HtpPartsRemedy
from qnnmem.fix.remedy import Change, FixCase, JudgedChange, ModelRemedy
from qnnmem.fix.run import FixResult, Watcher, best_of, try_remedies, with_levels
from qnnmem.htp.compile import CompileOptions, Progress, given_or_own, no_progress
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Sourced
from qnnmem.targets.socs import Soc
from qnnmem.text import quote

REMEDIES: tuple[ModelRemedy, ...] = (HtpSettingsRemedy(), PlacementRemedy(), HtpPartsRemedy())
Repeat = Callable[[FixCase], Change]


@dataclass(frozen=True)
class FixTarget:
    """The SoC, limits and library that a model is fixed for."""

    soc: Soc
    folder: Path  # of the caller's, for binaries
    budgets: Mapping[str, Sourced]
    beside: tuple[Path, ...] = ()  # context binaries that stay loaded
    memory: ResultCache | None = None
    worker: Worker | None = None
    progress: Progress = no_progress


@dataclass(frozen=True)
class HtpFixResult(FixResult):
    """A result with the context binaries of the best change, if it fits."""

    soc: Soc | None = None
    binaries: tuple[Path, ...] = ()  # in the folder of the caller, one for each part
    parts: HtpParts | None = None
    rounds: tuple[tuple[str, ...], ...] = ()  # contexts that are loaded at the same time
    beside: Mapping[str, str] = field(default_factory=dict)  # files of other contexts by name
    domain_bytes: int | None = None  # of one process domain, where the user says so


def fix_for_htp(
    case: FixCase,
    target: FixTarget,
    *,
    watch: Watcher | None = None,
    remedies: Sequence[ModelRemedy] = REMEDIES,
) -> HtpFixResult:
    """Try remedies until the library compiles and loads a change within every limit."""
    with _bench(case, target) as bench:
        required = (operator_remedy(target.soc, case),)
        tried, notes = try_remedies(bench, with_lossy(case, remedies), watch, required)
        return _result(bench, target, tried, notes)


def operator_remedy(soc: Soc, case: FixCase) -> OperatorRemedy:
    """Return the remedy that replaces refused operators; it applies whatever memory it needs."""
    options = case.options
    if not isinstance(options, CompileOptions):
        raise TypeError("this remedy is for HTP")
    return OperatorRemedy(refused_by_htp(soc, options), taken_by_htp)


def repeat_for_htp(case: FixCase, target: FixTarget, repeat: Repeat) -> HtpFixResult:
    """Apply a recipe to this model and judge it."""
    change = repeat(case)
    with _bench(case, target) as bench:
        bench.judged(Change("none", "as it is", case.model, case.options))
        _check_rounds(bench, change)
        judged = judged_steps(bench, change)
        if not judged.holds:
            raise UsageError(
                "with this model the recipe gives other results; search anew without it"
            )
        return _result(bench, target, (judged,), ())


def _check_rounds(bench: HtpBench, change: Change) -> None:
    """Raise UsageError if a recipe loads unknown contexts."""
    if not change.rounds:
        return
    said = {name for names in change.rounds for name in names}
    odd = sorted(said ^ set(bench.library.residents(change)))
    if odd:
        raise UsageError(
            f"the recipe is for other contexts beside the model: {quote(odd[0])} is not in both"
        )


@contextmanager
def _bench(case: FixCase, target: FixTarget) -> Iterator[HtpBench]:
    with given_or_own(target.worker) as worker:
        trials = LibraryTrials(
            target.soc, worker, target.folder, target.budgets, target.memory, target.progress
        )
        others = read_resident_contexts(target.beside, target.soc, worker)
        with HtpBench(case, CompileJudge(case, trials, others), target.memory) as bench:
            yield bench


def _result(
    bench: HtpBench,
    target: FixTarget,
    tried: tuple[JudgedChange, ...],
    notes: tuple[str, ...],
) -> HtpFixResult:
    tried = with_levels(bench, tried)
    best = best_of(tried)
    change, library = best.change, bench.library
    if not best.is_enough:
        why = bench.obstacles[-1] if bench.obstacles else join_words(best.need.why)
        obstacle = why if best.fits is False else ""
        return HtpFixResult(bench.case, tried, obstacle=obstacle, notes=notes, soc=target.soc)
    rounds: tuple[tuple[str, ...], ...] = ()
    if library.others or change.parts is not None:
        rounds = change.rounds or (tuple(library.residents(change)),)
    parts: HtpParts | None = None
    binaries: tuple[Path, ...] = ()
    if change.parts is not None:
        judge = LibraryJudge(library.trials, change.compile_options)
        parts = bench.loaded.get(id(change.parts)) or loaded_parts(change.parts, judge)
        binaries = parts.binaries
    elif change.steps:
        source = library.source(change)
        binaries = (library.trials.binary(source, change.compile_options),)
    return HtpFixResult(
        bench.case,
        tried,
        notes=notes,
        soc=target.soc,
        binaries=binaries,
        parts=parts,
        rounds=rounds,
        beside={
            one.name: str(path) for one, path in zip(library.others, target.beside, strict=True)
        },
        domain_bytes=target.budgets["pd"].value if "pd" in target.budgets else None,
    )
