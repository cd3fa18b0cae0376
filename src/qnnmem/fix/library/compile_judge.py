"""Judge for HTP: the real library compiles and loads a change; every limit is checked.

With resident contexts, the change must also fit the process domains of one process. Contexts are
placed first-fit in load order, as the library does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qnnmem.cache import ResultCache
from qnnmem.errors import Setting, Words
from qnnmem.fix.bench import CaseBench
from qnnmem.fix.library.trials import (
    HtpParts,
    HtpSource,
    LibraryJudge,
    LibraryTrial,
    LibraryTrials,
    library_need,
)
from qnnmem.fix.parts.deployment import Arrangement, chosen, deployments
from qnnmem.fix.parts.partition import Partition
from qnnmem.fix.remedy import Change, FixBench, FixCase, Need, self_contained
from qnnmem.htp.first_fit import place
from qnnmem.htp.fit import Fit
from qnnmem.htp.place import Resident
from qnnmem.results.fit import FitCheck
from qnnmem.results.place import DOMAINS, Placement
from qnnmem.targets.socs import pd_budget
from qnnmem.text import counted

MODEL = "model"  # name of an undivided model's context in a load order
TOGETHER = "all process domains"
IN_TURN = Arrangement.IN_TURN
# Names of the pools in messages about bytes.
NOUNS = {
    "compile": "graph",
    "pd": "process domain",
    "vtcm": "VTCM",
    "ram": "RAM",
    "weights": "weights",
    "io": "IO",
    "spill-fill": "spill/fill",
    "host-ram": "host RAM",
}


class CompileJudge:
    """Judge that returns what a change needs of the pool that limited the original model."""

    def __init__(
        self, case: FixCase, trials: LibraryTrials, others: Sequence[Resident] = ()
    ) -> None:
        self.case, self.trials, self.others = case, trials, tuple(others)
        self._pool = ""  # the limiting pool

    def __call__(self, change: Change) -> Need:
        """Return the memory that the change needs."""
        trials = self.trials_of(change)
        needs = [self._need(trial) for trial in trials]
        worst = max(needs, key=lambda need: need.rank)
        answers = {need.fits for need in needs}
        fits = False if False in answers else None if None in answers else True
        if fits is None:
            worst = next(need for need in needs if need.fits is None)
        self._pool = self._pool or next(iter(worst.over), "")
        need = replace(worst, fits=fits)
        if fits and change.parts is not None:
            need = self._of_chain(change.parts, change, trials, need)
        return self._together(change, need) if need.fits and self.others else need

    def _of_chain(
        self, cut: Partition, change: Change, trials: Sequence[LibraryTrial], worst: Need
    ) -> Need:
        """Return the combined memory need of all parts, loaded together or in turn."""
        pairs = zip(cut.parts, trials, strict=True)
        needs = [library_need(cut.sequence, part, trial) for part, trial in pairs]
        options = deployments(cut.sequence, cut.parts, needs, self._plain_weights(change))
        if change.rounds:
            in_turn = sum(name.startswith("part") for name in change.rounds[0]) < len(trials)
            options = tuple(o for o in options if (o.arrangement is IN_TURN) is in_turn)
        limits = {pool: limit.value for pool, limit in self.trials.budgets.items()}
        best = chosen(options, limits)
        over = best.over(limits)
        pool = next(iter(over), self._pool)
        reason = ""
        if over:
            reason = f"the parts together exceed the {NOUNS[pool]} by {counted(over[pool], 'byte')}"
        return replace(
            worst,
            size=best.pools.get(pool, worst.size),
            fits=not over,
            missing=sum(over.values()),
            over=tuple(over),
            limit=limits.get(pool, worst.limit),
            what=NOUNS.get(pool, worst.what),
            why=reason,
            total=best.total,
            pools={pool: (best.pools[pool], most) for pool, most in limits.items()},
            deployment=best,
        )

    def _plain_weights(self, change: Change) -> int | None:
        """Return the weight bytes of the undivided model; None if the model is unknown."""
        if change.of is None:
            return None
        trial = self.trials.trial(self.source(change.of), change.of.compile_options)
        return trial.needs.get("weights")

    def trials_of(self, change: Change) -> tuple[LibraryTrial, ...]:
        """Return the library's trial of the whole model, or a trial of each part."""
        options = change.compile_options
        if change.parts is None:
            return (self.trials.trial(self.source(change), options),)
        judge = LibraryJudge(self.trials, options)
        return tuple(judge.trial(change.parts.sequence, part) for part in change.parts.parts)

    def source(self, change: Change) -> HtpSource:
        """Return the model to compile for a change that does not cut the model."""
        content = self_contained(change.model).SerializeToString(deterministic=True)
        path = self.case.path if change.model is self.case.model else None
        return HtpSource(content, path)

    def fixed_bytes(self, change: Change) -> int:
        """Return the bytes of weights (stored with 16 bits) and IO, estimated without a compile."""
        from qnnmem.loader.onnx.passes.build import build

        model = build(change.model)
        weights = sum(model.tensors[name].nbytes for name in model.constants)
        io = sum(model.tensors[name].nbytes for name in {*model.inputs, *model.outputs})
        return weights // 2 + io

    def residents(self, change: Change) -> dict[str, Resident]:
        """Return all contexts by name: the resident contexts, and the model or its parts."""
        trials = self.trials_of(change)
        names = [MODEL] if change.parts is None else [f"part{n + 1}" for n in range(len(trials))]
        own = (trial.resident(name) for name, trial in zip(names, trials, strict=True))
        return {context.name: context for context in (*self.others, *own) if context is not None}

    def placements(self, change: Change) -> tuple[tuple[tuple[str, ...], Placement], ...]:
        """Return the contexts of each load round, and their placement in process domains."""
        contexts = self.residents(change)
        rounds = change.rounds or (tuple(contexts),)
        return tuple(
            (names, place([contexts[name].size for name in names], self.domain_bytes))
            for names in rounds
        )

    @property
    def domain_bytes(self) -> int:
        """Capacity of a process domain in bytes."""
        return self.trials.budgets.get("pd", pd_budget()).value

    def _need(self, trial: LibraryTrial) -> Need:
        fit = trial.fit
        broken = [check for check in fit.checks if check.fits is False]
        missing = sum(max(1, -(check.spare or 0)) for check in broken)
        check = self._deciding(fit, broken)
        size = None
        if check is not None and check.need is not None:
            size = (check.need.low if check.fits is False else check.need.high).value
        noun = "bytes" if check is None else NOUNS[check.pool]
        if check is not None and check.pool == "vtcm" and check.refused:
            noun = "one op in VTCM"  # not the VTCM that a whole graph uses
        return Need(
            size,
            fit.fits,
            missing,
            tuple(check.pool for check in broken),
            None if check is None or check.limit is None else check.limit.value,
            noun,
            _with_operators_advice(fit.why, self.case.allow),
            total=trial.needs.get("ram"),
        )

    def _deciding(self, fit: Fit, broken: Sequence[FitCheck]) -> FitCheck | None:
        if broken and self._pool not in {check.pool for check in broken}:
            return fit.worst
        check = next((check for check in fit.checks if check.pool == self._pool), None)
        return check or fit.beside_vtcm

    def _together(self, change: Change, alone: Need) -> Need:
        """Return the memory need of the largest round of contexts that are loaded together."""
        contexts = self.residents(change)
        needs = (
            self._of_round([contexts[name].size for name in names], placement)
            for names, placement in self.placements(change)
        )
        worst = max(needs, key=lambda need: need.rank)
        return replace(worst, total=alone.total, deployment=alone.deployment)

    def _of_round(self, sizes: Sequence[int], placement: Placement) -> Need:
        budget = self.domain_bytes
        beyond = placement.domains[DOMAINS.value :]
        missing = sum(domain.used for domain in beyond)
        missing += sum(sizes[index] for index in placement.too_large)
        reason = ""
        if missing:
            count = len(placement.domains) + len(placement.too_large)
            reason = (
                f"{counted(len(sizes), 'context')} together need {count} process domains "
                f"of {budget:,} bytes, but a process has {DOMAINS.value}"
            )
        return Need(
            sum(sizes),
            placement.fits,
            missing,
            ("pd",) if missing else (),
            budget * DOMAINS.value,
            TOGETHER,
            reason,
        )


