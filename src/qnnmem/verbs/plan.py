"""Verb `plan`: turn a model file into certified memory plans, one for each graph."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from qnnmem.errors import UsageError
from qnnmem.loader.file_kind import is_library
from qnnmem.provenance import Origin, Sourced
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.htp.plan_difference import ComposedModel
    from qnnmem.ir import Model
    from qnnmem.options.plan import PlanFileOptions
    from qnnmem.planner import MemoryPlan
    from qnnmem.planner.planned_file import PlannedFile
    from qnnmem.planner.pools import Limits
    from qnnmem.verbs import ProgressListener

_SM8650 = "SM8650"  # QNN's graph depends little on the SoC: only on supported ranks and types


class PlanRequest(NamedTuple):
    """Request to plan one file."""

    path: Path
    file: str  # name as typed by the user
    options: PlanFileOptions
    given: tuple[str, ...] = ()  # typed options, for the commands in the result
    one_of_many: bool = False  # options may belong to other files; no remedies


class _FileGraphs(NamedTuple):
    """The graphs of a file that are to be planned."""

    graphs: tuple[Model, ...]
    source: Model | None = None  # the ONNX graph, if `graphs` are made by QNN from it
    composed: ComposedModel | None = None

    def note_rest(self, listener: ProgressListener) -> None:
        """If the model is split into several graphs, note the nodes that stay on the CPU."""
        if self.composed is None or len(self.graphs) < 2:
            return
        from qnnmem.htp.plan_difference import cpu_notes

        for line in cpu_notes(self.composed.on_cpu):
            listener.note(line)

    def explained(self, source: MemoryPlan, plan: MemoryPlan) -> MemoryPlan:
        """Return the plan of a QNN graph with notes on differences from the ONNX graph's plan."""
        if self.composed is None:
            return plan
        import dataclasses

        from qnnmem.htp.plan_difference import difference_notes

        notes = difference_notes(source, plan, self.composed)
        model = dataclasses.replace(plan.model, notes=(*notes, *plan.model.notes))
        return dataclasses.replace(plan, model=model)


def plan_file(request: PlanRequest, listener: ProgressListener) -> list[PlannedFile]:
    """Plan every graph of a file."""
    from qnnmem.planner.model_plan import limits_of, plan_with

    if request.one_of_many and request.options.dims:
        request = _own_dims(request)
    options, several_files = request.options, request.one_of_many
    limits = limits_of(options)
    models = _graphs_of(request.path, options, listener)
    for model in models.graphs:
        _check_format(model, options, limits)
    listener.say("planning")
    source = None
    if models.source is not None:
        source = plan_with(models.source, options, budget={}, watch=listener)
    models.note_rest(listener)
    reports = []
    for model in models.graphs:
        started = time.perf_counter()
        plan = plan_with(model, options, budget=limits.pools, watch=listener)
        seconds = time.perf_counter() - started
        if source is not None:
            plan = models.explained(source, plan)
        is_alone = len(models.graphs) == 1
        report = _report(plan, request, seconds, limits.tcm, "" if is_alone else model.name)
        if is_alone and not several_files:
            report = _with_remedies(report, model, options, listener)
        reports.append(report)
    return reports


def _own_dims(request: PlanRequest) -> PlanRequest:
    """Return the request without dimensions that belong to other files."""
    from qnnmem.loader import dims_in

    dims = dims_in(request.path, request.options.dims)
    names = {name for name, _ in dims}

    def is_own(word: str) -> bool:
        option, _, dimension = word.partition("=")
        return option != "--dim" or dimension.rpartition("=")[0] in names

    own = tuple(filter(is_own, request.given))
    return request._replace(options=replace(request.options, dims=dims), given=own)


