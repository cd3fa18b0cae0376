"""Budgets of a project checked, as text; and rows of pools that every format shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qnnmem.flags import flag_word
from qnnmem.gate.checked import BASELINE, GROWN, BudgetRun, CheckedModel
from qnnmem.gate.keys import LPAI, TOTAL
from qnnmem.report.diff import signed, size
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.table import Column, text_table
from qnnmem.results.check import PoolCheck
from qnnmem.text import counted, shorten

_WIDE = 200
_SHOWN_BUDGETS = 4
_POOLS = (
    Column("pool", "<", 12),
    *(Column(title, ">", width, gap=0) for title, width in (("before", 15), ("now", 15))),
    Column("change", ">", 13, gap=0),
    Column("budget", ">", 15, gap=0),
    Column("", "<"),
)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool of a model as tables show it."""

    pool: str
    before: int | None
    now: int | None
    limit: int | None
    words: str  # what is wrong; empty where nothing is
    kind: str = ""  # budget, limit or baseline: what is broken
    is_changed: bool = False

    @property
    def delta(self) -> int | None:
        """Bytes more than the baseline has."""
        known = self.before is not None and self.now is not None
        return self.now - self.before if known else None  # type: ignore[operator]


def pool_rows(model: CheckedModel) -> tuple[PoolRow, ...]:
    """Every pool with its number before, now, and what it may be."""
    checks = {one.pool: one for one in model.checks}
    before = {one.pool: one for one in model.change.pools} if model.change else {}
    rows = []
    for pool in dict.fromkeys((*checks, *model.pools)):
        check, change = checks.get(pool), before.get(pool)
        words, kind = broken_words(check) if check is not None else ("", "")
        if not words and change is not None and change.worse:
            words, kind = GROWN, BASELINE
        now = model.pools.get(pool, None if check is None else check.need_bytes)
        rows.append(
            PoolRow(
                pool,
                None if change is None else change.before_bytes,
                now,
                None if check is None else check.have_bytes,
                words,
                kind,
                is_changed=change is not None and bool(change.change_bytes),
            )
        )
    return tuple(rows)


def broken_words(check: PoolCheck) -> tuple[str, str]:
    """What is wrong with a pool, and whether a budget or a limit says so."""
    kind = "budget" if check.budget else "limit"
    if check.fits is False:
        if check.over_bytes:
            return f"{check.over_bytes:,} over", kind
        crowd = check.allocations
        if crowd is None:
            return "refused", kind
        return f"{crowd.needed} allocations, {crowd.possible} possible", kind
    return ("", "") if check.fits else ("cannot tell", kind)


def _spare(model: CheckedModel) -> str:
    """How much of each budget is taken, where all is well."""
    if model.exit_code:
        return ""
    budgets = [one for one in model.checks if one.budget][:_SHOWN_BUDGETS]
    said = (f"{one.pool} {size(one.need_bytes)} of {size(one.have_bytes)}" for one in budgets)
    return f", {', '.join(said)}" if budgets else ""


