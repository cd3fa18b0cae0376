"""Runs a result on the CPU and in planned memory, and says of every output how far it is off.

    the model as it was     onnxruntime, nothing optimised, one thread
    the model as it is now  the same
    its program for LPAI    every tensor at its planned address, under the sanitizer

all on the same data, in a child process with limits.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from qnnmem.calibration import absolute
from qnnmem.child import ChildProcess
from qnnmem.errors import ChildFailed, ChildLost, QnnMemError, join_words
from qnnmem.fix.proof.program import OutputCheck, ProofData, Validate, Validated
from qnnmem.fix.proof.prove import inputs_of
from qnnmem.fix.remedy import Change, FixCase, self_contained
from qnnmem.planner.model_plan import DEFAULT_ALIGN
from qnnmem.planner.pools import PoolOptions
from qnnmem.results.fix import ValidatedOutput, Validation, finite

_TIME_LIMIT_S = 3600.0
_OTHER_BORDER = ("batch", "precision", "resolution")  # remedies after which inputs are others


def validate(case: FixCase, change: Change) -> Validation:
    """Run a change beside the model as it was, and in planned memory where LPAI plans it."""
    before = self_contained(case.model)
    after = _blobs(change)
    with TemporaryDirectory(".qnnmem") as folder:
        binary, why = _prepared(change, Path(folder))
        blobs = [before.SerializeToString(), *after]
        data = ProofData(inputs_of(before), absolute(case.samples), case.seed)
        request = Validate([*map(len, blobs)], data, change.is_lossy, binary)
        with ChildProcess("qnnmem.fix.proof.program", _TIME_LIMIT_S) as child:
            try:
                found, _ = child.ask(request, Validated, b"".join(blobs))
            except ChildLost:
                raise
            except ChildFailed as exc:
                raise ChildFailed(f"validating failed: {exc}") from exc
    outputs = tuple(map(_output, found.outputs))
    return Validation(
        holds=not found.findings and all(_holds(output, change.is_lossy) for output in outputs),
        samples=found.samples,
        planned=not why,
        why_not_planned=why,
        findings=found.findings,
        outputs=outputs,
    )


def _output(check: OutputCheck) -> ValidatedOutput:
    return ValidatedOutput(
        output=check.name,
        identical=check.identical,
        largest_difference=finite(check.largest),
        relative_difference=finite(check.relative),
        planned_difference=finite(check.planned),
        nans=check.nans,
        infinities=check.infinities,
        new_infinities=check.new,
    )


def _holds(output: ValidatedOutput, is_lossy: bool) -> bool:
    """Whether nothing about an output speaks against the result."""
    same = output.identical or is_lossy
    return same and output.planned_difference == 0 and not (output.nans or output.new_infinities)


def _blobs(change: Change) -> list[bytes]:
    if change.parts is None:
        return [self_contained(change.model).SerializeToString()]
    from qnnmem.fix.parts.manifest import part_models

    return list(part_models(change.parts))


def _prepared(change: Change, folder: Path) -> tuple[Path | None, str]:
    """A binary for LPAI, or why there is none."""
    options = change.options
    if not isinstance(options, PoolOptions) or change.parts is not None:
        return None, "it is not one program for LPAI"
    if any(step["remedy"] in _OTHER_BORDER for step in change.steps):
        return None, "it takes other inputs than the model as it was"
    if options.states:
        return None, "its state would go from sample to sample"
    from qnnmem.lpai.preparation import prepare
    from qnnmem.lpai.prepare_options import PrepareOptions

    path, binary = folder / "changed.onnx", folder / "changed.bin"
    path.write_bytes(_blobs(change)[0])
    chosen = PrepareOptions(
        io=options.io,
        align=options.align or DEFAULT_ALIGN,
        inplace=options.inplace,
        allow_float=True,
    )
    try:
        prepare({"model": path}, chosen).write(binary)
    except QnnMemError as exc:
        return None, f"it cannot be prepared: {join_words(exc.what)}"
    return binary, ""