def _check_format(model: Model, options: PlanFileOptions, limits: Limits) -> None:
    """Raise UsageError for a budget that this file format does not support."""
    if options.capacity is not None and model.format != "csv":
        cure = "for a model use --budget scratch=SIZE"
        raise UsageError(f"--capacity is for a buffer CSV; {cure}")
    if limits.tcm is not None and model.format == "csv":
        raise UsageError("--budget tcm is for a model: a buffer list has no constants and no IO")


def _graphs_of(path: Path, options: PlanFileOptions, listener: ProgressListener) -> _FileGraphs:
    """Read all graphs of a file, or only the named graph."""
    from qnnmem.loader import cached, kind_of, load_cached

    library = is_library(path, trust=options.trust)
    kind = "library" if library else kind_of(path)
    sizes, graph = options.sizes, options.graph
    if options.seen_as == "qnn":
        if kind != "onnx":
            raise UsageError(f"{path} is not an ONNX model; --as qnn is only for ONNX models")
        return _as_qnn(path, options, listener)
    if library and any(sizes.values()):
        raise UsageError(
            f"{path} has fixed shapes; --dim and --shape are for ONNX and TFLite models"
        )
    if library or (kind == "dlc" and not any(sizes.values())):
        from qnnmem.loader import dlc

        if graph is not None:
            return _FileGraphs((dlc.read(path, graph, trusted=library),))
        return _FileGraphs(cached(path, (), lambda: dlc.read_all(path, trusted=library)))
    if graph is not None:
        raise UsageError(
            f"{path} contains one graph; --graph works only for a DLC or with --as qnn"
        )
    return _FileGraphs((load_cached(path, **sizes),))


def _as_qnn(path: Path, options: PlanFileOptions, listener: ProgressListener) -> _FileGraphs:
    from qnnmem.htp.plan_difference import compose_onnx
    from qnnmem.loader import load_cached
    from qnnmem.loader.dlc import named_graph
    from qnnmem.loader.dlc.model import as_model
    from qnnmem.targets.socs import find_soc

    sizes, graph = options.sizes, options.graph
    source = load_cached(path, **sizes)
    listener.say("composing for QNN")
    composed = compose_onnx(path, find_soc(_SM8650), **sizes)
    chosen = composed.graphs if graph is None else (named_graph(path, composed.graphs, graph),)
    return _FileGraphs(tuple(as_model(path, g) for g in chosen), source, composed)


def _report(
    plan: MemoryPlan, request: PlanRequest, seconds: float, tcm: Bytes | None, graph: str
) -> PlannedFile:
    from qnnmem.planner.model_plan import judge_plan
    from qnnmem.planner.planned_file import PlannedFile

    budget = None if tcm is None else Sourced(tcm, Origin.GIVEN, "--budget")
    return PlannedFile(
        plan,
        request.file,
        seconds,
        (*request.given, *(("--graph", graph) if graph else ())),
        None if budget is None else judge_plan(plan, budget),
        time_limit=request.options.time_limit,
        graph=graph,
        seen_as=request.options.seen_as,
    )


def _with_remedies(
    report: PlannedFile, model: Model, options: PlanFileOptions, listener: ProgressListener
) -> PlannedFile:
    """Return the report with remedies for the pools that are too large."""
    import dataclasses

    from qnnmem.planner.model_plan import judge_plan
    from qnnmem.planner.planned_file import Shortage, find_remedies, shortages
    from qnnmem.planner.pools import TCM

    def tcm_need(plan: MemoryPlan) -> int:
        verdict = judge_plan(plan)
        return 0 if verdict is None else verdict.need

    lacking: Sequence[Shortage] = shortages(report.plan)
    tcm = report.tcm_budget
    if tcm is not None and tcm.missing:
        lacking = (*lacking, Shortage(TCM, Bytes(tcm.limit.value), tcm_need))
    if not lacking:
        return report
    listener.say("trying smaller settings")
    remedies = find_remedies(
        model, report.plan, tuple(lacking), time_limit=options.time_limit, seed=options.seed
    )
    return dataclasses.replace(report, remedies=remedies)
