"""Check the files of a config one by one, with the code of the verbs `plan` and `fit`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import (
    CannotTell,
    LoadError,
    QnnError,
    QnnMemError,
    Setting,
    UsageError,
    Words,
    join_words,
)
from qnnmem.gate.checked import BROKEN, GOOD, NOT_READ, OPEN, CheckedModel
from qnnmem.gate.config import BudgetEntry
from qnnmem.gate.keys import HTP, KEYS, LPAI, TOTAL, pool_of
from qnnmem.htp import library
from qnnmem.htp.compile.compiled import compile_options
from qnnmem.htp.fit import fit_all, fit_stored, judge_model
from qnnmem.htp.measure import compile_target
from qnnmem.htp.worker import Worker
from qnnmem.loader import dims_in, load
from qnnmem.loader.file_kind import CARRIERS, check_kind, kind_of_file, kinds_for
from qnnmem.lpai.binary import MALFORMED_BINARY, unpack
from qnnmem.lpai.inspect import binary_info
from qnnmem.options.htp import FitOptions
from qnnmem.options.option import Options, option_fields
from qnnmem.options.plan import PlanOptions
from qnnmem.planner import Pool
from qnnmem.planner.model_plan import judge_plan, plan_with
from qnnmem.planner.pools import BudgetVerdict
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.check import Allocations, ExitCode, PoolCheck
from qnnmem.targets.socs import find_soc
from qnnmem.text import quote
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.htp.fit import Fit
    from qnnmem.planner import MemoryPlan
    from qnnmem.results.inspect import InspectedGraph
    from qnnmem.results.plan import TcmAnswer
    from qnnmem.targets.socs import Soc

Group = TypeVar("Group", bound=Options)
_NO_SETTINGS = ("budgets", "time_limit", "soc")  # limits of the check, not settings of the model


@dataclass(frozen=True, slots=True)
class BudgetTask:
    """A file to check and its config entry; file names are relative to the config's folder."""

    entry: BudgetEntry
    path: Path
    file: str
    folder: Path  # folder of the config
    place: str = ""  # path of the file from the current folder

    def name(self, target: str) -> str:
        """Return the name of the result for a target, as in tables and in the baseline."""
        return self.entry.name or f"{self.file} ({target})"

    def checked(self, target: str, name: str = "", **facts: Any) -> CheckedModel:
        """Return a checked model for a target; `name` distinguishes results of the same file."""
        return CheckedModel(
            name=name or self.name(target),
            file=self.file,
            place=self.place or self.file,
            target=target,
            line=self.entry.line,
            **facts,
        )

    def target(self, kind: str) -> str:
        """Return LPAI or HTP: the configured target, else the target for this kind of file."""
        if kind in ("htp", "epcontext", *CARRIERS):
            target = HTP
        elif kind == LPAI:
            target = LPAI
        else:
            target = self.wished(kind)
        own = self.entry.own.get("target", target)
        if own != target:
            raise UsageError(f"the file is a binary for {target.upper()}, but target is {own}")
        for key in self.entry.own:
            wanted = KEYS[key][0]
            if wanted not in (None, target):
                mismatch = f"{key} is for {str(wanted).upper()}, but target is {target}"
                can = wanted == LPAI or kind in kinds_for("fit")
                raise UsageError(f'{mismatch}; write target = "{wanted}"' if can else mismatch)
        return target

    def wished(self, kind: str = "onnx") -> str:
        """Return the configured target, else HTP for an ONNX model if SoCs are set, else LPAI."""
        target = self.entry.get("target")
        is_htp = kind == "onnx" and self.entry.get("socs") is not None
        return str(target) if target is not None else HTP if is_htp else LPAI

    def budgets(self, target: str) -> Mapping[str, Bytes]:
        """Return the budgets by pool; a common budget applies if the target has this pool."""
        common: dict[str, Bytes] = {}
        for name, size in self.entry.common.get("budget", {}).items():
            pool = pool_of(name, target)
            if pool is not None:
                common[pool] = size
        own: dict[str, Bytes] = {}
        for name, size in self.entry.own.get("budget", {}).items():
            pool = pool_of(name, target)
            if pool is None:
                raise UsageError(
                    f"{name} is not a pool of {target.upper()}, the target of this file"
                )
            if pool in own:
                raise UsageError(f"{pool} has two budgets; set only one")
            own[pool] = size
        return {**common, **own}

    def sizes(self, kind: str) -> dict[str, Any]:
        """Return dims, shapes and values for `load`; a common dim applies if the model has it."""
        dims = self.entry.common.get("dims", {})
        shared = dict(dims_in(self.path, dims.items())) if dims and kind == "onnx" else {}
        values = {name: self._placed(value) for name, value in self.named("values").items()}
        return {
            "dims": {**shared, **self.entry.own.get("dims", {})},
            "shapes": self.named("shapes"),
            "values": values,
        }

    def options(self, group: type[Group], kind: str) -> Group:
        """Return the entry as options of a verb, without budgets: pools depend on the target.

        Common settings apply if the file supports them; the entry's own settings must be supported.
        """
        sizes = self.sizes(kind)
        values: dict[str, Any] = {name: tuple(table.items()) for name, table in sizes.items()}
        for field in option_fields(group):
            if field.name in values or field.key == "budget" or not field.is_shared:
                continue
            is_common = kind != "csv" or field.opt.for_buffers
            common = self.entry.common if is_common or field.key == "time_limit" else {}
            if field.opt.item is not None:
                table = {**common.get(field.key, {}), **self.entry.own.get(field.key, {})}
                values[field.name] = tuple(table.items())
            elif field.key in self.entry.own or field.key in common:
                values[field.name] = self.entry.own.get(field.key, common.get(field.key))
        return group(**values)

    def named(self, key: str) -> dict[str, Any]:
        """Return the table of a key: the common values, overridden by the entry's own values."""
        return {**self.entry.common.get(key, {}), **self.entry.own.get(key, {})}

    def _placed(self, value: Any) -> Any:
        return self.folder / value if isinstance(value, Path) else value


