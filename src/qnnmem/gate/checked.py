"""Compare a model's pools with its budgets and the baseline, and derive verdict and result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import field, structs
from msgspec.structs import force_setattr

from qnnmem.atomic_file import write_whole
from qnnmem.bounded_file import is_there, read_bytes
from qnnmem.errors import LoadError, Setting
from qnnmem.gate.comparison import Tolerance, WhatCounts, compare_subjects
from qnnmem.gate.subjects import accepted_subject
from qnnmem.results.check import (
    AcceptedModel,
    AcceptedState,
    Baseline,
    BaselineUse,
    CheckCounts,
    CheckResult,
    ExitCode,
    ModelCheck,
    PoolCheck,
)
from qnnmem.results.diff import PoolChange
from qnnmem.results.plan import too_many
from qnnmem.results.read import read_as
from qnnmem.results.schema import encode, schema_name
from qnnmem.text import counted, shorten

if TYPE_CHECKING:
    from qnnmem.planner import MemoryPlan

NOT_READ: Final = 2
BROKEN: Final = 1
OPEN: Final = 3
GOOD: Final = 0
_WORST = (NOT_READ, BROKEN, OPEN)
_NAMED = 3  # models named in the verdict
_TITLES = {NOT_READ: "not checked", BROKEN: "does not fit", OPEN: "cannot tell"}
_NOT_COMPILED = "cannot be compiled"
GROWN = "worse than the baseline"
BASELINE = "baseline"


class CheckedModel(ModelCheck, frozen=True, kw_only=True):
    """Checked model on one target, with facts that reports need but the JSON result lacks."""

    fits: bool | None = None  # set by __post_init__, like the following fields
    exit_code: ExitCode = GOOD
    place: str = ""  # path of the file from the current folder
    peak: dict[str, int] = field(default_factory=dict)  # tensors live at the peak step
    settings: dict[str, str] = field(default_factory=dict)
    why: str = ""  # reason for a missing or uncertain verdict
    refusal: ExitCode = GOOD  # exit code of a model without a verdict
    given: tuple[Setting, ...] = ()  # plan settings, for commands to paste
    line: int | None = None  # line in the config
    plan: MemoryPlan | None = None

    def __post_init__(self) -> None:
        """Compute the verdict from the checks and the change; `replace` computes it again."""
        force_setattr(self, "fits", self._fits())
        force_setattr(self, "exit_code", self._exit_code())
        force_setattr(self, "answer", self._answer())
        force_setattr(self, "reasons", self._reasons())

    def _fits(self) -> bool | None:
        answers = {check.fits for check in self.checks}
        if False in answers:
            return False
        return None if None in answers or self.refusal or self.why else True

    def _exit_code(self) -> ExitCode:
        if self.refusal:
            return self.refusal
        if self.fits is False or self.grown:
            return BROKEN
        return GOOD if self.fits else OPEN

    def _answer(self) -> str:
        if self.refusal:
            title = _NOT_COMPILED if self.refusal == BROKEN else _TITLES[self.refusal]
            return f"{title}: {self.why}"
        by = "" if self.plan is None else self.plan.proof.basis
        if self.broken:
            return f"{_TITLES[BROKEN]}{by}"
        if self.grown:
            return GROWN
        if self.exit_code == OPEN:
            return f"{_TITLES[OPEN]}: {self.why}" if self.why else _TITLES[OPEN]
        return f"fits{by}" if self.checks else "no budget"

    def _reasons(self) -> tuple[str, ...]:
        broken = (self._broken_words(check) for check in self.broken)
        is_open = self.refusal or self.exit_code == OPEN
        return (*broken, *map(grown_words, self.grown), *((self.answer,) if is_open else ()))

    def _broken_words(self, check: PoolCheck) -> str:
        if not check.over_bytes:
            crowd = check.allocations
            if crowd is None:
                return f"the library refuses the model because of {check.pool}"
            return f"{check.pool}: {too_many(crowd.needed, crowd.possible)}"
        limit = "budget" if check.budget else "limit"
        extra = "" if check.at_least_bytes in (None, check.need_bytes) else " at least"
        planned = self.plan if check.pool == "scratch" else None
        scope = "" if planned is None else f" ({planned.proof.value})"
        largest = f"; largest: {', '.join(map(shorten, check.blockers))}" if check.blockers else ""
        return (
            f"{check.pool} needs {counted(check.need_bytes or 0, 'byte')}{scope},{extra} "
            f"{check.over_bytes:,} over its {limit} of {check.have_bytes:,}{largest}"
        )

    @property
    def result(self) -> ModelCheck:
        """The model as part of the JSON result."""
        facts = {name: getattr(self, name) for name in ModelCheck.__struct_fields__}
        return ModelCheck(**facts | {"seconds": round(self.seconds, 6)})


def grown_words(change: PoolChange) -> str:
    """Return a sentence that states how much a pool has grown since the baseline."""
    size, more = f"{change.after_bytes:,}", f"{change.change_bytes:,}"
    return f"{change.pool} needs {size} bytes, {more} more than in the baseline"


@dataclass(frozen=True, slots=True)
class BudgetRun:
    """All models of a config after the check."""

    config: str
    models: tuple[CheckedModel, ...]
    baseline: str | None = None  # path of the baseline, if configured
    has_baseline: bool = False  # True: the baseline file exists
    gone: tuple[str, ...] = ()  # names in the baseline that are no longer checked
    is_updated: bool = False  # True: the baseline was replaced
    history: tuple[AcceptedState, ...] = ()  # accepted sizes in git, if requested

    @property
    def exit_code(self) -> ExitCode:
        """Worst exit code of all models."""
        codes = {model.exit_code for model in self.models}
        return next((code for code in _WORST if code in codes), GOOD)

    def updated(self) -> BudgetRun:
        """Return the run with its sizes accepted: growth passes, a broken budget still fails."""
        models = tuple(structs.replace(model, change=None) for model in self.models)
        return replace(self, models=models, is_updated=True)

    @property
    def new(self) -> tuple[str, ...]:
        """Names of checked models that the baseline lacks; empty if there is no baseline."""
        if not self.has_baseline:
            return ()
        return tuple(m.name for m in self.models if m.change is None and not m.refusal)

    @property
    def verdict(self) -> str:
        """Verdict on all models in one line."""
        total = len(self.models)
        if self.exit_code == GOOD:
            return self._good_words(total)
        parts = []
        for title, models in self._groups():
            names = [shorten(model.name) for model in models]
            more = ", …" if len(names) > _NAMED else ""
            parts.append(f"{title}: {len(names)} of {total} ({', '.join(names[:_NAMED])}{more})")
        return ", ".join(parts)

    def _good_words(self, total: int) -> str:
        judged = sum(bool(model.checks) for model in self.models)
        if not judged:
            same = ", and none is worse than the baseline" if self.has_baseline else ""
            return f"no budgets: {counted(total, 'model')} planned without a limit{same}"
        rest = "" if judged == total else f", {total - judged} without a budget"
        base = ", none worse than the baseline" if self.has_baseline else ""
        files = len({model.file for model in self.models})
        models = counted(files, "model")  # a file has one result for each SoC or graph
        of = models if total == files else f"{counted(total, 'check')} of {models}"
        return f"fits: {judged} of {of}{rest}{base}"

    def _groups(self) -> Iterator[tuple[str, Sequence[CheckedModel]]]:
        broken = [model for model in self.models if model.exit_code == BROKEN]
        groups = (
            (_TITLES[NOT_READ], [model for model in self.models if model.exit_code == NOT_READ]),
            (_TITLES[BROKEN], [model for model in broken if model.broken]),
            (_NOT_COMPILED, [model for model in broken if model.refusal]),
            (GROWN, [model for model in broken if not model.broken and not model.refusal]),
            (_TITLES[OPEN], [model for model in self.models if model.exit_code == OPEN]),
        )
        return ((title, models) for title, models in groups if models)

    @property
    def result(self) -> CheckResult:
        """JSON result of `qnnmem check`."""
        codes = [model.exit_code for model in self.models]
        return CheckResult(
            config=self.config,
            exit_code=self.exit_code,
            verdict=self.verdict,
            counts=CheckCounts(
                len(codes), *(codes.count(code) for code in (GOOD, BROKEN, NOT_READ, OPEN))
            ),
            baseline=BaselineUse(
                self.baseline, self.has_baseline, self.is_updated, self.new, self.gone
            ),
            models=tuple(model.result for model in self.models),
            history=self.history,
        )


_LARGEST = 64 << 20  # bytes


def read_baseline(path: Path) -> Baseline | None:
    """Return the accepted sizes in a baseline file; None if the file does not exist yet."""
    if not is_there(path):
        return None
    return read_accepted(read_bytes(path, _LARGEST), path)


def read_accepted(data: bytes | str, path: Path) -> Baseline:
    """Parse the accepted sizes in a baseline."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise LoadError(path, "is not valid JSON; it may be truncated") from exc
    schema = schema_name(Baseline)
    if not isinstance(values, dict) or values.get("schema") != schema:
        raise LoadError(path, f"does not have the schema {schema}")
    return read_as(values, str(path), Baseline)


