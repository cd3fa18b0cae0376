"""Outcome of a fix: the JSON result, and the files of the changed model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from qnnmem.errors import join_words
from qnnmem.fix.htp import HtpFixResult
from qnnmem.fix.library.trials import HtpParts
from qnnmem.fix.parts.chain import MANIFEST, describe_chain
from qnnmem.fix.parts.partition import Partition
from qnnmem.fix.proof.program import LevelGap, OutputGap
from qnnmem.fix.remedy import JudgedChange, self_contained
from qnnmem.fix.remedy_search import FixResult
from qnnmem.ir import Tensor
from qnnmem.loader.onnx import mark_backend
from qnnmem.loader.onnx.passes.shape import ShapedModel, write_typed
from qnnmem.planner.planned_file import plan_map
from qnnmem.results.files import RefusedFile
from qnnmem.results.fix import (
    FixDeployment,
    FixedModel,
    FixMaps,
    LevelDifference,
    LossyOption,
    OutputDifference,
    RemedyTrial,
    Validation,
)
from qnnmem.results.result import finite
from qnnmem.results.schema import encode

FixRow = FixedModel | RefusedFile


def fixed_model(
    result: FixResult,
    files: Sequence[str] = (),
    *,
    next_step: str = "",
    exit_code: int | None = None,
    validation: Validation | None = None,
    chain: Sequence[str] = (),
    with_maps: bool = True,
) -> FixedModel:
    """Return the JSON result of a fix; `chain` lists the steps from a log line to the budgets."""
    best = result.best
    deployment = best.need.deployment
    soc = result.soc.name if isinstance(result, HtpFixResult) and result.soc else UNSET
    return FixedModel(
        input=str(result.case.path),
        backend=result.backend,
        fits=result.fits,
        before_bytes=best.before.size,
        after_bytes=best.need.size,
        limit_bytes=best.need.limit,
        over_budget=best.need.over,
        total_bytes=best.need.total,
        plain_total_bytes=best.before.total,
        deployment=None if deployment is None else deployment.result(best.before.total),
        best=result.tried.index(best),
        tried=tuple(map(_trial, result.tried)),
        obstacle=result.obstacle,
        notes=result.notes,
        would_fit=tuple(
            LossyOption(hint.allow, hint.need.what, hint.need.size) for hint in result.hints
        ),
        validation=validation,
        files=tuple(files),
        next=next_step,
        soc=soc,
        exit_code=result.exit_code if exit_code is None else exit_code,
        plans=_maps(best) if with_maps else UNSET,
        from_log=tuple(chain) if chain else UNSET,
    )


def tensor_notes(result: FixResult) -> tuple[str, ...]:
    """Return notes on the number and average size of tensors, and on the bytes still to prune."""
    best = result.best
    notes = []
    if best.change.model is not result.case.model and best.change.parts is None:
        before, after = map(_tensors, (result.case.model, best.change.model))
        notes.append(
            f"{before[0]:,} tensors before, {before[1] // max(1, before[0]):,} bytes each on "
            f"average; {after[0]:,} after, {after[1] // max(1, after[0]):,} bytes each"
        )
    elif best.fits is False:
        count, size = _tensors(result.case.model)
        notes.append(f"{count:,} tensors, {size // max(1, count):,} bytes each on average")
    need = best.need
    if best.fits is False and need.missing and need.size:
        cut = f"{need.missing:,} bytes ({need.missing / need.size:.1%} of {need.what})"
        notes.append(f"pruning has to cut at least {cut} from the tensors live at the peak")
    return tuple(notes)


def _tensors(model: ShapedModel) -> tuple[int, int]:
    """Return the number of tensors, weights included, and their total bytes."""
    from qnnmem.loader.onnx.tensor import DTYPES, count_tensors, stored_bytes, type_of

    graph = write_typed(model).graph
    weights = {tensor.name for tensor in graph.initializer}
    infos = (*graph.input, *graph.output, *graph.value_info)
    size = sum(map(stored_bytes, graph.initializer))
    for kind in (type_of(info) for info in infos if info.name not in weights):
        if kind is not None and kind.shape is not None and kind.elem in DTYPES:
            size += Tensor("", DTYPES[kind.elem], kind.shape).nbytes
    return count_tensors(graph), size


def _maps(best: JudgedChange) -> FixMaps | UnsetType:
    """Return the memory maps before and after the fix; UNSET for HTP, which has no plan."""
    before, after = best.before.plan, best.need.plan
    if before is None or after is None:
        return UNSET
    shown: Literal["whole model", "neediest part"] = (
        "whole model" if best.change.parts is None else "neediest part"
    )
    return FixMaps(plan_map(before), plan_map(after), shown)


def _trial(judged: JudgedChange) -> RemedyTrial:
    change, need, proof = judged.change, judged.need, judged.proof
    levels = () if proof is None else proof.levels
    return RemedyTrial(
        remedy=change.remedy,
        change=change.what,
        pool=need.what,
        bytes=need.size,
        limit_bytes=need.limit,
        fits=judged.fits,
        over_budget=need.over,
        missing_bytes=need.missing,
        why=join_words(need.why),
        identical=proof is None or proof.identical,
        lossy=change.is_lossy,
        samples=0 if proof is None else proof.samples,
        largest_difference=0.0 if proof is None else finite(proof.largest),
        relative_difference=0.0 if proof is None else finite(proof.relative),
        outputs=() if proof is None else tuple(map(_output, proof.each)),
        reshaped_outputs=() if proof is None else proof.unmeasured,
        macs=change.macs,
        extra_macs=change.extra_macs,
        optimisation_levels=tuple(map(_level, levels)) if levels else UNSET,
        seconds=round(judged.seconds, 3),
        steps=tuple(dict(step) for step in change.steps),
    )


def _level(gap: LevelGap) -> LevelDifference:
    return LevelDifference(gap.level, gap.identical, finite(gap.largest), finite(gap.relative))


def _output(gap: OutputGap) -> OutputDifference:
    noise = None if gap.decibels is None else round(gap.decibels, 2)
    return OutputDifference(gap.name, finite(gap.largest), finite(gap.relative), noise)


def outputs_of(result: FixResult, stem: str, *, always: bool = False) -> dict[str, bytes]:
    """Return the content of each output file by name, in report order.

    An unchanged model is left out; with `always`, it is included with fixed shapes. A fix for HTP
    that does not suffice has no files.
    """
    best = result.best
    htp = result if isinstance(result, HtpFixResult) else None
    if htp is not None and not best.is_enough:
        return {}
    binaries = [] if htp is None else [path.read_bytes() for path in htp.binaries]
    if best.change.parts is not None:
        deployment = best.need.deployment
        described = None if deployment is None else deployment.result(best.before.total)
        return _chain(best.change.parts, None if htp is None else htp.parts, binaries, described)
    files = {}
    is_changed = best.change.model is not result.case.model
    if always or is_changed:
        model = self_contained(best.change.model)
        if is_changed:
            mark_backend(model, result.backend)
        files[f"{stem}.onnx"] = model.SerializeToString(deterministic=True)
    return {**files, **{f"{stem}.bin": blob for blob in binaries}}


def _chain(
    partition: Partition,
    parts: HtpParts | None,
    binaries: Sequence[bytes],
    deployment: FixDeployment | None,
) -> dict[str, bytes]:
    from qnnmem.fix.library.trials import describe_htp

    backend = "lpai" if parts is None else "htp"
    models = tuple(_marked(model, backend) for model in partition.models())
    htp = None if parts is None else describe_htp(parts, binaries)
    chain = replace(describe_chain(partition, models), deployment=deployment, htp=htp)
    names = [name for name, _digest in chain.files]
    files = dict(zip(names, (*models, *binaries), strict=True))
    return {**files, MANIFEST: encode(chain).encode()}


def _marked(blob: bytes, backend: str) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(blob)
    mark_backend(model, backend)
    return bytes(model.SerializeToString(deterministic=True))