def settings_of(options: Options) -> tuple[Setting, ...]:
    """Return the options that differ from their defaults, for a command that repeats the check."""
    return tuple(
        Setting(field.name, word.partition("=")[2])
        for field in option_fields(type(options))
        if field.name not in _NO_SETTINGS
        for word in field.words(getattr(options, field.name))
    )


_TARGET = "LPAI"
_AT_PEAK = 64  # tensors stored in a baseline
_LARGEST = 16 << 30  # bytes of a binary


def check_planned(task: BudgetTask, kind: str) -> CheckedModel:
    """Plan a model or a list of buffers and check its budgets."""
    budgets = task.budgets(LPAI)
    started = time.perf_counter()
    plan = plan_task(task, kind, budgets)
    pools = _pools(plan, with_total=TOTAL in budgets)
    live = () if plan.peak is None else plan.peak.live
    return task.checked(
        _TARGET,
        pools=pools,
        checks=tuple(_checks(plan, pools, budgets)),
        peak={buffer.name: buffer.size for buffer in live} if len(live) <= _AT_PEAK else {},
        settings={
            "alignment": str(plan.align),
            "bits": "as in the model" if plan.options.bits is None else str(plan.options.bits),
            "IO": f"{plan.options.io.value} scratch",
        },
        # Budgets cannot be judged if some sizes are placeholders.
        why=join_words(plan.model.assumed) if budgets else "",
        seconds=time.perf_counter() - started,
        given=settings_of(task.options(PlanOptions, kind)),
        plan=plan,
    )


def plan_task(task: BudgetTask, kind: str, budgets: Mapping[str, Bytes]) -> MemoryPlan:
    """Plan a task; a list of buffers is planned to the optimum before its budget is applied."""
    options = task.options(PlanOptions, kind)
    model = load(task.path, **options.sizes)
    limits: dict[str, Bytes] = {pool: size for pool, size in budgets.items() if pool != TOTAL}
    if kind != "csv" or "scratch" not in limits:
        return plan_with(model, options, budget=limits)
    # With a budget, the search would end at the first plan that fits, which is no stable baseline.
    rest = {pool: size for pool, size in limits.items() if pool != "scratch"}
    plan = plan_with(model, options, budget=rest)
    if plan.scratch_bytes <= limits["scratch"]:
        return plan
    answer = plan_with(model, options, budget=limits)
    smaller = answer.scratch_bytes < plan.scratch_bytes
    return answer if smaller else replace(plan, budgets=answer.budgets)


def _pools(plan: MemoryPlan, *, with_total: bool) -> dict[str, int]:
    sizes: dict[str, int] = {pool.value: plan.pool_bytes(pool) for pool in Pool}
    tcm = judge_plan(plan)
    # The total counts as a pool only if it has a budget.
    whole = {TOTAL: sum(sizes.values())} if with_total else {}
    return sizes | ({} if tcm is None else {"tcm": tcm.need}) | whole


