"""Plans, LPAI binaries and what `fix` came to, as subjects."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.gate.subject import (
    FIX,
    LPAI,
    OPEN,
    ComparedAnswer,
    ResultSubject,
    fit_answer,
    tensors_by_name,
)
from qnnmem.results.fix import FixedModel
from qnnmem.results.inspect import InspectedBinary
from qnnmem.results.plan import PlanResult


def plan_subjects(plan: PlanResult) -> Iterator[ResultSubject]:
    """A plan."""
    pools = plan.pools
    answers = {"file": ComparedAnswer("planned")}
    if plan.budgets:
        answers["all budgets"] = fit_answer(plan.fits)
        answers |= {f"budget of {one.pool}": fit_answer(one.fits) for one in plan.budgets}
    if plan.tcm is not None:
        pools["tcm"] = plan.tcm.need_bytes
        answers["TCM"] = fit_answer(plan.tcm.fits)
    # A plan without a proof may be as good: worth a line, no reason to fail.
    answers["proof"] = ComparedAnswer(plan.scope.value)
    yield ResultSubject(
        LPAI,
        plan.input,
        pools=pools,
        counted={"constants": "those of the model", "tcm": "constants and IO"},
        tensors=tensors_by_name((one.name, one.pool, one.size_bytes) for one in plan.buffers),
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


def binary_subjects(binary: InspectedBinary) -> Iterator[ResultSubject]:
    """Each graph of an LPAI binary."""
    for graph in binary.graphs:
        tcm = graph.tcm
        yield ResultSubject(
            LPAI,
            "",
            graph.name if len(binary.graphs) > 1 else "",
            pools=graph.pools if tcm is None else {**graph.pools, "tcm": tcm.need_bytes},
            counted={
                "constants": "all that the program reads",
                "tcm": "the finished binary and IO",
            },
            tensors=tensors_by_name((one.name, one.pool, one.size) for one in graph.buffers),
            answers={} if tcm is None else {"TCM": fit_answer(tcm.fits)},
            settings={
                "alignment": str(graph.align),
                "IO": f"{graph.io} scratch",
                "tool": binary.tool,
            },
        )


def fix_subjects(fix: FixedModel) -> Iterator[ResultSubject]:
    """What the best remedy came to."""
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
