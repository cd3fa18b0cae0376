"""The comparable parts of a result: numbers by pool, tensors by name, verdicts by question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.provenance import Sourced
from qnnmem.results.check import AcceptedModel, Baseline, CheckResult
from qnnmem.results.doctor import DoctorResult
from qnnmem.results.files import SeveralFiles
from qnnmem.results.fit import FitResult, FitsResult
from qnnmem.results.fix import FixedModel, FixedModels
from qnnmem.results.footprint import Bill, BillItem
from qnnmem.results.inspect import InspectedBinary
from qnnmem.results.plan import PlanResult, PlansResult
from qnnmem.results.read import read_result, schema_in
from qnnmem.results.result import MAX_COUNT, ErrorResult, SchemaDocument
from qnnmem.results.schema import schema_name
from qnnmem.results.sweep import SweepResult
from qnnmem.results.together import TogetherResult
from qnnmem.text import quote

# Kinds of subjects; only two results of the same kind can be compared.
LPAI, HTP = "plan of memory", "footprint or fit on HTP"
LOG, FIX, SWEEP = "diagnosis", "fix", "sweep"
# Ranks of verdicts; a higher number is worse.
GOOD, OPEN, BAD, NONE = range(4)
_RANKS = {True: GOOD, None: OPEN, False: BAD}
_WORDS = {True: "fits", None: "cannot tell", False: "does not fit"}


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """Verdict in words, and its rank."""

    words: str
    rank: int = GOOD


def fit_answer(fits: bool | None) -> ComparedAnswer:
    """Return a verdict as an answer: yes, no or cannot tell."""
    return ComparedAnswer(_WORDS[fits], _RANKS[fits])


@dataclass(frozen=True, slots=True)
class SubjectTensor:
    """Pool and size of a tensor."""

    pool: str
    size: int


def tensors_by_name(rows: Iterable[tuple[str, str, int]]) -> dict[str, SubjectTensor]:
    """Return tensors by name, with pool and size; tensors of the same name are added up."""
    tensors: dict[str, SubjectTensor] = {}
    for name, pool, size in rows:
        before = tensors.get(name)
        tensors[name] = SubjectTensor(pool, size + (before.size if before else 0))
    return tensors


@dataclass(frozen=True, slots=True)
class ResultSubject:
    """Part of a result that is compared as a whole: a file, a file on one SoC, or a graph."""

    kind: str  # only subjects of one kind are compared
    file: str
    part: str = ""  # SoC, graph or setting, if a file has several
    pools: Mapping[str, int] = field(default_factory=dict)
    at_most: frozenset[str] = frozenset()  # pools of which only an upper bound is known
    counted: Mapping[str, str] = field(default_factory=dict)  # what pools of this name contain
    tensors: Mapping[str, SubjectTensor] = field(default_factory=dict)
    has_all_tensors: bool = True  # False: only the largest, so a missing tensor means nothing
    answers: Mapping[str, ComparedAnswer] = field(default_factory=dict)
    unasked: ComparedAnswer | None = None  # answer to questions that only the other side has
    limits: Mapping[str, int] | None = None  # budgets; None if such a result never has any
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the file, followed by the SoC, graph or setting in parentheses, if any."""
        return f"{self.file} ({self.part})" if self.part else self.file


def subjects_of(result: Any, where: str) -> tuple[ResultSubject, ...]:
    """Return the subjects of a JSON result; raise UsageError if the result is not comparable."""
    name = schema_in(result)
    if name not in (*COMPARED, schema_name(ErrorResult)):
        known = ", ".join(COMPARED)
        raise UsageError(f"{quote(name)} cannot be compared; supported: {known}", where=where)
    document = read_result(result, where)
    if isinstance(document, ErrorResult):
        problem = "the file contains an error instead of a result"
        raise UsageError(f"{problem}: {quote(document.error)}", where=where)
    return tuple(s if s.file else replace(s, file=where) for s in _subjects(document))