def _checks(
    plan: MemoryPlan, pools: Mapping[str, int], budgets: Mapping[str, Bytes]
) -> Iterator[PoolCheck]:
    from qnnmem.planner.model_plan import alike

    verdicts = {verdict.pool.value: verdict for verdict in plan.budgets}
    lower = plan.scratch.lower_bound
    for pool, have in budgets.items():
        if pool in verdicts:
            yield _budget_check(verdicts[pool], alike=alike(plan, verdicts[pool]))
        elif pool == "tcm":
            answer = None if plan.tcm is None else plan.tcm.answer
            fits = None if answer is None else answer.fits
            yield PoolCheck.of(pool, pools.get("tcm"), have, fits, allocations=_crowd(answer))
        else:
            need = Bytes(pools[pool])
            least = Bytes(need - plan.scratch_bytes + lower)
            yield _budget_check(BudgetVerdict(Pool.SCRATCH, need, least, have), pool)
    if "tcm" not in budgets:
        documented = judge_plan(plan)
        crowd = None if documented is None else _crowd(documented.answer)
        yield from _allocations(pools.get("tcm"), crowd)


def _allocations(need: int | None, crowd: Allocations | None) -> Iterator[PoolCheck]:
    """Yield a failed check if there are too many TCM allocations; this limit needs no budget."""
    if crowd is not None:
        yield PoolCheck.of("tcm", need, None, fits=False, budget=False, allocations=crowd)


def _crowd(tcm: TcmAnswer | None) -> Allocations | None:
    """Return the number of TCM allocations and the limit if that limit is exceeded, else None."""
    if tcm is None or not tcm.is_crowded:
        return None
    return Allocations(tcm.buffers, tcm.max_buffers)


def _budget_check(verdict: BudgetVerdict, name: str = "", alike: int = 0) -> PoolCheck:
    return PoolCheck.of(
        name or verdict.pool.value,
        verdict.need,
        verdict.have,
        verdict.fits,
        at_least=verdict.at_least,
        blockers=verdict.blockers,
        alike=alike,
    )


def check_binary(task: BudgetTask) -> Iterator[CheckedModel]:
    """Yield a checked model for each graph of a prepared binary."""
    data = read_bytes(task.path, _LARGEST)
    try:
        binary = binary_info(unpack(data, MALFORMED_BINARY), len(data)).qnnmem
    except QnnError as exc:
        raise LoadError(task.path, str(exc)) from exc
    budgets = task.budgets(LPAI)
    for graph in binary.graphs:
        yield _graph(task, graph, budgets, is_only=len(binary.graphs) == 1)


def _graph(
    task: BudgetTask, graph: InspectedGraph, budgets: Mapping[str, Bytes], *, is_only: bool
) -> CheckedModel:
    pools = {"io": 0, **graph.pools}
    if TOTAL in budgets:
        pools[TOTAL] = sum(pools.values())
    if graph.tcm is not None:
        pools["tcm"] = graph.tcm.need_bytes
    return task.checked(
        _TARGET,
        "" if is_only else f"{task.name(_TARGET)} {graph.name}",
        pools=pools,
        checks=tuple(_graph_checks(graph.tcm, pools, budgets)),
        settings={"alignment": str(graph.align), "IO": f"{graph.io} scratch"},
    )


def _graph_checks(
    tcm: TcmAnswer | None, pools: Mapping[str, int], budgets: Mapping[str, Bytes]
) -> Iterator[PoolCheck]:
    crowd = _crowd(tcm)
    for pool, have in budgets.items():
        need, broken = pools.get(pool), crowd if pool == "tcm" else None
        fits = None if need is None else need <= have and not broken
        yield PoolCheck.of(pool, need, have, fits, allocations=broken)
    if "tcm" not in budgets:
        yield from _allocations(pools.get("tcm"), crowd)


_SOURCE = "budget of the project"
# Parts of a bill that are pools with a budget.
_PARTS = {"weights": "weights", "shared weights": "weights", "IO": "io", "spill/fill": "spill-fill"}


def check_on_socs(task: BudgetTask, kind: str) -> Iterator[CheckedModel]:
    """Yield a checked model for each SoC; a binary is read, a model is compiled if possible."""
    check_kind(task.path, "fit")
    socs = tuple(dict.fromkeys(find_soc(name) for name in task.entry.get("socs", ())))
    sizes = task.budgets(HTP)
    budgets = {pool: Sourced(size, Origin.GIVEN, _SOURCE) for pool, size in sizes.items()}
    answers, repeated = fit_stored(task.path, socs, budgets), _budgets_given(budgets)
    if answers is None:
        answers = _compiled(task, kind, socs, budgets)
        repeated += settings_of(task.options(FitOptions, kind))
    yield from (_fit_check(task, fit, budgets, repeated) for fit in answers)


