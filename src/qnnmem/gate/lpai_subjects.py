"""Plans, LPAI binaries and what `fix` came to, as subjects."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.gate.loose import FIX, LPAI, ComparedCount, LooseRead, tensors_by_name
from qnnmem.gate.subject import OPEN, ComparedAnswer, ResultSubject, fit_answer
from qnnmem.results.fix import FixedModel
from qnnmem.results.plan import PlanResult


class _ReadTcm(LooseRead, frozen=True):
    fits: bool
    need_bytes: ComparedCount


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


class _ReadBuffer(LooseRead, frozen=True):
    name: str
    pool: str
    size: ComparedCount


class _ReadGraph(LooseRead, frozen=True):
    name: str
    pools: dict[str, ComparedCount]
    buffers: list[_ReadBuffer]
    align: ComparedCount
    io: str
    tcm: _ReadTcm | None = None


class ReadBinary(LooseRead, frozen=True):
    """`qnnmem.inspect/1`."""

    graphs: list[_ReadGraph]
    tcm: _ReadTcm | None = None
    tool: str = ""


def binary_subjects(binary: ReadBinary) -> Iterator[ResultSubject]:
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
