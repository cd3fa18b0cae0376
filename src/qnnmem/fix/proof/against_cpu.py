"""Compare a model on the CPU with HTP, or with saved outputs, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import ChildFailed, UsageError, join_words

if TYPE_CHECKING:
    import onnx

    from qnnmem.htp.compile import CompileFailure
    from qnnmem.results.validate import ComparedTensor, ValidateResult
    from qnnmem.targets.socs import Soc

_MOST_TENSORS = 400  # tensors made outputs to find the first that differs
_EXACT = 1e-5  # tolerance for saved outputs: explained by another order of float32 sums


def beside_htp(
    file: str,
    model: onnx.ModelProto,
    soc: Soc,
    tolerance: float | None,
    time_limit_s: float,
    say: Callable[[str], None],
) -> ValidateResult:
    """Compare a model on the CPU with the same model in the real HTP library."""
    from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model
    from qnnmem.htp.compile.compiled import TOLERANCE, rename_binary
    from qnnmem.htp.requests import CompareReply, CompareRequest, HtpSettings
    from qnnmem.htp.worker import Worker
    from qnnmem.temporary_folder import temporary_folder

    options = CompileOptions(time_limit_s=time_limit_s)
    other = f"HTP of {soc.name} (emulated)"
    with temporary_folder() as folder, Worker(warm=True) as worker:
        for every in (True, False):
            observed = _with_inner_outputs(model) if every else model
            path = Path(folder, f"{Path(file).stem}.onnx")
            path.write_bytes(observed.SerializeToString())
            say(f"compiling {path.name}")
            binary = path.with_suffix(".bin")
            compiled = compile_model(path, soc, options, output=binary, worker=worker)
            if not isinstance(compiled, CompileFailure):
                break
        else:
            assert isinstance(compiled, CompileFailure)  # noqa: S101 - for the type checker
            return _refused(file, other, model, compiled)
        epcontext = path.with_name("compiled.onnx")
        content = rename_binary(compiled.epcontext or b"", compiled.binary_name, binary.name)
        epcontext.write_bytes(content)
        say(f"running {path.name} on the CPU and on HTP")
        settings = HtpSettings(soc.model_id, None, None, memhandle=False, log="error")
        request = CompareRequest(path, path.parent, epcontext, settings=settings)
        outcome = worker.ask(request, time_limit_s=time_limit_s)
    if not outcome.is_done:
        verdict = "refused" if outcome.stage == "run" else "unknown"
        return _answer(file, other, verdict, why=outcome.sentence, tolerance=TOLERANCE)
    outputs = outcome.result(CompareReply).outputs
    gaps = {output.name: output.worst / output.size if output.size else None for output in outputs}
    limit = TOLERANCE if tolerance is None else tolerance
    return _compared(file, other, observed, gaps, limit, every=every)


def _with_inner_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its inner float tensors as outputs too, unless there are too many."""
    from onnx import ModelProto, TensorProto

    copy = ModelProto()
    copy.CopyFrom(model)
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    known = {info.name: info for info in model.graph.value_info}
    inner = [
        known[name]
        for node in model.graph.node
        for name in node.output
        if name in known and known[name].type.tensor_type.elem_type in floats
    ]
    if len(inner) <= _MOST_TENSORS:
        copy.graph.output.extend(inner)
    return copy


def _refused(
    file: str, other: str, model: onnx.ModelProto, failure: CompileFailure
) -> ValidateResult:
    """Return the result for a model that the compiler refuses, after a trial run on the CPU."""
    from qnnmem.fix.proof.prove import prove
    from qnnmem.htp.compile.compiled import TOLERANCE

    why = join_words(failure.why)
    try:
        prove(model, model)
    except ChildFailed as exc:
        why = f"the CPU cannot run the model either: {exc}"
        return _answer(file, other, "unknown", why=why, tolerance=TOLERANCE)
    memory = False if failure.unsupported else True if failure.refusal else None
    return _answer(file, other, "refused", why=why, tolerance=TOLERANCE, is_memory=memory)


def beside_files(
    file: str,
    model: onnx.ModelProto,
    data: Path,
    results: Path,
    tolerance: float | None,
    time_limit_s: float,
) -> ValidateResult:
    """Compare a model on the CPU with saved outputs, sample by sample."""
    from qnnmem.calibration import Input, find_samples
    from qnnmem.fix.proof.prove import beside_saved, inputs_of

    inputs = inputs_of(model)
    samples = find_samples(data, inputs)
    outputs: list[Input] = inputs_of(model, outputs=True)
    saved = find_samples(results, outputs)
    if len(saved) != len(samples):
        raise UsageError(
            f"{len(samples)} input samples but {len(saved)} saved outputs; the numbers must "
            "be equal"
        )
    checks = beside_saved(model, samples, outputs, saved, time_limit_s)
    gaps = {check.name: check.relative if not check.nans else None for check in checks}
    limit = _EXACT if tolerance is None else tolerance
    other = f"the outputs in {results}"
    return _compared(file, other, model, gaps, limit, samples=len(samples))


def _compared(
    file: str,
    other: str,
    model: onnx.ModelProto,
    gaps: Mapping[str, float | None],
    tolerance: float,
    *,
    every: bool = False,
    samples: int = 1,
) -> ValidateResult:
    from qnnmem.results.result import finite
    from qnnmem.results.validate import ComparedTensor

    op_types = {name: node.op_type for node in model.graph.node for name in node.output}
    order = [name for name in op_types if name in gaps]
    order += [name for name in gaps if name not in op_types]
    tensors = tuple(
        ComparedTensor(
            name,
            op_types.get(name, ""),
            None if (gap := gaps[name]) is None else finite(gap),
            gap is None or gap <= tolerance,
        )
        for name in order
    )
    if all(gap is None for gap in gaps.values()):
        why = "the outputs have no finite values to compare"
        return _answer(file, other, "unknown", tensors, tolerance=tolerance, why=why)
    same = all(tensor.agrees for tensor in tensors)
    return _answer(
        file,
        other,
        "same" if same else "differs",
        tensors,
        tolerance=tolerance,
        every=every,
        samples=samples,
        is_memory=same,
    )


def _answer(
    file: str,
    other: str,
    verdict: str,
    tensors: tuple[ComparedTensor, ...] = (),
    *,
    tolerance: float,
    every: bool = False,
    samples: int = 1,
    why: str = "",
    is_memory: bool | None = None,
) -> ValidateResult:
    from qnnmem.results.validate import ValidateResult

    return ValidateResult(
        model=file,
        other=other,
        verdict=verdict,
        is_memory=is_memory,
        tolerance=tolerance,
        first=next((tensor.name for tensor in tensors if not tensor.agrees), None),
        every=every,
        tensors=tensors,
        samples=samples,
        why=why,
    )
