"""Budgets of a project checked, as text and as JSON of schema `qnnmem.check/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qnnmem.flags import flag_word
from qnnmem.gate.changes import PoolChange
from qnnmem.gate.checked import BROKEN, NOT_READ, OPEN, BudgetRun, CheckedModel, CheckedPool
from qnnmem.gate.pools import LPAI, TOTAL
from qnnmem.report.diff import signed, subject_values
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.tcm import too_many
from qnnmem.results.schema import write_json
from qnnmem.text import counted, shorten

SCHEMA = "qnnmem.check/1"
_NAMED = 3  # models that the verdict names
_WIDE = 200
_SHOWN_BUDGETS = 4
_TITLES = {NOT_READ: "not checked", BROKEN: "does not fit", OPEN: "cannot tell"}
# What is said of a model without an answer, and the name of that in every format.
REFUSALS = {
    NOT_READ: (_TITLES[NOT_READ], "not-checked"),
    BROKEN: ("cannot be compiled", "not-compiled"),
    OPEN: (_TITLES[OPEN], "cannot-tell"),
}
GROWN = "worse than the baseline"
WORSE = "worse-than-baseline"  # the same as build servers know it, in every format
_REFUSED = "is refused by the library"


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
        if not words and change is not None and change.is_worse:
            words, kind = GROWN, "baseline"
        now = model.pools.get(pool, None if check is None else check.need)
        rows.append(
            PoolRow(
                pool,
                None if change is None else change.before,
                now,
                None if check is None else check.have,
                words,
                kind,
                is_changed=change is not None and bool(change.delta),
            )
        )
    return tuple(rows)


def broken_words(check: CheckedPool) -> tuple[str, str]:
    """What is wrong with a pool, and whether a budget or a limit says so."""
    kind = "budget" if check.is_budget else "limit"
    if check.fits is False:
        if check.over or check.allocations is None:
            return (f"{check.over:,} over" if check.over else "refused"), kind
        return "{} allocations, {} possible".format(*check.allocations), kind
    return ("", "") if check.fits else ("cannot tell", kind)


def answer(model: CheckedModel) -> str:
    """The answer about one model in a few words."""
    if model.refusal:
        return f"{REFUSALS[model.refusal][0]}: {model.why}"
    by = "" if model.plan is None else model.plan.proof.basis
    if model.broken:
        return f"{_TITLES[BROKEN]}{by}"
    if model.grown:
        return GROWN
    if model.exit_code == OPEN:
        return f"{_TITLES[OPEN]}: {model.why}" if model.why else _TITLES[OPEN]
    return f"fits{by}" if model.checks else "no budget"


def _spare(model: CheckedModel) -> str:
    """How much of each budget is taken, where all is well."""
    if model.exit_code:
        return ""
    budgets = [one for one in model.checks if one.is_budget][:_SHOWN_BUDGETS]
    said = (f"{one.pool} {size(one.need)} of {size(one.have)}" for one in budgets)
    return f", {', '.join(said)}" if budgets else ""


def reasons(model: CheckedModel) -> Iterator[str]:
    """Everything that is wrong with a model, a sentence each."""
    for check in model.broken:
        if not check.over:
            crowd = check.allocations
            yield f"{check.pool}: {too_many(*crowd)}" if crowd else f"{check.pool} {_REFUSED}"
            continue
        what = "budget" if check.is_budget else "limit"
        extra = "" if check.at_least in (None, check.need) else " at least"
        planned = model.plan if check.pool == "scratch" else None
        scope = "" if planned is None else f" ({planned.proof.value})"
        largest = f"; largest: {', '.join(map(shorten, check.blockers))}" if check.blockers else ""
        yield (
            f"{check.pool} needs {counted(check.need or 0, 'byte')}{scope},{extra} "
            f"{check.over:,} over "
            f"its {what} of {check.have:,}{largest}"
        )
    yield from map(grown_words, model.grown)
    if model.refusal or model.exit_code == OPEN:
        yield answer(model)


def grown_words(change: PoolChange) -> str:
    """That a pool grew, and by how much."""
    return (
        f"{change.pool} takes {size(change.after)} bytes, {change.delta:,} more than the baseline"
    )


def verdict(run: BudgetRun) -> str:
    """One line about all models."""
    total, code = len(run.models), run.exit_code
    if code == 0:
        asked = sum(bool(model.checks) for model in run.models)
        if not asked:
            same = ", and none is worse than the baseline" if run.has_baseline else ""
            return f"no budgets: {counted(total, 'model')} planned, none has a limit{same}"
        rest = "" if asked == total else f", {total - asked} without a budget"
        base = ", none worse than the baseline" if run.has_baseline else ""
        return f"fits: {asked} of {_counted_models(run)}{rest}{base}"
    parts = []
    for title, models in _groups(run):
        names = [shorten(model.name) for model in models]
        more = ", …" if len(names) > _NAMED else ""
        parts.append(f"{title}: {len(names)} of {total} ({', '.join(names[:_NAMED])}{more})")
    return ", ".join(parts)


def _groups(run: BudgetRun) -> Iterator[tuple[str, Sequence[CheckedModel]]]:
    broken = [one for one in run.models if one.exit_code == BROKEN]
    groups = (
        (_TITLES[NOT_READ], [one for one in run.models if one.exit_code == NOT_READ]),
        (_TITLES[BROKEN], [one for one in broken if one.broken]),
        (REFUSALS[BROKEN][0], [one for one in broken if one.refusal]),
        (GROWN, [one for one in broken if not one.broken and not one.refusal]),
        (_TITLES[OPEN], [one for one in run.models if one.exit_code == OPEN]),
    )
    return ((title, models) for title, models in groups if models)


def render_text(run: BudgetRun, *, verbose: bool = False, given: Sequence[str] = ()) -> str:
    """The verdict, then each model with the pools that matter; `given` are options to repeat."""
    lines = [verdict(run), ""]
    for model in run.models:
        lines += _model_lines(model, verbose)
    lines += ["", *_baseline_lines(run), *_next_lines(run, given)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _model_lines(model: CheckedModel, verbose: bool) -> Iterator[str]:
    yield f"{shorten(model.name, _WIDE)}: {shorten(answer(model), 400)}{_spare(model)}"
    all_rows = pool_rows(model)
    rows = [row for row in all_rows if verbose or row.words or row.is_changed]
    if rows:
        head = f"{'before':>15}{'now':>15}{'change':>13}{'budget':>15}"
        yield f"  {'pool':<12}{head}"
        yield from map(_row, rows)
    for check in model.broken:
        if check.blockers:
            also = f", and {counted(check.alike, 'other')} like it" if check.alike else ""
            names = ", ".join(map(shorten, check.blockers[:5]))
            yield f"  in the way of {check.pool}: {names}{also}"
    if model.change and (model.grown or verbose):
        for tensor in model.change.tensors[:5]:
            size = signed(tensor.delta)
            yield f"  at the peak {size:>9}  {tensor.change:<9} {shorten(tensor.name)}"
    for changed in model.change.settings if model.change else ():
        yield f"  note: {changed.name} was {changed.before}, now {changed.after}"


def _row(row: PoolRow) -> str:
    numbers = f"{size(row.before):>15}{size(row.now):>15}{signed(row.delta):>13}"
    return f"  {row.pool:<12}{numbers}{size(row.limit):>15}  {row.words}".rstrip()


def size(value: int | None) -> str:
    """A number of bytes; a dash for none."""
    return "-" if value is None else f"{value:,}"


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
    budgets = {one.pool: one.have for one in over.checks if one.is_budget}
    if not over.place.lower().endswith(".onnx") or TOTAL in budgets:
        return []
    words = ["qnnmem", "fix", file_word(over.place)]
    if over.target.lower() != LPAI:
        words += ["--backend=htp", f"--soc={over.target}"]
    words += [f"--budget={pool}={have}" for pool, have in budgets.items()]
    kept = (one for one in over.given if one.name not in ("budget", "inplace", "reorder"))
    return [*words, *map(flag_word, kept), *output_words("fixed")]


def _counted_models(run: BudgetRun) -> str:
    """How many results there are; a model has one for each SoC or graph."""
    total, files = len(run.models), len({one.file for one in run.models})
    models = counted(files, "model")
    return models if total == files else f"{counted(total, 'check')} of {models}"


def _budget_lines(run: BudgetRun) -> Iterator[str]:
    """How a budget is written, where there is none at all; today's numbers are one that holds."""
    sizes = [model.pools["scratch"] for model in run.models if "scratch" in model.pools]
    if run.exit_code or not sizes or any(model.checks for model in run.models):
        return
    kib = -(-max(sizes) // 1024)
    where = "below [tool.qnnmem]" if run.config.endswith("pyproject.toml") else "at the top"
    name = shorten(run.config, _WIDE)
    yield f'write a budget into {name}, {where}: budget = {{ scratch = "{kib}K" }}'


def render_json(run: BudgetRun) -> str:
    """One JSON object."""
    return write_json(as_values(run))


def as_values(run: BudgetRun) -> dict[str, Any]:
    """The object behind the JSON text."""
    codes = [model.exit_code for model in run.models]
    return {
        "schema": SCHEMA,
        "config": run.config,
        "exit_code": run.exit_code,
        "verdict": verdict(run),
        "counts": {
            "models": len(codes),
            "good": codes.count(0),
            "broken": codes.count(BROKEN),
            "not_checked": codes.count(NOT_READ),
            "cannot_tell": codes.count(OPEN),
        },
        "baseline": {
            "file": run.baseline,
            "found": run.has_baseline,
            "updated": run.is_updated,
            "new": list(run.new),
            "gone": list(run.gone),
        },
        "models": [_model_values(model) for model in run.models],
    }


def _model_values(model: CheckedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "file": model.file,
        "target": model.target,
        "fits": model.fits,
        "exit_code": model.exit_code,
        "answer": answer(model),
        "reasons": list(reasons(model)),
        "pools": dict(model.pools),
        "at_most": list(model.at_most),
        "checks": [
            {
                "pool": one.pool,
                "need_bytes": one.need,
                "at_least_bytes": one.at_least,
                "have_bytes": one.have,
                "over_bytes": one.over,
                "fits": one.fits,
                "budget": one.is_budget,
                "blockers": list(one.blockers),
            }
            for one in model.checks
        ],
        "change": None if model.change is None else subject_values(model.change),
        "seconds": round(model.seconds, 6),
    }
