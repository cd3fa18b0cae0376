"""Render a project's budget check as text, Markdown, SARIF, JUnit XML and GitHub annotations.

GitHub and GitLab remove inline SVG and `data:` images from Markdown. Therefore Markdown shows a
memory map as characters, and the drawing is a separate file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath

from qnnmem.flags import flag_word
from qnnmem.gate.checked import (
    BASELINE,
    BROKEN,
    GROWN,
    NOT_READ,
    OPEN,
    BudgetRun,
    CheckedModel,
    grown_words,
)
from qnnmem.gate.keys import LPAI, TOTAL
from qnnmem.planner import MemoryPlan
from qnnmem.planner.planned_file import plan_map
from qnnmem.report.diff import signed
from qnnmem.report.findings import (
    CiFinding,
    CiPlace,
    CiRule,
    JunitCase,
    JunitSuite,
    github_commands,
    junit_xml,
    sarif_log,
)
from qnnmem.report.plan_picture import draw, map_lines, svg_of
from qnnmem.report.shell import file_word, next_line, output_words
from qnnmem.report.table import Column, block, escape, markdown_table, text_table, thousands
from qnnmem.results.check import PoolCheck
from qnnmem.text import counted, lazy_pattern, shorten

_WIDE = 200
_SHOWN_BUDGETS = 4
_STEPS = 6  # accepted sizes in one line
_POOLS = (
    Column("pool", "<", 12),
    *(Column(title, ">", width, gap=0) for title, width in (("before", 15), ("now", 15))),
    Column("change", ">", 13, gap=0),
    Column("budget", ">", 15, gap=0),
    Column("", "<"),
)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """Table row about one pool of a model."""

    pool: str
    before: int | None
    now: int | None
    limit: int | None
    words: str  # the problem; empty without a problem
    kind: str = ""  # the broken limit: budget, limit or baseline
    is_changed: bool = False

    @property
    def sizes(self) -> tuple[str, str, str, str]:
        """Return four cells: size before, size now, change, limit; a dash for an unknown size."""
        known = self.before is not None and self.now is not None
        change = self.now - self.before if known else None  # type: ignore[operator]
        return thousands(self.before), thousands(self.now), signed(change), thousands(self.limit)


def pool_rows(model: CheckedModel) -> tuple[PoolRow, ...]:
    """Return a row for each pool: size before, size now, and limit."""
    checks = {check.pool: check for check in model.checks}
    before = {change.pool: change for change in model.change.pools} if model.change else {}
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
    """Return the problem of a pool and the word `budget` or `limit`; empty if the pool fits."""
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
    """Return need and budget of each pool of a model; empty if the model fails the check."""
    if model.exit_code:
        return ""
    budgets = [check for check in model.checks if check.budget][:_SHOWN_BUDGETS]
    needs = (f"{c.pool} {thousands(c.need_bytes)} of {thousands(c.have_bytes)}" for c in budgets)
    return f", {', '.join(needs)}" if budgets else ""


def render_text(run: BudgetRun, *, verbose: bool = False, options: Sequence[str] = ()) -> str:
    """Render the verdict, the models with their pools, and next commands that repeat `options`."""
    lines = [run.verdict, ""]
    for model in run.models:
        lines += _model_lines(model, verbose)
    lines += ["", *_history_lines(run), *_baseline_lines(run), *_next_lines(run, options)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _model_lines(model: CheckedModel, verbose: bool) -> Iterator[str]:
    yield f"{shorten(model.name, _WIDE)}: {shorten(model.answer, 400)}{_spare(model)}"
    all_rows = pool_rows(model)
    rows = [row for row in all_rows if verbose or row.words or row.is_changed]
    if rows:
        cells = ((row.pool, *row.sizes, row.words) for row in rows)
        yield from text_table(_POOLS, cells, indent="  ")
    for check in model.broken:
        if check.blockers:
            also = f", and {counted(check.alike, 'other')} of the same size" if check.alike else ""
            names = ", ".join(map(shorten, check.blockers[:5]))
            yield f"  cannot fit in {check.pool}: {names}{also}"
    if model.change and (model.grown or verbose):
        for tensor in model.change.tensors[:5]:
            change = signed(tensor.change_bytes)
            yield f"  at the peak {change:>9}  {tensor.change:<9} {shorten(tensor.name)}"
    for changed in model.change.settings if model.change else ():
        yield f"  note: {changed.name} was {changed.before}, now {changed.after}"


def _history_lines(run: BudgetRun) -> Iterator[str]:
    """Yield a line for each pool whose accepted size changed: earlier sizes, and today's size."""
    for model in run.models:
        for pool, now in model.pools.items():
            sizes = [state.models.get(model.name, {}).get(pool) for state in run.history]
            known = [size for size in sizes if size is not None]
            steps = [size for size, _ in groupby(known)]
            if len(steps) > 1:
                then = " -> ".join(f"{size:,}" for size in steps[-_STEPS:])
                name = shorten(model.name, _WIDE)
                yield f"accepted {pool} of {name}: {then} bytes, now {now:,}"


