"""Trials with the real HTP library: models are compiled and loaded, whole or in parts.

Results are cached by content: the model, the SoC, settings, the library and the package version.
Limits are checked each time. A killed search therefore resumes, and only the final binaries are
compiled again. A cached file is untrusted: an invalid file counts as missing.

Every part is compiled and loaded in a child process, and its bill is checked against each limit.
Parts that do not fit into one process domain together are loaded and freed in turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from qnnmem.cache import ResultCache
from qnnmem.errors import CannotTell, UsageError
from qnnmem.fix.parts.deployment import TOTAL, PartNeed, first_over, held_over
from qnnmem.fix.parts.op_sequence import OpRange, OpSequence, write_part
from qnnmem.fix.parts.partition import (
    NoPartition,
    PartFit,
    Partition,
    PartVerdict,
    Rows,
    narrow_places,
    partition,
)
from qnnmem.htp.compile import (
    CompileFailure,
    CompileOptions,
    HtpPrecision,
    LibraryBench,
    compile_model,
)
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.htp.fit import POOLS, TITLES, Fit, fit_failure, fit_measured, why_not
from qnnmem.htp.measure import load_binaries, measure
from qnnmem.htp.place import Resident, plan_residency
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.chain import ChainBinary, HtpChain
from qnnmem.results.fit import FitCheck
from qnnmem.results.footprint import Bill, SizeRange
from qnnmem.results.place import PlaceResult
from qnnmem.results.result import MAX_COUNT, Count
from qnnmem.targets.socs import Soc, htp_constant, pd_budget
from qnnmem.text import counted
from qnnmem.units import MAX_BYTES, round_up
from qnnmem.version import __version__


@dataclass(frozen=True, slots=True)
class LibraryTrial:
    """Result of compiling and loading one model, checked against every limit."""

    fit: Fit
    is_taken: bool = True  # False: the library refuses an op, whatever the size
    pd: SizeRange | None = None
    spill_fill: Count = 0
    vtcm: Count = 0
    fixed: Count = 0  # bytes of weights and IO, which settings do not change
    measured: tuple[FitCheck, ...] = ()  # checks of every pool, with or without a limit

    def resident(self, name: str) -> Resident | None:
        """Return the context's size for placement in a process domain; None if it is unknown."""
        return None if self.pd is None else Resident(name, self.pd, self.spill_fill)

    @property
    def needs(self) -> dict[str, int]:
        """Upper bound of the needed bytes, for each pool that the library reported."""
        return {c.pool: c.need.high.value for c in self.measured if c.need is not None}

    @property
    def is_sure(self) -> bool:
        """True if a repeat gives the same answer; False after a crash or a timeout."""
        return self.fit.fits is not None or not self.is_taken


def trial_of(fit: Fit, bill: Bill) -> LibraryTrial:
    """Return the trial result of a compiled model from its fit and its bill."""
    spills = [graph.spill_fill.value for graph in bill.graphs if graph.spill_fill is not None]
    fixed = [part.value for part in (bill.weights, bill.io) if part is not None]
    vtcm = 0 if bill.vtcm is None else bill.vtcm.value
    return LibraryTrial(fit, True, bill.process_domain, max(spills, default=0), vtcm, sum(fixed))


def unlimited_pools() -> dict[str, Sourced]:
    """Return unreachable limits for pools without a limit, so that trials measure their use."""
    of_soc = ("compile", "pd", "vtcm")
    unlimited = Sourced(MAX_COUNT, Origin.GIVEN, "no limit")
    return {pool: unlimited for pool in POOLS if pool not in of_soc}


def held_against(trial: LibraryTrial, budgets: Mapping[str, Sourced]) -> LibraryTrial:
    """Return the trial with its measured needs checked against the user's limits."""
    fit, unlimited = trial.fit, unlimited_pools()
    trial = replace(trial, measured=fit.checks)
    checks = tuple(
        FitCheck.of(check.pool, check.need, budgets[check.pool], refused=check.refused)
        if check.pool in budgets
        else check
        for check in fit.checks
        if check.pool in budgets or check.pool not in unlimited
    )
    if not trial.is_taken or any(check.refused for check in checks):
        return replace(trial, fit=structs.replace(fit, checks=checks))
    answers = [check.fits for check in checks]
    fits = False if False in answers else None if None in (*answers, fit.fits) else True
    why = why_not(checks, fits) if fits is not None or fit.fits is not None else fit.why
    return replace(trial, fit=structs.replace(fit, checks=checks, fits=fits, why=why))