def against(
    models: Sequence[CheckedModel], accepted: Baseline, tolerance: Tolerance
) -> tuple[tuple[CheckedModel, ...], tuple[str, ...]]:
    """Return models with their changes since the baseline, and names that only the baseline has."""
    by_name = dict(accepted.models)
    counts = WhatCounts(tolerance)
    changed = []
    for model in models:
        before = by_name.pop(model.name, None)
        if before is None or model.refusal:
            changed.append(model)
            continue
        now = accepted_subject(model.name, _accepted(model))
        compared = compare_subjects([accepted_subject(model.name, before)], [now], counts)
        changed.append(structs.replace(model, change=compared.subjects[0]))
    return tuple(changed), tuple(by_name)


def write_baseline(path: Path, run: BudgetRun) -> None:
    """Write the sizes of this run; a model that could not be checked keeps its old sizes."""
    kept = read_baseline(path) if run.has_baseline else None
    models: dict[str, AcceptedModel] = {}
    for model in run.models:
        if not model.refusal:
            models[model.name] = _accepted(model)
        elif kept is not None and model.name in kept.models:
            models[model.name] = kept.models[model.name]
    # Sorted, with one number per line, so that git shows small diffs.
    ordered = {name: models[name] for name in sorted(models)}
    write_whole(path, encode(Baseline(models=ordered)).encode("ascii"))


def _accepted(model: CheckedModel) -> AcceptedModel:
    return AcceptedModel.of(model.pools, model.peak, model.settings, model.at_most)