def _budgets_given(budgets: Mapping[str, Sourced]) -> tuple[Setting, ...]:
    return tuple(Setting("budget", f"{pool}={limit.value}") for pool, limit in budgets.items())


def _compiled(
    task: BudgetTask, kind: str, socs: tuple[Soc, ...], budgets: Mapping[str, Sourced]
) -> tuple[Fit, ...]:
    compile_target(task.path, socs[0] if socs else None)
    library.find_library()  # raises an error with a cure if it is missing
    options = compile_options(task.options(FitOptions, kind))
    with Worker(warm=True) as worker:
        return fit_all(
            socs, lambda soc: judge_model(task.path, soc, options, budgets, worker=worker)
        )


def _fit_check(
    task: BudgetTask, fit: Fit, budgets: Mapping[str, Sourced], settings: tuple[Setting, ...]
) -> CheckedModel:
    pools: dict[str, int] = {}
    for name, size in fit.parts.items():
        if pool := _PARTS.get(name):
            pools[pool] = pools.get(pool, 0) + size.value
    pools |= {check.pool: check.need.high.value for check in fit.checks if check.need is not None}
    if fit.total is not None:
        pools.setdefault("ram", fit.total.value)
    soc = fit.soc.name
    return task.checked(
        soc,
        f"{task.entry.name or task.file} ({soc})",
        pools=pools,
        at_most=tuple(check.pool for check in fit.checks if check.need and not check.need.is_exact),
        checks=tuple(
            PoolCheck.of(
                check.pool,
                None if check.need is None else check.need.high.value,
                None if check.limit is None else check.limit.value,
                check.fits,
                budget=check.pool in budgets,
                at_least=None if check.need is None else check.need.low.value,
            )
            for check in fit.checks
        ),
        settings={"SoC": soc},
        why=join_words(_said_here(fit.why)) if fit.fits is None else "",
        # A model that cannot be compiled cannot be shipped, whatever its sizes.
        refusal=BROKEN if fit.fits is None and fit.code is not None else GOOD,
        seconds=fit.seconds or 0.0,
        given=settings,
    )


def _said_here(why: Words) -> Words:
    """Return why a verdict is missing, without the advice to set --partition.

    A budget file cannot set this option.
    """
    if isinstance(why, str) or Setting("partition") not in why:
        return why
    index = why.index(Setting("partition"))
    return why[: index - 1]  # without the separator before it


def check_all(
    tasks: Sequence[BudgetTask], say: Callable[[str], object] | None = None
) -> tuple[CheckedModel, ...]:
    """Return a result for each file and target; `say` receives the name of the current file."""
    models: list[CheckedModel] = []
    for task in tasks:
        if say is not None:
            say(task.file)
        models += check_task(task)
    _check_names(models)
    return tuple(models)


def check_task(task: BudgetTask) -> tuple[CheckedModel, ...]:
    """Return the results for one file."""
    try:
        return tuple(_results(task))
    except CannotTell as exc:
        return (_refused(task, exc, OPEN),)
    except QnnMemError as exc:
        return (_refused(task, exc, NOT_READ),)


def _results(task: BudgetTask) -> Iterator[CheckedModel]:
    kind = kind_of_file(task.path).name
    target = task.target(kind)
    if target == HTP:
        yield from check_on_socs(task, kind)
    elif kind == LPAI:
        yield from check_binary(task)
    else:
        yield check_planned(task, kind)


def _refused(task: BudgetTask, exc: QnnMemError, code: ExitCode) -> CheckedModel:
    """Return the result for a file that failed: the error sentence without the file's path."""
    sentence = exc.without_place(in_toml) if exc.where == str(task.path) else exc.sentence(in_toml)
    target = "LPAI"
    if task.wished() == HTP:
        target = ", ".join(task.entry.get("socs", ())) or "HTP"
    return task.checked(target, pools={}, why=sentence, refusal=code)


def in_toml(setting: Setting) -> str:
    """Return a setting in the syntax of a config file: `dims = { N = 1 }`."""
    if not setting.value:
        return setting.name
    key, parts, value = setting.value.rpartition("=")
    is_plain = re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?|true|false", value) is not None
    word = value if is_plain else json.dumps(value)
    if not parts:
        return f"{setting.name} = {word}"
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)
    return f"{setting.name} = {{ {name} = {word} }}"


def _check_names(models: Iterable[CheckedModel]) -> None:
    """Raise UsageError if two results have the same name: a baseline needs unique names."""
    seen: set[str] = set()
    for model in models:
        if model.name in seen:
            raise UsageError(
                f"two models have the name {quote(model.name)}; set a different name for each"
            )
        seen.add(model.name)
