"""Prove that a changed model computes the same results: run both models, compare every output.

onnxruntime runs the models without optimisation on one thread, in a child process with limits.
Models must contain their own data. A model cut into parts runs part by part; a part finds its
inputs by name among the outputs of earlier parts.

A lossy change is measured: the difference of each output, and its signal-to-noise ratio. The
inputs and outputs of a lossy change can be integers, smaller batches or other sizes. Outputs with
another shape cannot be measured.

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
    LevelGap,
    LevelGaps,
    OutputCheck,
    Proof,
    ProofData,
    SavedChecks,
    Validate,
    Validated,
)
from qnnmem.fix.remedy import LARGEST_MODEL, Change, FixCase, models_of, self_contained
from qnnmem.planner.model_plan import DEFAULT_ALIGN
from qnnmem.planner.pools import PoolOptions
from qnnmem.results.fix import ValidatedOutput, Validation
from qnnmem.results.result import finite
from qnnmem.wire import Done

if TYPE_CHECKING:
    import onnx


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

    def compare(self, *parts: bytes, lossy: bool = False) -> Proof:
        """Return the proof for a changed model, given as its serialised parts in order.

        Only a lossy change may have other IO types and sizes.
        """
        self._run_original(parts)
        return self.ask(Compare([*map(len, parts)], lossy), Compared, b"".join(parts))[0].proof

    def levels(self, *parts: bytes) -> tuple[LevelGap, ...]:
        """Return, for each optimisation level, how the changed model differs from the original."""
        self._run_original(parts)
        return self.ask(CompareLevels([*map(len, parts)]), LevelGaps, b"".join(parts))[0].levels

    def _run_original(self, parts: Sequence[bytes]) -> None:
        """Let the child run the original model; raise ChildFailed if the parts are too large."""
        if self._model is not None:
            content = _serialized(self._model)
            self.ask(Keep([len(content)], self._data), Done, content)
            self._model = None
        _check_size(sum(map(len, parts)))


def _serialized(model: onnx.ModelProto) -> bytes:
    """Return the model as bytes; raise ChildFailed above protobuf's size limit."""
    _check_size(model.ByteSize())
    return bytes(model.SerializeToString())


def _check_size(size: int) -> None:
    if size > LARGEST_MODEL:
        raise ChildFailed("a model over 2 GiB cannot be run for comparison")


def prove(
    before: onnx.ModelProto,
    *after: onnx.ModelProto,
    samples: Sequence[Sample] = (),
    seed: int = 0,
    time_limit_s: float = 600.0,
    lossy: bool = False,
) -> Proof:
    """Compare a model with a changed model, or with the parts into which the model was cut."""
    with Prover(before, samples=samples, seed=seed, time_limit_s=time_limit_s) as prover:
        return prover.compare(*map(_serialized, after), lossy=lossy)


def beside_saved(
    model: onnx.ModelProto,
    samples: Sequence[Sample],
    outputs: list[Input],
    saved: Sequence[Sample],
    time_limit_s: float,
) -> tuple[OutputCheck, ...]:
    """Compare a model's outputs on samples with saved outputs for the same samples."""
    content = _serialized(model)
    data = ProofData(inputs_of(model), absolute(samples), 0)
    request = CompareSaved([len(content)], data, outputs, absolute(saved))
    with ChildProcess("qnnmem.fix.proof.program", time_limit_s) as child:
        return child.ask(request, SavedChecks, content)[0].outputs


def inputs_of(model: onnx.ModelProto, *, outputs: bool = False) -> list[Input]:
    """Return a model's inputs, or its outputs, as specifications for random data."""
    from onnx import helper

    from qnnmem.loader.onnx.inputs import index_limits

    rows = index_limits(model.graph)
    inputs = []
    for item in model.graph.output if outputs else model.graph.input:
        kind = item.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = tuple(size.dim_value for size in kind.shape.dim)
        inputs.append(Input(item.name, dtype.name, shape, below=rows.get(item.name)))
    return inputs


_TIME_LIMIT_S = 3600.0
_OTHER_BORDER = ("batch", "precision", "resolution")  # remedies that change the inputs


def validate(case: FixCase, change: Change) -> Validation:
    """Run a change and the original model on the same data; for LPAI, also in planned memory."""
    before = self_contained(case.model)
    with TemporaryDirectory(".qnnmem") as folder:
        binary, why = _prepared(change, Path(folder))
        models = [before.SerializeToString(), *models_of(change)]
        data = ProofData(inputs_of(before), absolute(case.samples), case.seed)
        request = Validate([*map(len, models)], data, change.is_lossy, binary)
        with ChildProcess("qnnmem.fix.proof.program", _TIME_LIMIT_S) as child:
            try:
                validated, _ = child.ask(request, Validated, b"".join(models))
            except ChildLost:
                raise
            except ChildFailed as exc:
                raise ChildFailed(f"validating failed: {exc}") from exc
    outputs = tuple(map(_output, validated.outputs))
    passed = all(_holds(output, change.is_lossy) for output in outputs)
    return Validation(
        holds=passed and not validated.findings,
        samples=validated.samples,
        planned=not why,
        why_not_planned=why,
        findings=validated.findings,
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


def _prepared(change: Change, folder: Path) -> tuple[Path | None, str]:
    """Return an LPAI binary of the changed model, or the reason why it could not be made."""
    options = change.options
    if not isinstance(options, PoolOptions) or change.parts is not None:
        return None, "a model cut into parts is not a single LPAI program"
    if any(step["remedy"] in _OTHER_BORDER for step in change.steps):
        return None, "the changed model and the original model have different inputs"
    if options.states:
        return None, "the changed model would carry its state from sample to sample"
    from qnnmem.lpai.preparation import prepare
    from qnnmem.lpai.prepare_options import PrepareOptions

    path, binary = folder / "changed.onnx", folder / "changed.bin"
    path.write_bytes(models_of(change)[0])
    prepare_options = PrepareOptions(
        io=options.io,
        align=options.align or DEFAULT_ALIGN,
        inplace=options.inplace,
        allow_float=True,
    )
    try:
        prepare({"model": path}, prepare_options).write(binary)
    except QnnMemError as exc:
        return None, f"the changed model cannot be prepared: {join_words(exc.what)}"
    return binary, ""