def render_text(run: BudgetRun, *, verbose: bool = False, given: Sequence[str] = ()) -> str:
    """The verdict, then each model with the pools that matter; `given` are options to repeat."""
    lines = [run.verdict, ""]
    for model in run.models:
        lines += _model_lines(model, verbose)
    lines += ["", *_baseline_lines(run), *_next_lines(run, given)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _model_lines(model: CheckedModel, verbose: bool) -> Iterator[str]:
    yield f"{shorten(model.name, _WIDE)}: {shorten(model.answer, 400)}{_spare(model)}"
    all_rows = pool_rows(model)
    rows = [row for row in all_rows if verbose or row.words or row.is_changed]
    if rows:
        yield from text_table(_POOLS, map(_cells, rows), indent="  ")
    for check in model.broken:
        if check.blockers:
            also = f", and {counted(check.alike, 'other')} like it" if check.alike else ""
            names = ", ".join(map(shorten, check.blockers[:5]))
            yield f"  in the way of {check.pool}: {names}{also}"
    if model.change and (model.grown or verbose):
        for tensor in model.change.tensors[:5]:
            change = signed(tensor.change_bytes)
            yield f"  at the peak {change:>9}  {tensor.change:<9} {shorten(tensor.name)}"
    for changed in model.change.settings if model.change else ():
        yield f"  note: {changed.name} was {changed.before}, now {changed.after}"


def _cells(row: PoolRow) -> Sequence[str]:
    sizes = size(row.before), size(row.now), signed(row.delta), size(row.limit)
    return row.pool, *sizes, row.words


def _baseline_lines(run: BudgetRun) -> Iterator[str]:
    if run.is_updated:
        yield f"baseline written: {shorten(run.baseline or '', _WIDE)}"
        if run.gone:
            yield f"note: no longer in the baseline: {_some(run.gone)}"
        return
    if run.baseline is not None and not run.has_baseline:
        name = shorten(run.baseline, _WIDE)
        yield f"note: there is no {name} yet, so nothing is compared"
    if run.new:
        yield f"note: not in the baseline: {_some(run.new)}"
    if run.gone:
        yield f"note: in the baseline and not checked: {_some(run.gone)}"


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(map(shorten, names[:5])) + more


def _next_lines(run: BudgetRun, given: Sequence[str]) -> Iterator[str]:
    yield from _budget_lines(run)
    words = ["qnnmem", "check", *given]
    broken = sorted((one for one in run.models if one.broken), key=lambda one: one.plan is None)
    if broken:  # which no baseline makes good
        yield _next_for(broken[0])
    elif any(one.grown for one in run.models) or (run.new and not run.is_updated):
        yield next_line("if these numbers are meant", words, "--update-baseline")
    elif run.baseline is not None and not run.has_baseline and not run.is_updated:
        yield next_line("keep these numbers as the baseline", words, "--update-baseline")


def _next_for(over: CheckedModel) -> str:
    """The command that changes the model until its budgets hold, or says more of a broken one."""
    file, given = file_word(over.place), map(flag_word, over.given)
    if fix := _fix_words(over):
        return next_line("search for a change that fits", fix)
    if over.plan is not None:
        return next_line("what sets the peak", ["qnnmem", "plan", file, *given, "-v"])
    if over.target.lower() == LPAI:
        return next_line("what it was prepared with", ["qnnmem", "inspect", file])
    words = ["qnnmem", "fit", file, f"--soc={over.target}", *given]
    return next_line("which limit it breaks", words)


def _fix_words(over: CheckedModel) -> list[str]:
    """The command that fixes a model; none for files and pools that `fix` does not change."""
    budgets = {one.pool: one.have_bytes for one in over.checks if one.budget}
    if not over.place.lower().endswith(".onnx") or TOTAL in budgets:
        return []
    words = ["qnnmem", "fix", file_word(over.place)]
    if over.target.lower() != LPAI:
        words += ["--backend=htp", f"--soc={over.target}"]
    words += [f"--budget={pool}={have}" for pool, have in budgets.items()]
    kept = (one for one in over.given if one.name not in ("budget", "inplace", "reorder"))
    return [*words, *map(flag_word, kept), *output_words("fixed")]


def _budget_lines(run: BudgetRun) -> Iterator[str]:
    """How a budget is written, where there is none at all; today's numbers are one that holds."""
    sizes = [model.pools["scratch"] for model in run.models if "scratch" in model.pools]
    if run.exit_code or not sizes or any(model.checks for model in run.models):
        return
    kib = -(-max(sizes) // 1024)
    where = "below [tool.qnnmem]" if run.config.endswith("pyproject.toml") else "at the top"
    name = shorten(run.config, _WIDE)
    yield f'write a budget into {name}, {where}: budget = {{ scratch = "{kib}K" }}'
