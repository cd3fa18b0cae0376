"""Quantizes a float model for LPAI: 8- or 16-bit activations, 8-bit weights, one scale per tensor.

onnxruntime's static QDQ quantizer runs in a child process with limits, because measuring the ranges
means running the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack

from qnnmem.atomic_file import write_whole
from qnnmem.calibration import Input, Sample, absolute, find_samples
from qnnmem.child import REPLY_LIMIT, ChildProcess
from qnnmem.errors import LoadError, UsageError, chain_words
from qnnmem.loader.onnx.tensor import EXTERNAL, stored_bytes, tensors
from qnnmem.lpai.compiled import Quant
from qnnmem.lpai.quantize.child import (
    Quantize,
    QuantizeAdvice,
    Quantized,
    QuantizeProgress,
)
from qnnmem.lpai.quantize.precision import classify, find_obstacle
from qnnmem.results.prepared import TriedWidths
from qnnmem.text import quote
from qnnmem.wire import ChildFailure, Frame

if TYPE_CHECKING:
    import onnx

    from qnnmem.loader.onnx import FixedSizes

__all__ = ["QuantizeResult", "classify", "quantize_model"]

RANDOM_SAMPLES = 8
_ADVICE_S = 60.0  # limit on the time for trying wider types
_LARGEST_MODEL = (2 << 30) - 1  # protobuf's own limit


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """Notes, errors and scales from quantizing a model."""

    notes: tuple[str, ...]
    samples: int
    seeded_random: bool  # ranges come from random data: right for sizes, wrong for accuracy
    worst_error: float | None  # largest difference, relative to the output's largest value
    io: Mapping[str, Quant] = field(default_factory=dict)  # of integer inputs and outputs
    tried: tuple[TriedWidths, ...] = ()  # other widths and their errors, if the error is large

    def __post_init__(self) -> None:
        object.__setattr__(self, "io", MappingProxyType(dict(self.io)))


def quantize_model(
    path: Path,
    output: Path,
    *,
    bits: Literal[8, 16],
    weight_bits: Literal[8, 16] = 8,
    calibration: Path | None = None,
    seed: int = 0,
    states: Sequence[tuple[str, str]] = (),
    integer_io: bool = True,
    time_limit_s: float = 600.0,
    progress: Callable[[str], None] | None = None,
    **sizes: Unpack[FixedSizes],
) -> QuantizeResult:
    """Write a quantized copy of an ONNX model, and return its errors and scales.

    Without `calibration` the ranges come from random data that depends only on `seed`. The input
    and the output of each pair in `states` get the same scale and zero point.
    """
    from qnnmem.loader.onnx import executable

    for width in (bits, weight_bits):
        if width not in (8, 16):
            raise UsageError(f"{width} bits are not supported; LPAI computes with 8 or 16")
    model = executable(path, time_limit_s=min(60.0, time_limit_s), **sizes)
    inputs = _inputs(path, model)
    _check(path, model, states)
    samples = None if calibration is None else find_samples(calibration, inputs)
    outside = (tensor for tensor in tensors(model) if tensor.data_location == EXTERNAL)
    stored = model.ByteSize() + sum(map(stored_bytes, outside))
    # Quantizing shrinks weights and adds nodes; a larger result means huge computed constants.
    limit = min(_LARGEST_MODEL, 2 * stored + REPLY_LIMIT)
    request = Quantize(
        path=path.resolve(),
        bits=bits,
        weight_bits=weight_bits,
        inputs=inputs,
        samples=None if samples is None else absolute(samples),
        count=RANDOM_SAMPLES if samples is None else len(samples),
        seed=seed,
        states=list(states),
        integer_io=integer_io,
        advice_s=min(_ADVICE_S, time_limit_s / 4),  # later steps need time too
        result_limit=limit,
    )
    reply, blob, tried = _ask_child(
        path, time_limit_s, request, model.SerializeToString(), progress
    )
    write_whole(output, blob)
    return _result(reply, tried, samples)


def _result(
    reply: Quantized, tried: tuple[TriedWidths, ...], samples: Sequence[Sample] | None
) -> QuantizeResult:
    notes, worst = list(reply.notes), reply.worst
    if samples is None:
        notes.insert(
            0,
            f"ranges come from {reply.samples} random samples: sizes and addresses are right, "
            "but results are not accurate until ranges come from real samples (calibration)",
        )
    if worst is not None:
        notes.append(f"largest difference from the float model on these samples: {worst:.2%}")
    return QuantizeResult(tuple(notes), reply.samples, samples is None, worst, reply.io, tried)


def _inputs(path: Path, model: onnx.ModelProto) -> list[Input]:
    from onnx import helper

    from qnnmem.loader.onnx.inputs import index_limits

    rows = index_limits(model.graph)
    inputs = []
    for item in model.graph.input:
        kind = item.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = tuple(size.dim_value for size in kind.shape.dim)
        inputs.append(Input(item.name, dtype.name, shape, below=rows.get(item.name)))
    if not inputs:
        raise LoadError(path, "has no inputs, so there is nothing to calibrate")
    return inputs


def _check(path: Path, model: onnx.ModelProto, states: Sequence[tuple[str, str]]) -> None:
    """Raise LoadError for a model that onnxruntime's quantizer cannot quantize correctly."""
    if obstacle := find_obstacle(model):
        raise LoadError(path, chain_words(obstacle.words, obstacle.unquantized))
    if model.ByteSize() > _LARGEST_MODEL:
        raise LoadError(path, "is larger than 2 GiB, which onnxruntime cannot quantize")
    inputs = {item.name for item in model.graph.input}
    outputs = {item.name for item in model.graph.output}
    for old, new in states:
        if old not in inputs or new not in outputs:
            raise UsageError(
                f"state {quote(old)}={quote(new)} must be an input and an output of "
                f"{path}; inputs: {', '.join(map(quote, sorted(inputs)[:5]))}, outputs: "
                f"{', '.join(map(quote, sorted(outputs)[:5]))}"
            )


def _ask_child(
    path: Path,
    time_limit_s: float,
    request: Quantize,
    payload: bytes,
    progress: Callable[[str], None] | None,
) -> tuple[Quantized, bytes, tuple[TriedWidths, ...]]:
    """Return the child's reply, the quantized model, and the errors that wider types would have."""
    # A fixed hash seed: the order of sets must not affect the file.
    environment = {"PYTHONHASHSEED": "0"}
    tried: tuple[TriedWidths, ...] = ()
    with ChildProcess("qnnmem.lpai.quantize.child", time_limit_s, environment) as child:
        child.send(request, payload)
        reply: Quantized | ChildFailure | None = None
        blob = b""
        while reply is None:
            frame: Frame[Any] | None = child.receive(
                QuantizeProgress | Quantized | ChildFailure, request.result_limit
            )
            if frame is None:
                break
            if not isinstance(frame[0], QuantizeProgress):
                reply, blob = frame
            elif progress is not None:
                progress(frame[0].text)
        # Advice follows the result: a child that is killed while it tries more bits has succeeded.
        if isinstance(reply, Quantized) and reply.poor:
            advice = child.receive(QuantizeAdvice)
            tried = () if advice is None else advice[0].tried
    if reply is None:
        cure = "use fewer samples" if child.expired else "use smaller shapes"
        raise LoadError(path, f"{child.lost(request.doing)}; {cure}")
    if isinstance(reply, ChildFailure):
        if reply.kind == "usage":  # the error names its file
            raise UsageError(reply.sentence)
        raise LoadError(path, f"cannot be quantized: {reply.sentence}")
    return reply, blob, tried
