"""Render a plan as a page section: verdict, deciding pool, suggestions, pools, map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qnnmem.report.page.charts import Bar, bars, line
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.htp import file_name
from qnnmem.report.page.markup import Html, answer, badge, command, details, lines, table, tag
from qnnmem.report.page.memory_map import drawn, memory_map
from qnnmem.report.shell import command_line, file_word
from qnnmem.results.plan import PlanBudget, PlanBuffer, PlanResult
from qnnmem.results.proof import ProofScope
from qnnmem.results.together import TogetherResult
from qnnmem.text import shorten
from qnnmem.units import format_size

_LABELS = {
    "scratch": "scratch",
    "persistent": "persistent",
    "io": "inputs and outputs",
    "constants": "constants",
    "tcm": "TCM",
}
_NAMED = 3  # tensors named in a sentence


def plan_section(plan: PlanResult) -> PageSection:
    """Return a section with all numbers of a plan, the verdict first."""
    return PageSection(
        f"Plan of {file_name(plan.input)}",
        lines(
            [
                *(tag("p", line) for line in plan.holds_for),
                _answer(plan),
                _pools(plan),
                *_deciding(plan),
                memory_map(
                    plan.map,
                    budget=plan.limits.get("scratch"),
                    above=lines(_changes(plan)),
                    below=lines(_live(plan)),
                ),
                *_tcm(plan),
                *(tag("p", note) for note in plan.notes),
                provenance(plan),
            ]
        ),
        has_map=True,
    )


def together_section(result: TogetherResult) -> PageSection:
    """Return a section about models that share pools: assumptions, offsets, map."""
    rows = [
        (model.name, model.scratch_bytes, model.scratch_offset, model.persistent_bytes)
        for model in result.models
    ]
    titles = ("model", "scratch, bytes", "from byte", "persistent, bytes")
    summary = result.summary
    return PageSection(
        f"{len(result.models)} models together",
        lines(
            [
                answer(result.fits, summary)
                if result.budgets
                else tag("p", summary, class_="answer"),
                tag("p", result.assumed),
                table(titles, rows),
                memory_map(result.map, "Offset of each model in the shared pools"),
            ]
        ),
        has_map=True,
    )


def _answer(plan: PlanResult) -> Html:
    need = format_size(plan.scratch_bytes)
    scratch = f"scratch takes {need} ({plan.scratch_bytes:,} bytes), {plan.proof_words}"
    if not plan.budgets and plan.fits is not False:
        return tag("p", scratch, class_="answer")
    tcm = plan.tcm
    if not plan.budgets and tcm is not None:
        crowd = f"{tcm.buffers:,} allocations, but TCM allows only {tcm.max_buffers:,}"
        return answer(False, crowd)
    rest = "" if "scratch" in plan.limits else f"; {scratch}"
    return answer(plan.fits, _budget_words(plan, _by_need(plan)[0]) if plan.budgets else "", rest)


def _by_need(plan: PlanResult) -> list[PlanBudget]:
    """Return the budgets: broken, undecided, then kept ones; in each group, the tightest first."""
    order = {False: 0, None: 1, True: 2}
    return sorted(plan.budgets, key=lambda b: (order[b.fits], -b.need_bytes / max(b.have_bytes, 1)))


def _budget_words(plan: PlanResult, budget: PlanBudget) -> str:
    pool, have = _LABELS[budget.pool], format_size(budget.have_bytes)
    verb = "" if budget.pool in ("io", "constants") else "s"
    need = format_size(budget.need_bytes)
    if budget.fits:
        left = format_size(budget.have_bytes - budget.need_bytes)
        return f"{pool} take{verb} {need} of {have}, {left} left{plan.scope.basis}"
    over = format_size(budget.need_bytes - budget.have_bytes)
    if budget.fits is None:
        least = format_size(budget.at_least_bytes)
        return (
            f"{pool} needs {least} to {need}, the limit is {have}; the search ended before "
            "it could decide"
        )
    words = f"{pool} need{verb} {need}, {over} over the limit of {have}{plan.scope.basis}"
    if plan.scope is ProofScope.UPPER_BOUND and budget.pool == "scratch":
        words += "; branch and loop bodies are planned separately, so fewer bytes might be enough"
    if budget.at_least_bytes < budget.need_bytes:
        words += f"; any plan needs at least {budget.at_least_bytes:,} bytes"
    return words


def _deciding(plan: PlanResult) -> Iterator[Html]:
    """Yield the largest tensors of the deciding pool; nothing for scratch, which the map shows."""
    first = next(iter(_by_need(plan)), None)
    if first is not None and first.pool != "scratch" and first.blockers:
        sizes = list(zip(first.blockers, first.blocker_bytes, strict=False))
        named = [f"{shorten(name)} {format_size(size)}" for name, size in sizes[:_NAMED]]
        more = f" and {len(sizes) - len(named):,} more" if len(sizes) > len(named) else ""
        yield tag("p", f"Largest of {_LABELS[first.pool]}: {', '.join(named)}{more}.")


def _changes(plan: PlanResult) -> Iterator[Html]:
    """Yield the most helpful option, or the command that searches for a change."""
    best = next((remedy for remedy in plan.remedies or () if remedy.fits), None)
    best = best or next(iter(plan.remedies or ()), None)
    if best is not None:
        then = "which fits" if best.fits else "still over the limit"
        size = format_size(best.need_bytes)
        lossy = "; fewer bits change the results" if "--bits" in " ".join(best.options) else ""
        yield tag("p", f"With these options {_LABELS[best.pool]} takes {size}, {then}{lossy}:")
        options = [word for option in best.options for word in option.split(" ")]
        yield command(_again(plan, "plan", options) or " ".join(options))
    is_onnx = plan.input.lower().endswith(".onnx") and not plan.seen_as and not plan.holds_for
    lacking = set(plan.lacking)
    is_met = best is not None and best.fits
    if not lacking or is_met or not is_onnx or "persistent" in lacking:
        return
    pasted = _again(plan, "fix", ["-o", "fixed"])
    if pasted:
        yield tag("p", "Search for a change that makes the model fit:")
        yield command(pasted)


def _again(plan: PlanResult, verb: str, options: Sequence[str]) -> str:
    """Return a command of `verb` with the plan's model and budgets; empty if settings are unknown.

    They are unknown if the plan used input values or state, which a result does not store.
    """
    if plan.holds_for or plan.persistent_bytes:
        return ""
    known = {buffer.name: buffer.shape.partition(" ")[0] for buffer in plan.buffers}
    shapes = {name: known.get(name, "") for name in plan.inputs}
    words = [f"--shape={name}={shape}" for name, shape in shapes.items() if "x" in shape]
    words += [f"--budget={pool}={have}" for pool, have in plan.limits.items()]
    words += ["--io=outside"] if plan.io == "outside" and plan.ops else []
    words += [] if plan.bits is None or "--bits" in options else [f"--bits={plan.bits}"]
    return command_line(["qnnmem", verb, file_word(plan.input), *words, *options])


def _pools(plan: PlanResult) -> Html:
    have, pools = plan.limits, plan.pools
    rows = [
        Bar(_LABELS[pool], [(pool, need)], have.get(pool), 0, _origin(plan, pool), "given")
        for pool, need in pools.items()
    ]
    if plan.io == "inside" and plan.ops:
        rows[0] = replace(rows[0], label="scratch, with IO")
    if sum(need > 0 for need in pools.values()) > 1:
        rows.append(Bar("all together", list(pools.items())))
    if plan.tcm is not None and _asks_tcm(plan):
        rows += _tcm_bars(plan)
    shown = [row for row in rows if row.total or row.limit]
    return bars(shown, "Bytes of each pool")


def _tcm_bars(plan: PlanResult) -> Iterator[Bar]:
    tcm = plan.tcm
    if tcm is not None:
        pieces = [("constants", plan.constant_bytes)]
        pieces.append(("io", max(0, tcm.need_bytes - plan.constant_bytes)))
        source = plan.origins.get("tcm.limit_bytes", "")
        yield Bar("TCM: model and IO", pieces, tcm.limit_bytes, 0, "computed", source)
        if "tcm" in plan.limits:
            yield Bar("budget for TCM", pieces, plan.limits["tcm"], 0, "computed", "given")


def _asks_tcm(plan: PlanResult) -> bool:
    """Return True if TCM matters: there is a TCM budget, an LPAI file, or too many allocations."""
    crowded = plan.tcm is not None and plan.tcm.is_crowded
    return crowded or "tcm" in plan.limits or plan.input.lower().endswith(".eaix")


def _origin(plan: PlanResult, pool: str) -> str:
    return plan.origins.get(f"{'constant' if pool == 'constants' else pool}_bytes", "")


def _live(plan: PlanResult) -> Iterator[Html]:
    points = list(live_bytes([buffer for buffer in drawn(plan.map) if buffer.pool != "persistent"]))
    limits = [(f"scratch, {plan.scope.value}", plan.scratch_bytes)]
    if plan.scope is ProofScope.NONE:
        limits.append(("lower bound for this order", plan.lower_bound_bytes))
    budgets = [have for pool, have in plan.limits.items() if pool == "scratch"]
    limits += [("budget", have) for have in budgets if have <= 2 * plan.scratch_bytes]
    if points:
        yield tag("h3", "Bytes alive at each step")
        yield line(points, "Bytes alive at each step", limits, unit="step", stepped=True)


def live_bytes(buffers: Sequence[PlanBuffer]) -> Iterator[tuple[int, int]]:
    """Yield each step at which the number of live bytes changes, with the new number."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.lower] = changes.get(buffer.lower, 0) + buffer.size_bytes
        changes[buffer.upper] = changes.get(buffer.upper, 0) - buffer.size_bytes
    total = 0
    for step in sorted(changes):
        total += changes[step]
        yield step, total


