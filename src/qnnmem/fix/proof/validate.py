"""Runs a result on the CPU and in planned memory, and says of every output how far it is off.

    the model as it was     onnxruntime, nothing optimised, one thread
    the model as it is now  the same
    its program for LPAI    every tensor at its planned address, under the sanitizer

all on the same data, in a child process with limits.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qnnmem.child import ChildProcess, describe_limit
from qnnmem.errors import ChildFailed, QnnMemError, join_words
from qnnmem.fix.proof import SAMPLES
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
        header = {
            "verb": "validate",
            "lossy": change.is_lossy,
            "inputs": inputs_of(before),
            "samples": [
                [(name, str(Path(path).absolute())) for name, path in one] for one in case.samples
            ],
            "count": len(case.samples) or SAMPLES,
            "seed": case.seed,
            "binary": None if binary is None else str(binary),
        }
        blobs = [before.SerializeToString(), *after]
        with ChildProcess("qnnmem.fix.proof.validate_program", _TIME_LIMIT_S) as child:
            frame = child.ask({**header, "sizes": [*map(len, blobs)]}, b"".join(blobs))
            if frame is None:
                limit = describe_limit(child.memory_limit)
                raise ChildFailed(f"validating crashed or ran out of time or memory, {limit}")
    if "error" in frame[0]:
        raise ChildFailed(f"validating failed: {frame[0]['error']}")
    return _validation(frame[0], change, why)


def _validation(found: dict[str, Any], change: Change, why: str) -> Validation:
    outputs = tuple(_output(name, **row) for name, row in found["outputs"].items())
    findings = tuple(map(str, found["findings"]))
    return Validation(
        holds=not findings and all(_holds(output, change.is_lossy) for output in outputs),
        samples=int(found["samples"]),
        planned=not why,
        why_not_planned=why,
        findings=findings,
        outputs=outputs,
    )


def _output(
    name: str,
    *,
    identical: bool,
    largest: float,
    relative: float,
    planned: float,
    nans: int,
    infinities: int,
    new: int,
) -> ValidatedOutput:
    return ValidatedOutput(
        output=name,
        identical=identical,
        largest_difference=finite(largest),
        relative_difference=finite(relative),
        planned_difference=finite(planned),
        nans=nans,
        infinities=infinities,
        new_infinities=new,
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