def _subjects(result: SchemaDocument) -> Iterator[ResultSubject]:
    if not isinstance(result, SeveralFiles):
        yield from _KINDS[type(result)](result)
        return
    for each in result.each:
        yield from _KINDS[type(each)](each)
    for refused in result.refused:
        answers = {"file": ComparedAnswer("no answer", NONE)}
        yield ResultSubject(_SEVERAL[type(result)], refused.input, answers=answers)


# --- LPAI ----------------------------------------------------------------------------------------


def plan_subjects(plan: PlanResult) -> Iterator[ResultSubject]:
    """Yield the subject of a plan."""
    pools = plan.pools
    answers = {"file": ComparedAnswer("planned")}
    if plan.budgets:
        answers["all budgets"] = fit_answer(plan.fits)
        answers |= {f"budget of {budget.pool}": fit_answer(budget.fits) for budget in plan.budgets}
    if plan.tcm is not None:
        pools["tcm"] = plan.tcm.need_bytes
        answers["TCM"] = fit_answer(plan.tcm.fits)
    # A plan without a proof of optimality may be as small, so report the change but do not fail.
    answers["proof"] = ComparedAnswer(plan.scope.value)
    yield ResultSubject(
        LPAI,
        plan.input,
        pools=pools,
        counted={"constants": "the constants of the model", "tcm": "constants and IO"},
        tensors=tensors_by_name((b.name, b.pool, b.size_bytes) for b in plan.buffers),
        answers=answers,
        limits={f"budget of {pool}": have for pool, have in plan.limits.items()},
        settings={
            "alignment": str(plan.align_bytes),
            "IO": f"{plan.io} scratch",
            "bits": "as in the model" if plan.bits is None else str(plan.bits),
            "graph": "as in the file" if plan.seen_as is None else f"as {plan.seen_as}",
            "tool": plan.tool,
        },
    )


def together_subjects(result: TogetherResult) -> Iterator[ResultSubject]:
    """Yield one subject for all models that share pools, then a subject for each model alone."""
    answers = {"models": ComparedAnswer(" + ".join(model.name for model in result.models))}
    answers |= {f"budget of {budget.pool}": fit_answer(budget.fits) for budget in result.budgets}
    pools = result.pools
    if result.tcm is not None:
        pools["tcm"] = result.tcm.need_bytes
        answers["TCM"] = fit_answer(result.tcm.fits)
    yield ResultSubject(
        LPAI,
        "all models together",
        pools=pools,
        counted={"constants": "the constants of the models", "tcm": "constants and IO"},
        answers=answers,
        limits={f"budget of {budget.pool}": budget.have_bytes for budget in result.budgets},
        settings={
            "alignment": str(result.align_bytes),
            "executions": result.assumed,
            "tool": result.tool,
        },
    )
    for plan in result.plans:
        yield from plan_subjects(plan)


def binary_subjects(binary: InspectedBinary) -> Iterator[ResultSubject]:
    """Yield a subject for each graph of an LPAI binary."""
    for graph in binary.graphs:
        tcm = graph.tcm
        yield ResultSubject(
            LPAI,
            "",
            graph.name if len(binary.graphs) > 1 else "",
            pools=graph.pools if tcm is None else {**graph.pools, "tcm": tcm.need_bytes},
            counted={
                "constants": "constants of the program",
                "tcm": "the finished binary and IO",
            },
            tensors=tensors_by_name((b.name, b.pool, b.size) for b in graph.buffers),
            answers={} if tcm is None else {"TCM": fit_answer(tcm.fits)},
            settings={
                "alignment": str(graph.align),
                "IO": f"{graph.io} scratch",
                "tool": binary.tool,
            },
        )