def _with_operators_advice(reason: Words, allowed: frozenset[str]) -> Words:
    """Return a failure's reason, suggesting `--allow operators` instead of `--partition`."""
    parts = (reason,) if isinstance(reason, str) else tuple(reason)
    if Setting("partition") not in parts:
        return reason
    before = parts[: parts.index(Setting("partition"))]
    if "operators" in allowed:
        return (*before, "ONNX does not define it in terms of other operators")
    rest = " expands operators that ONNX defines in terms of other operators"
    return (*before, Setting("allow", "operators"), rest)


class HtpBench(CaseBench):
    """Bench for HTP: the real library judges, onnxruntime compares results."""

    def __init__(
        self, case: FixCase, judge: CompileJudge, memory: ResultCache | None = None
    ) -> None:
        super().__init__(case, judge, memory)
        self.library = judge
        self.obstacles: list[str] = []  # reasons why remedies found nothing; the last is reported
        self.loaded: dict[int, HtpParts] = {}  # loaded parts by the id of their partition

    def __enter__(self) -> HtpBench:
        return self


def htp_bench(bench: FixBench) -> HtpBench:
    """Return the HTP bench without the wrappers around it; raise TypeError for another backend."""
    inner = getattr(bench, "inner", bench)
    if not isinstance(inner, HtpBench):
        raise TypeError("this remedy is only for HTP")
    return inner