def kept_trial(values: Mapping[str, Any] | None, soc: Soc) -> LibraryTrial | None:
    """Decode a cached trial; return None for a missing or invalid trial."""
    trial = from_builtins(LibraryTrial, values)
    if trial is None or trial.fit.soc != soc:
        return None
    known = all(check.pool in POOLS for check in trial.fit.checks)
    return trial if known else None


@dataclass(frozen=True)
class HtpSource:
    """Model to compile: its bytes, and its path if the model is the user's own file."""

    content: bytes
    path: Path | None = None

    @property
    def digest(self) -> str:
        """Key of the model in the result cache."""
        return hashlib.sha256(self.content).hexdigest() + ("" if self.path is None else " file")


@dataclass(frozen=True)
class LibraryTrials(LibraryBench):
    """Trials with one worker of the library; binaries of models that fit stay in the folder."""

    budgets: Mapping[str, Sourced] = field(default_factory=dict)
    memory: ResultCache | None = None
    known: dict[str, LibraryTrial] = field(default_factory=dict)

    def trial(self, source: HtpSource, options: CompileOptions) -> LibraryTrial:
        """Return the library's trial of a model, from the cache if possible."""
        key = self._key(source, options)
        if key not in self.known:
            kept = None if self.memory is None else self.memory.get(key)
            self.known[key] = kept_trial(kept, self.soc) or self._tried(key, source, options)
        return held_against(self.known[key], self.budgets)

    def binary(self, source: HtpSource, options: CompileOptions) -> Path:
        """Return the path of a fitting model's binary; compile again if no binary is cached."""
        path = self.folder / f"{self._key(source, options)}.bin"
        if not path.exists():
            model = self._file(path.stem, source)
            options = _without_shapes(source, options)
            compiled = compile_model(
                model, self.soc, options, output=path, worker=self.worker, progress=self.progress
            )
            if isinstance(compiled, CompileFailure):
                raise CannotTell(compiled.why)
        return path

    def _tried(self, key: str, source: HtpSource, options: CompileOptions) -> LibraryTrial:
        model, binary = self._file(key, source), self.folder / f"{key}.bin"
        options = _without_shapes(source, options)
        try:
            measured = measure(
                model, self.soc, options, output=binary, worker=self.worker, progress=self.progress
            )
        finally:
            if source.path is None:
                model.unlink(missing_ok=True)
        if isinstance(measured, CompileFailure):
            fit = fit_failure(measured, unlimited_pools())
            trial = LibraryTrial(fit, measured.stage != "partition")
        else:
            trial = trial_of(fit_measured(measured, unlimited_pools()), measured.bill)
        if not held_against(trial, self.budgets).fit.fits:
            binary.unlink(missing_ok=True)
        if self.memory is not None and trial.is_sure:
            self.memory.put(key, to_builtins(trial))
        return trial

    def _file(self, key: str, source: HtpSource) -> Path:
        if source.path is not None:
            return source.path
        path = self.folder / f"{key}.onnx"
        path.write_bytes(source.content)
        return path

    def _key(self, source: HtpSource, options: CompileOptions) -> str:
        facts = {
            "version": __version__,
            "model": source.digest,
            "soc": self.soc.model_id,
            "library": self.worker.library.name,
            "precision": options.precision.value,
            "settings": [options.vtcm_mb, options.opt_level, options.memhandle, options.partition],
            "random": [options.samples, options.seed],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _without_shapes(source: HtpSource, options: CompileOptions) -> CompileOptions:
    """Return the options without shapes and values, which a changed model already contains."""
    return options if source.path is not None else replace(options, dims={}, shapes={}, values={})


_OF_SIZE = ("compile", "pd", "ram", "weights")  # pools that hold weights and IO
_MARGIN = 1.25  # factor on an estimate derived from the whole model
PLACES = 48  # candidate cut positions, because every trial is a compile
MOST_TRIALS = 60


@dataclass(frozen=True, slots=True)
class HtpParts:
    """Model cut into parts that the library compiled and loaded, with a binary for each part."""

    partition: Partition
    soc: Soc
    library: str  # package and version
    fits: tuple[Fit, ...]
    binaries: tuple[Path, ...]
    together: bool  # True: the library loads all parts into one process domain
    refused: int | None  # first part, from 1, that did not fit next to the earlier parts
    residency: PlaceResult  # placement of the parts in the process domains of a device

    @property
    def is_whole(self) -> bool:
        """True if the model needed no cut."""
        return len(self.binaries) == 1


@dataclass(frozen=True, slots=True)
class _NeedEstimate:
    """Estimate of the bytes of a pool that a range of ops needs, scaled from the whole model.

    Only an estimate far over the limit excludes a range; otherwise the library decides.
    """

    limit: int
    base: int  # bytes that every part needs
    rate: float  # bytes of need per byte of weights (as HTP stores them) and IO
    counts_io: bool

    def may_fit(self, weights: int, io: int) -> bool:
        """Return True if a range with these bytes is worth compiling."""
        filled = weights // 2 + (io if self.counts_io else 0)
        return self.base + self.rate * filled <= _MARGIN * self.limit


_LOADED = ("weights", "io", "spill-fill", "pd")
_RUNNING = ("vtcm", "compile", "host-ram")


def library_need(sequence: OpSequence, op_range: OpRange, trial: LibraryTrial) -> PartNeed:
    """Return the bytes of one part by pool; only the running part uses VTCM.

    Pools that the library did not report are left out.
    """
    known = trial.needs
    loaded = {pool: known[pool] for pool in _LOADED if pool in known}
    running = {pool: known[pool] for pool in _RUNNING if pool in known}
    for name in ("ram", TOTAL) if "ram" in known else ():
        loaded[name] = known["ram"] - trial.vtcm
        running[name] = trial.vtcm
    unit = htp_constant("io", "unit").value
    tensors = sequence.model.tensors
    held = held_over(sequence, op_range, copies=False)
    return PartNeed(
        loaded,
        running,
        weights=known.get("weights", 0),
        held=sum(round_up(tensors[name].nbytes, unit) for name in held),
        alone=frozenset(("ram", "io", TOTAL)),
        spill_fill=trial.spill_fill,
    )


@dataclass(frozen=True)
class LibraryJudge:
    """Judge that compiles and loads ranges of ops from one sequence.

    The judge caches the library's answers, so use a new judge for each sequence.
    """

    trials: LibraryTrials
    options: CompileOptions = field(default_factory=CompileOptions)
    found: dict[tuple[int, int], LibraryTrial] = field(default_factory=dict)

    def __call__(self, sequence: OpSequence, op_range: OpRange) -> PartVerdict:
        """Return whether a range of ops compiles, loads and stays within every limit."""
        trial = self.trial(sequence, op_range)
        fit, worst = trial.fit, trial.fit.worst
        need = None if worst is None or worst.need is None else worst.need.low.value
        if fit.fits:
            limits = {pool: limit.value for pool, limit in self.trials.budgets.items()}
            broken = first_over(library_need(sequence, op_range, trial), limits)
            if broken is None:
                return PartVerdict(PartFit.YES, "", need)
            pool, size, most = broken
            need_text = f"{TITLES[pool]}: {size:,} bytes, including tensors kept for later parts"
            return PartVerdict(PartFit.NO, f"{need_text}, limit {most:,}", size)
        never = fit.fits is False and worst is not None and _exceeds_without_io(worst, op_range)
        return PartVerdict(PartFit.NEVER if never else PartFit.NO, fit.why, need)

    def trial(self, sequence: OpSequence, op_range: OpRange) -> LibraryTrial:
        """Return the library's trial of a range of ops."""
        key = (op_range.first, op_range.last)
        if key not in self.found:
            ops = counted(op_range.last - op_range.first, "op")
            self.trials.progress(f"compiling {ops} from op {op_range.first}")
            self.found[key] = self.trials.trial(_source(sequence, op_range), self.options)
        # If the whole model fails because of an op, size is not the reason. In a part, the op may
        # be there only because of the cut, such as a Dropout that makes a part's output.
        trial = self.found[key]
        if not trial.is_taken and op_range.last - op_range.first == len(sequence):
            raise CannotTell(trial.fit.why)
        return trial

    def binary(self, sequence: OpSequence, op_range: OpRange) -> Path:
        """Return the path of the context binary for a range of ops."""
        return self.trials.binary(_source(sequence, op_range), self.options)

    def rows(self, sequence: OpSequence) -> Rows | None:
        """Return a rule that excludes ranges far over a limit; None if no pool has an estimate."""
        estimates = tuple(self._estimates(sequence))
        if not estimates:
            return None

        def row(first: int) -> list[bool]:
            pairs = zip(*sequence.range_bytes(first, MAX_BYTES), strict=True)
            return [all(estimate.may_fit(*sizes) for estimate in estimates) for sizes in pairs]

        return row

    def _estimates(self, sequence: OpSequence) -> Iterator[_NeedEstimate]:
        whole = self.found.get((0, len(sequence)))
        weights, io = (sizes[-1] for sizes in sequence.range_bytes(0, MAX_BYTES))
        for check in () if whole is None else whole.fit.checks:
            if check.fits is not False or check.pool not in _OF_SIZE:
                continue
            counts_io = check.pool != "weights"
            filled = weights // 2 + (io if counts_io else 0)
            if whole is not None and check.need is not None and check.limit is not None and filled:
                base = whole.vtcm if check.pool in ("pd", "ram") else 0
                rate = max(0, check.need.low.value - base) / filled
                yield _NeedEstimate(check.limit.value, base, rate, counts_io)


def _source(sequence: OpSequence, op_range: OpRange) -> HtpSource:
    """Return the model of a range of ops; its bytes are the same at any position in a chain."""
    return HtpSource(write_part(sequence, op_range, 1))


def _exceeds_without_io(broken: FitCheck, op_range: OpRange) -> bool:
    """Return True if a range exceeds a limit even without IO, so that more ops cannot help."""
    if broken.pool == "vtcm":  # memory of one op, which every larger range contains
        return True
    if broken.pool in ("io", "host-ram") or broken.need is None or broken.limit is None:
        return False
    io = 0
    if broken.pool in ("compile", "pd", "ram"):
        tensors = op_range.model.tensors
        io = sum(tensors[name].nbytes for name in {*op_range.inputs, *op_range.outputs})
    return broken.need.low.value - io > broken.limit.value


def partition_htp(
    sequence: OpSequence,
    judge: LibraryJudge,
    *,
    most_trials: int = MOST_TRIALS,
    is_over: Callable[[], bool] | None = None,
) -> HtpParts | NoPartition:
    """Cut a model into the fewest parts that the library compiles and loads.

    The search first tries the positions with the fewest crossing bytes, then all positions. It ends
    when `is_over` returns True.
    """
    if judge.options.precision is not HtpPrecision.FP16:
        raise UsageError(
            "parts cannot be quantized one by one; quantize the whole model first, then split it"
        )
    judge(sequence, sequence.op_range(0, len(sequence)))  # the whole model's need is a guide
    places = narrow_places(sequence.crossing, sequence.work, PLACES)
    cut = partition(sequence, judge, places=places, most_trials=most_trials, is_over=is_over)
    if isinstance(cut, NoPartition) and len(sequence) > len(places) + 1:
        left = most_trials - cut.trials
        if left > 0:
            cut = partition(sequence, judge, most_trials=left, is_over=is_over)
    return cut if isinstance(cut, NoPartition) else loaded_parts(cut, judge)


def loaded_parts(cut: Partition, judge: LibraryJudge) -> HtpParts:
    """Load all parts into one process domain and return the outcome."""
    trials, soc = judge.trials, judge.trials.soc
    binaries = tuple(judge.binary(cut.sequence, part) for part in cut.parts)
    trials.progress(f"loading {counted(len(binaries), 'part')} together")
    codes = load_binaries(trials.worker, binaries, soc.model_id).codes
    refused = next((n for n, code in enumerate(codes, start=1) if code), None)
    if refused is None and len(codes) < len(binaries):  # the library crashed at the next part
        refused = len(codes) + 1
    parts = [judge.trial(cut.sequence, part) for part in cut.parts]
    known = (part.resident(f"part{n}") for n, part in enumerate(parts, start=1))
    budget = trials.budgets.get("pd", pd_budget())
    residency = plan_residency([context for context in known if context is not None], budget)
    if refused is None and len(residency.given.domains) > 1:  # the user's budget separates them
        refused = residency.given.domains[1].contexts[0] + 1
    return HtpParts(
        partition=cut,
        soc=soc,
        library=trials.worker.library.name,
        fits=tuple(part.fit for part in parts),
        binaries=binaries,
        together=refused is None,
        refused=refused,
        residency=residency,
    )


def describe_htp(parts: HtpParts, binaries: Sequence[bytes]) -> HtpChain:
    """Return the manifest entry about the context binaries of a chain."""
    placed = parts.residency
    sizes = [context.size for context in placed.contexts]
    return HtpChain(
        soc=parts.soc.name,
        library=parts.library,
        binaries=tuple(
            ChainBinary(
                file=f"part{number}.bin", sha256=hashlib.sha256(blob).hexdigest(), pd_bytes=size
            )
            for number, (blob, size) in enumerate(zip(binaries, sizes, strict=True), start=1)
        ),
        refused_part=parts.refused or 0,
        domains=len(placed.given.domains),
        budget_bytes=placed.budget.value,
        resident_bytes=sum(sizes),
        in_turn_bytes=max(sizes),
    )
