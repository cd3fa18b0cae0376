"""Prove that a changed model computes the same results: run both models, compare every output.

onnxruntime runs the models without optimisation on one thread, in a child process with limits.
Models must contain their own data. A model cut into parts runs part by part; tensors are passed by
name.

A lossy change is measured: the difference of each output, and its signal-to-noise ratio. Its inputs
and outputs can be integers, smaller batches or other sizes. Outputs with another shape cannot be
measured.

`validate` also executes the LPAI program, every tensor at its planned address, under the sanitizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from qnnmem.calibration import Input, Sample, absolute
from qnnmem.child import ChildProcess
from qnnmem.errors import ChildFailed, ChildLost, QnnMemError, join_words
from qnnmem.fix.proof.program import (
    Compare,
    Compared,
    CompareLevels,
    CompareSaved,
    Keep,
    LevelGaps,
    OutputCheck,
    ProofData,
    SavedChecks,
    Validate,
    Validated,
)
from qnnmem.fix.proof.program import LevelGap as LevelGap
from qnnmem.fix.proof.program import OutputGap as OutputGap
from qnnmem.fix.proof.program import Proof as Proof
from qnnmem.fix.remedy import Change, FixCase, self_contained
from qnnmem.planner.model_plan import DEFAULT_ALIGN
from qnnmem.planner.pools import PoolOptions
from qnnmem.results.fix import ValidatedOutput, Validation, finite
from qnnmem.wire import Done

if TYPE_CHECKING:
    import onnx

_LARGEST_MODEL = (2 << 30) - 1  # protobuf's own limit


class Prover(ChildProcess):
    """Child process that runs a model once and compares changed models with it."""

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        samples: Sequence[Sample] = (),
        seed: int = 0,
        time_limit_s: float = 600.0,
    ) -> None:
        super().__init__("qnnmem.fix.proof.program", time_limit_s)
        self._data = ProofData(inputs_of(model), absolute(samples), seed)
        self._model: onnx.ModelProto | None = model

    def compare(self, *parts: onnx.ModelProto, lossy: bool = False) -> Proof:
        """Return the proof for a changed model, given as its parts in order.

        Only a lossy change may have other IO types and sizes.
        """
        blobs = self._ready(parts)
        return self.ask(Compare(_sizes(blobs), lossy), Compared, b"".join(blobs))[0].proof

    def levels(self, *parts: onnx.ModelProto) -> tuple[LevelGap, ...]:
        """Return the differences between both models at every optimisation level."""
        blobs = self._ready(parts)
        return self.ask(CompareLevels(_sizes(blobs)), LevelGaps, b"".join(blobs))[0].levels

    def _ready(self, parts: Sequence[onnx.ModelProto]) -> list[bytes]:
        """Return the parts as bytes, after the child has run the original model."""
        if self._model is not None:
            (blob,) = serialized([self._model])
            self.ask(Keep([len(blob)], self._data), Done, blob)
            self._model = None
        return serialized(parts)


def serialized(models: Sequence[onnx.ModelProto]) -> list[bytes]:
    """Return the models as bytes; raise ChildFailed above protobuf's size limit."""
    if sum(model.ByteSize() for model in models) > _LARGEST_MODEL:
        raise ChildFailed("a model over 2 GiB cannot be run for comparison")
    return [model.SerializeToString() for model in models]


def _sizes(blobs: Sequence[bytes]) -> list[int]:
    return [*map(len, blobs)]


def prove(
    before: onnx.ModelProto,
    *after: onnx.ModelProto,
    samples: Sequence[Sample] = (),
    seed: int = 0,
    time_limit_s: float = 600.0,
    lossy: bool = False,
) -> Proof:
    """Compare a model with a changed model, or with the parts it was cut into."""
    with Prover(before, samples=samples, seed=seed, time_limit_s=time_limit_s) as prover:
        return prover.compare(*after, lossy=lossy)


def beside_saved(
    model: onnx.ModelProto,
    samples: Sequence[Sample],
    outputs: list[Input],
    saved: Sequence[Sample],
    time_limit_s: float,
) -> tuple[OutputCheck, ...]:
    """Compare a model's outputs on samples with saved outputs for the same samples."""
    (blob,) = serialized([model])
    data = ProofData(inputs_of(model), absolute(samples), 0)
    request = CompareSaved([len(blob)], data, outputs, absolute(saved))
    with ChildProcess("qnnmem.fix.proof.program", time_limit_s) as child:
        return child.ask(request, SavedChecks, blob)[0].outputs


def inputs_of(model: onnx.ModelProto, *, outputs: bool = False) -> list[Input]:
    """Return a model's inputs, or its outputs, as specifications for random data."""
    from onnx import helper

    from qnnmem.loader.onnx.inputs import index_limits

    rows = index_limits(model.graph)
    found = []
    for item in model.graph.output if outputs else model.graph.input:
        kind = item.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = tuple(size.dim_value for size in kind.shape.dim)
        found.append(Input(item.name, dtype.name, shape, below=rows.get(item.name)))
    return found


_TIME_LIMIT_S = 3600.0
_OTHER_BORDER = ("batch", "precision", "resolution")  # remedies that change the inputs


def validate(case: FixCase, change: Change) -> Validation:
    """Run a change and the original model on the same data; for LPAI, also in planned memory."""
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
    """Return True if an output passes the validation."""
    same = output.identical or is_lossy
    return same and output.planned_difference == 0 and not (output.nans or output.new_infinities)


def _blobs(change: Change) -> list[bytes]:
    if change.parts is None:
        return [self_contained(change.model).SerializeToString()]
    return list(change.parts.models())


def _prepared(change: Change, folder: Path) -> tuple[Path | None, str]:
    """Return an LPAI binary of the changed model, or the reason why there is none."""
    options = change.options
    if not isinstance(options, PoolOptions) or change.parts is not None:
        return None, "a model cut into parts is not a single LPAI program"
    if any(step["remedy"] in _OTHER_BORDER for step in change.steps):
        return None, "the result and the original model have different inputs"
    if options.states:
        return None, "the result would carry its state from sample to sample"
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
        return None, f"the result cannot be prepared: {join_words(exc.what)}"
    return binary, ""