def _baseline_lines(run: BudgetRun) -> Iterator[str]:
    if run.is_updated:
        yield f"baseline written: {shorten(run.baseline or '', _WIDE)}"
        if run.gone:
            yield f"note: no longer in the baseline: {_some(run.gone)}"
        return
    if run.baseline is not None and not run.has_baseline:
        name = shorten(run.baseline, _WIDE)
        yield f"note: {name} does not exist yet, so nothing is compared"
    if run.new:
        yield f"note: not in the baseline: {_some(run.new)}"
    if run.gone:
        yield f"note: in the baseline but not checked: {_some(run.gone)}"


def _some(names: Sequence[str]) -> str:
    """Return up to five names in one text, with the number of names left out."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(map(shorten, names[:5])) + more


def _next_lines(run: BudgetRun, options: Sequence[str]) -> Iterator[str]:
    yield from _budget_lines(run)
    words = ["qnnmem", "check", *options]
    broken = [model for model in run.models if model.broken]
    if broken:  # a baseline cannot excuse a broken budget
        yield _next_for(min(broken, key=lambda model: model.plan is None))
    elif any(model.grown for model in run.models) or (run.new and not run.is_updated):
        yield next_line("accept these numbers", words, "--update-baseline")
    elif run.baseline is not None and not run.has_baseline and not run.is_updated:
        yield next_line("save these sizes as the baseline", words, "--update-baseline")


def _next_for(over: CheckedModel) -> str:
    """Return a line with the next command: `fix`, else a command that explains the failure."""
    file, options = file_word(over.place), map(flag_word, over.given)
    if fix := _fix_words(over):
        return next_line("search for a change that fits", fix)
    if over.plan is not None:
        return next_line("show what sets the peak", ["qnnmem", "plan", file, *options, "-v"])
    if over.target.lower() == LPAI:
        return next_line("show its settings", ["qnnmem", "inspect", file])
    words = ["qnnmem", "fit", file, f"--soc={over.target}", *options]
    return next_line("show the broken limit", words)


def _fix_words(over: CheckedModel) -> list[str]:
    """Return the `fix` command for a model; empty if `fix` cannot take the file or a budget."""
    budgets = {check.pool: check.have_bytes for check in over.checks if check.budget}
    if not over.place.lower().endswith(".onnx") or TOTAL in budgets:
        return []
    words = ["qnnmem", "fix", file_word(over.place)]
    if over.target.lower() != LPAI:
        words += ["--backend=htp", f"--soc={over.target}"]
    words += [f"--budget={pool}={have}" for pool, have in budgets.items()]
    kept = (s for s in over.given if s.name not in ("budget", "inplace", "reorder"))
    return [*words, *map(flag_word, kept), *output_words("fixed")]


def _budget_lines(run: BudgetRun) -> Iterator[str]:
    """Yield a line that suggests a scratch budget from today's sizes if no model has a limit."""
    sizes = [model.pools["scratch"] for model in run.models if "scratch" in model.pools]
    if run.exit_code or not sizes or any(model.checks for model in run.models):
        return
    kib = -(-max(sizes) // 1024)
    where = "below [tool.qnnmem] in" if run.config.endswith("pyproject.toml") else "at the top of"
    name = shorten(run.config, _WIDE)
    yield f'add a budget {where} {name}: budget = {{ scratch = "{kib}K" }}'


_WORSE = "worse-than-baseline"
_RULES = {
    rule.id: rule
    for rule in (
        CiRule("budget-broken", "A pool is over its budget", "error"),
        CiRule("limit-broken", "A pool is over a limit of the SoC", "error"),
        CiRule(_WORSE, "A pool grew beyond the baseline", "error"),
        CiRule("not-checked", "A model cannot be read", "error"),
        CiRule("not-compiled", "The library refuses to compile a model", "error"),
        CiRule("cannot-tell", "A check cannot be decided", "warning"),
    )
}
# SARIF rule of a model without a verdict
_REFUSALS = {NOT_READ: "not-checked", BROKEN: "not-compiled", OPEN: "cannot-tell"}


def render_sarif(run: BudgetRun) -> str:
    """Render a SARIF log with a result for each finding."""
    invocation = {"executionSuccessful": True, "exitCode": run.exit_code}
    return sarif_log(tuple(_RULES.values()), findings(run), invocation)


def render_github(run: BudgetRun) -> str:
    """Render a GitHub annotation for each finding, next to the changed line."""
    return github_commands(findings(run), run.verdict)


def render_junit(run: BudgetRun) -> str:
    """Render JUnit XML: a test suite for each model with a test case for each budget."""
    suites = [JunitSuite(model.name, tuple(_cases(model)), model.seconds) for model in run.models]
    return junit_xml(suites, "qnnmem check")


def findings(run: BudgetRun) -> Iterator[CiFinding]:
    """Yield a finding for each broken budget, grown pool and unchecked model."""
    for model in run.models:
        rules = [
            ("budget-broken" if check.budget else "limit-broken", check.pool)
            for check in model.broken
        ]
        rules += [(_WORSE, change.pool) for change in model.grown]
        rules += [(_REFUSALS[model.refusal or OPEN], "")] * (len(model.reasons) - len(rules))
        for (rule, pool), reason in zip(rules, model.reasons, strict=True):
            yield CiFinding(
                rule,
                _RULES[rule].level,
                reason,
                _place(model.place),
                (_place(run.config, model.line or 1),),
                subject=model.name,
                fingerprint=f"{model.name}:{rule}:{pool}",
                properties={"target": model.target, "answer": model.answer},
            )


def _place(file: str, line: int = 1) -> CiPlace:
    return CiPlace(file, line, shorten(file, 200))


def _cases(model: CheckedModel) -> Iterator[JunitCase]:
    """Yield a test case for each pool with a limit; case names hold no numbers, to stay stable."""
    if model.refusal:
        yield JunitCase("is checked", "error", _REFUSALS[model.refusal], model.answer)
        return
    budgets = {check.pool for check in model.checks if check.budget}
    reasons = {check.pool: why for check, why in zip(model.broken, model.reasons, strict=False)}
    for row in pool_rows(model):
        name = f"{row.pool} within its {'budget' if row.pool in budgets else 'limit'}"
        if row.words == "cannot tell":
            yield JunitCase(name, "error", "cannot-tell", model.why or row.words)
        elif row.kind in ("budget", "limit"):
            yield JunitCase(name, "failure", f"{row.kind}-broken", reasons[row.pool])
        elif row.limit is not None:
            yield JunitCase(name)
        if row.before is not None:
            name = f"{row.pool} no worse than the baseline"
            grown = [grown_words(change) for change in model.grown if change.pool == row.pool]
            yield JunitCase(name, "failure", _WORSE, "".join(grown)) if grown else JunitCase(name)
    if not model.checks and model.change is None:
        yield JunitCase("is planned")


_MARKS = {0: ":white_check_mark:", 1: ":x:", 2: ":x:", 3: ":grey_question:"}
_MAPS = 5  # maps in a summary: a summary may have 1 MiB
_MODELS = 200  # models in the table
_LINE = 200
_COLUMNS = (
    *(Column(title, "<") for title in ("model", "pool")),
    *(Column(title) for title in ("before", "now", "change", "budget")),
    Column("", "<"),
)
_ODD = lazy_pattern(r"[^A-Za-z0-9._-]+")
_LONGEST = 120  # characters of a file name


def render_markdown(run: BudgetRun, maps: Mapping[str, str] | None = None) -> str:
    """Render the verdict, a table of all models, and maps of the models that fail.

    `maps` gives the file of each model's drawn map, by model name.
    """
    lines = [f"### {_MARKS[run.exit_code]} {escape(shorten(run.verdict, 1000))}", ""]
    rows = (cells for model in run.models[:_MODELS] for cells in _markdown_rows(model))
    lines += markdown_table(_COLUMNS, rows)
    if len(run.models) > _MODELS:
        lines += ["", f"{counted(len(run.models) - _MODELS, 'more model')} not shown here."]
    bad = [(model, model.plan) for model in run.models if model.exit_code and model.plan]
    for model, plan in bad[:_MAPS]:
        lines += ["", *_map(model, plan, (maps or {}).get(model.name, ""))]
    return "\n".join(lines) + "\n"


def _markdown_rows(model: CheckedModel) -> Iterator[Sequence[str]]:
    rows: Sequence[PoolRow] = pool_rows(model)
    shown = [row for row in rows if row.limit is not None or row.words or row.is_changed]
    name = escape(shorten(model.name, _LINE))
    mark = _MARKS[model.exit_code]
    if not shown:
        yield name, *[""] * 5, f"{mark} {escape(shorten(model.answer, 300))}"
        return
    for number, row in enumerate(shown):
        words = f"{mark} {escape(model.answer)}" if number == 0 else ""
        problem = f" **{escape(row.words)}**" if row.words and row.words not in words else ""
        yield "" if number else name, row.pool, *row.sizes, f"{words}{problem}"


def _map(model: CheckedModel, plan: MemoryPlan, drawing: str) -> Iterator[str]:
    yield f"<details><summary>{escape(shorten(model.name, _LINE))}: what sets the peak</summary>"
    yield ""
    yield from (f"- {escape(reason)}" for reason in model.reasons)
    yield ""
    yield from block(map_lines(plan_map(plan)))
    if drawing:
        yield from ("", f"Memory map: `{escape(drawing)}`, among the files of this run.")
    yield from ("", "</details>")


def drawings(models: Iterable[CheckedModel]) -> dict[str, tuple[str, str]]:
    """Return, by model name, the file name and the SVG map of each planned model."""
    drawn_by_name: dict[str, tuple[str, str]] = {}
    taken: set[str] = set()
    for model in models:
        if model.plan is not None:
            name = _file(model.name, taken)
            taken.add(name)
            drawn = draw(plan_map(model.plan), PurePath(model.file).name)
            drawn_by_name[model.name] = name, svg_of(drawn)
    return drawn_by_name


def _file(name: str, taken: set[str]) -> str:
    """Return a file name that is valid on every file system and not yet taken."""
    stem = _ODD.sub("_", name).strip("._")[:_LONGEST] or "model"
    number, file = 1, f"{stem}.svg"
    while file.lower() in {other.lower() for other in taken}:
        number += 1
        file = f"{stem}-{number}.svg"
    return file