def fix_subjects(fix: FixedModel) -> Iterator[ResultSubject]:
    """Yield the subject of a fix: its best remedy."""
    best = fix.chosen
    same = ComparedAnswer("the same") if best.identical else ComparedAnswer("not the same", OPEN)
    answers = {"file": ComparedAnswer("tried"), "results": same}
    if fix.fits is not None or fix.limit_bytes is not None:
        answers["all budgets"] = fit_answer(fix.fits)
    yield ResultSubject(
        FIX,
        fix.input,
        pools={} if fix.after_bytes is None else {best.pool: fix.after_bytes},
        answers=answers,
        limits={} if fix.limit_bytes is None else {f"limit of {best.pool}": fix.limit_bytes},
        settings={"remedy": best.remedy, "tool": fix.tool},
    )


# --- HTP -----------------------------------------------------------------------------------------


def bill_subjects(bill: Bill) -> Iterator[ResultSubject]:
    """Yield the subject of a bill."""
    domain_range = bill.process_domain
    domain = None if domain_range is None else domain_range.high
    only_bound = domain_range is not None and domain_range.low != domain_range.high
    yield ResultSubject(
        HTP,
        bill.file,
        bill.soc or "",
        pools=_sizes(
            {
                **dict(bill.named_parts),
                "all together": bill.total,
                "compile estimate": bill.compile_estimate,
                "process domain": domain,
            }
        ),
        at_most=frozenset(["process domain"] if only_bound else []),
        tensors=_items([*bill.largest_io, *bill.largest_weights]),
        has_all_tensors=False,
        settings={"SoC": bill.soc or "unknown", "library": bill.build_id, "tool": bill.tool},
    )


def _sizes(numbers: Mapping[str, Sourced | None]) -> dict[str, int]:
    return {name: number.value for name, number in numbers.items() if number is not None}


def _items(items: Iterable[BillItem]) -> dict[str, SubjectTensor]:
    return tensors_by_name(
        (item.name, item.kind, item.bytes) for item in items if item.kind != "part"
    )


# Names that a bill uses for needs that a fit reports by pool.
_NEEDS = {"compile": "compile estimate", "pd": "process domain", "host-ram": "host RAM"}


def fit_subjects(fit: FitResult) -> Iterator[ResultSubject]:
    """Yield a subject for each SoC of a fit."""
    for soc in fit.socs:
        judged = [check for check in soc.checks if check.pool in _NEEDS]
        needs = {_NEEDS[check.pool]: check.need_high for check in judged}
        answers = {"file": fit_answer(soc.fits)}
        answers |= {f"limit of {check.pool}": fit_answer(check.fits) for check in soc.checks}
        yield ResultSubject(
            HTP,
            fit.file,
            soc.soc,
            pools=_sizes({**soc.parts, "all together": soc.total, **needs}),
            at_most=frozenset(_NEEDS[check.pool] for check in judged if check.is_bound),
            tensors=_items(soc.largest),
            has_all_tensors=False,
            answers=answers,
            limits={
                f"limit of {check.pool}": check.limit.value
                for check in soc.checks
                if check.limit is not None
            },
            settings={"SoC": soc.soc, "tool": fit.tool},
        )


_SWEPT = {
    "compile estimate": "compile_need",
    "process domain": "pd_need",
    "VTCM": "vtcm",
    "RAM": "ram",
    "weights": "weights",
    "IO": "io",
    "spill/fill": "spill_fill",
}
_STATES = {
    "fits": ComparedAnswer("fits"),
    "over": ComparedAnswer("does not fit", BAD),
    "refused": ComparedAnswer("refused", BAD),
    "failed": ComparedAnswer("failed", OPEN),
}