def _tcm(plan: PlanResult) -> Iterator[Html]:
    """Yield the TCM verdict and its numbers; both are collapsed unless TCM matters."""
    tcm = plan.tcm
    if tcm is None:
        return
    source = plan.origins.get("tcm.limit_bytes", "")
    rows = [
        ("bytes", tcm.need_bytes, "computed", tcm.limit_bytes, source),
        ("allocations", tcm.buffers, "computed", tcm.max_buffers, source),
    ]
    head = ("needed by model and IO", "needed", "origin", "there", "origin")
    numbers = table(head, rows)
    if _asks_tcm(plan):
        yield tag("h3", "TCM of aDSP direct mode ", badge(tcm.fits), plan.scope.basis)
        yield numbers
    else:
        yield details("On LPAI: TCM of aDSP direct mode", lines([badge(tcm.fits), numbers]))


def provenance(plan: PlanResult) -> Html:
    """Return a collapsible table with the origins of the numbers."""
    rows = [("file", plan.input), ("tool", plan.tool), ("alignment", f"{plan.align_bytes} bytes")]
    rows.append(("inputs and outputs", f"{plan.io} scratch"))
    rows.append(("bits", "as in the model" if plan.bits is None else str(plan.bits)))
    rows.append(("planned in", f"{plan.seconds:.3f} s"))
    rows += sorted(plan.origins.items())
    return details("Where the numbers come from", table(("what", "from"), rows))