def sweep_subjects(sweep: SweepResult) -> Iterator[ResultSubject]:
    """Yield a subject for each setting of a sweep."""
    for row in sweep.rows:
        sizes = {name: getattr(row, field) for name, field in _SWEPT.items()}
        only_bound = row.pd_low is not None and row.pd_low != row.pd_need
        yield ResultSubject(
            SWEEP,
            sweep.file,
            ", ".join(f"{name}={value}" for name, value in row.setting.items()),
            pools={name: size for name, size in sizes.items() if size is not None},
            at_most=frozenset(["process domain"] if only_bound else []),
            answers={"file": _STATES[row.state]},
            settings={"SoC": sweep.soc, "library": sweep.library, "tool": sweep.tool},
        )


# --- Logs ----------------------------------------------------------------------------------------


def log_subjects(result: DoctorResult) -> Iterator[ResultSubject]:
    """Yield one subject for all logs that were read together."""
    missing: dict[str, int] = {}
    answers: dict[str, ComparedAnswer] = {}
    for incident in result.incidents:
        question = f"{incident.stage} stage, {incident.cause}"
        is_open = incident.verdict == "undecided"
        answers[question] = ComparedAnswer("seen", OPEN if is_open else BAD)
        if incident.shortage_bytes is not None:
            if abs(incident.shortage_bytes) > MAX_COUNT:  # a log may print any number
                raise UsageError(
                    "the log cannot be compared: it states more missing bytes than any device has"
                )
            pool = f"missing: {incident.cause}"
            missing[pool] = max(missing.get(pool, 0), incident.shortage_bytes)
    more = f" and {len(result.files) - 1} more" if len(result.files) > 1 else ""
    yield ResultSubject(
        LOG,
        f"{result.files[0]}{more}" if result.files else "",
        pools=missing,
        answers=answers,
        unasked=ComparedAnswer("not seen", GOOD),
        settings={"tool": result.tool},
    )


# --- Budgets -------------------------------------------------------------------------------------

CHECK = "check of budgets"
_CODE_RANKS = {0: GOOD, 1: BAD, 2: NONE, 3: OPEN}  # by exit code


def check_subjects(result: CheckResult) -> Iterator[ResultSubject]:
    """Yield a subject for each model on each target."""
    for model in result.models:
        yield ResultSubject(
            CHECK,
            model.name,
            pools=model.pools,
            at_most=frozenset(model.at_most),
            answers={"file": ComparedAnswer(model.answer, _CODE_RANKS[model.exit_code])},
            limits={
                f"{'budget' if check.budget else 'limit'} of {check.pool}": check.have_bytes
                for check in model.checks
                if check.have_bytes is not None
            },
            has_all_tensors=False,
        )


def baseline_subjects(baseline: Baseline) -> Iterator[ResultSubject]:
    """Yield a subject for each model with its accepted sizes."""
    yield from (accepted_subject(name, model) for name, model in baseline.models.items())


def accepted_subject(name: str, model: AcceptedModel) -> ResultSubject:
    """Return a subject with the accepted pool sizes of a model and the tensors at its peak."""
    return ResultSubject(
        CHECK,
        name,
        pools=model.pools,
        at_most=frozenset(model.at_most or ()),
        tensors={tensor: SubjectTensor("peak", size) for tensor, size in model.peak.items()},
        # Without accepted tensors, the tensors of the other side must not count as new.
        has_all_tensors=bool(model.peak),
        settings=model.settings,
    )


_KINDS: Mapping[type, Callable[[Any], Iterator[ResultSubject]]] = {
    PlanResult: plan_subjects,
    TogetherResult: together_subjects,
    Bill: bill_subjects,
    FitResult: fit_subjects,
    FixedModel: fix_subjects,
    DoctorResult: log_subjects,
    InspectedBinary: binary_subjects,
    SweepResult: sweep_subjects,
    CheckResult: check_subjects,
    Baseline: baseline_subjects,
}
# Results of several files, and the kind of their subjects.
_SEVERAL: Mapping[type, str] = {PlansResult: LPAI, FitsResult: HTP, FixedModels: FIX}
COMPARED = tuple(map(schema_name, (*_KINDS, *_SEVERAL)))
