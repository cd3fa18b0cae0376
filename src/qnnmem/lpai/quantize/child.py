"""Child program that quantizes a model with onnxruntime.

Calibration runs the model, which is untrusted code on untrusted data. A crash, a hang or running
out of memory affects only this limited process. It receives one request and sends any number of
`QuantizeProgress`, then one `Quantized` with the model as payload, then possibly a
`QuantizeAdvice`.

  optimise (fold constants, fuse batch normalisation)      onnxruntime, basic level
  measure the range of every float tensor on the samples
  replace constants that represent infinity
  insert quantize and dequantize nodes
  use the same scale for both ends of a state, make inputs and outputs integer
  run both models on some samples and compare
  if the outputs differ greatly, try wider types and send their errors in a second reply
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from qnnmem.calibration import Input, Sample, random_sample, read_sample
from qnnmem.child import describe_limit, limit_memory, open_replies
from qnnmem.errors import QnnMemError
from qnnmem.loader.onnx.tensor import embed, tensors
from qnnmem.lpai.compiled import Quant
from qnnmem.lpai.quantize.quantized_graph import (
    CONTROL,
    RECURRENT,
    Feed,
    Measured,
    ValueRange,
    Widths,
    drop_unread_states,
    drop_unused_domains,
    insert,
    integer_io,
    measure,
    name_nodes,
    open_session,
    own_biases,
    replace_endless,
    tie_states,
)
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.results.prepared import LARGE_ERROR, TriedWidths
from qnnmem.results.result import finite
from qnnmem.text import quote, sentence
from qnnmem.wire import ChildFailure, WireMessage, read_frame, write_frame

if TYPE_CHECKING:
    import onnx

# With a float32 mask of -1e9, 8 bits cannot distinguish any other values.
_WIDE_RANGE = 1e6

Say = Callable[[str], None]


class Quantize(WireMessage, frozen=True):
    """Request to quantize the model in the payload; its weights can be in files next to `path`."""

    doing: ClassVar[str] = "quantizing"
    path: Path
    bits: int
    weight_bits: int
    inputs: list[Input]
    samples: tuple[Sample, ...] | None  # None: random samples from the seed
    count: int
    seed: int
    states: list[tuple[str, str]]
    integer_io: bool
    advice_s: float  # seconds for trying wider types
    result_limit: int  # maximum bytes of the result


class QuantizeProgress(WireMessage, frozen=True):
    """The current step of quantizing."""

    text: str


class Quantized(WireMessage, frozen=True):
    """Reply with the quantized model: notes, error, scales of inputs and outputs."""

    notes: list[str]
    samples: int
    worst: float | None  # largest difference from the float model
    io: dict[str, Quant]
    poor: bool  # a `QuantizeAdvice` follows


class QuantizeAdvice(WireMessage, frozen=True):
    """Reply with the errors that wider types would have."""

    tried: tuple[TriedWidths, ...]


def quantize(
    request: Quantize, payload: bytes, say: Say
) -> tuple[Quantized, bytes, Iterator[TriedWidths]]:
    """Return the reply, the quantized model, and an iterator that tries wider types."""
    import onnx

    states = request.states
    model = onnx.ModelProto.FromString(payload)
    for tensor in tensors(model):
        embed(request.path, tensor)
    model, notes = _optimised(model)
    name_nodes(model.graph)
    own_biases(model.graph)
    drop_unread_states(model.graph)
    measured = _measure(model, request, say)
    say("inserting quantize nodes")
    widths = Widths(request.bits, request.weight_bits)
    begin = monotonic()
    result, insert_notes = _inserted(model, measured, widths, states)
    notes += insert_notes
    say("comparing with the float model")
    worst = _worst_error(model, result, measured.feeds)
    notes += _changed_integers(model, result, measured.feeds)
    seconds = monotonic() - begin
    io: dict[str, Quant] = {}
    if request.integer_io:
        io, io_notes = integer_io(result)
        notes += io_notes
    open_session(result)  # fails unless onnxruntime accepts the finished model
    poor = worst is not None and worst > LARGE_ERROR
    if result.ByteSize() > request.result_limit:
        raise ValueError(f"its computed constants exceed {request.result_limit:,} bytes")
    blob = bytes(result.SerializeToString(deterministic=True))
    pace = (seconds, request.advice_s)
    tries = _tries(model, measured, widths, states, pace) if poor else iter(())
    return Quantized(notes, measured.samples, worst, io, poor), blob, tries


def _inserted(
    model: onnx.ModelProto, measured: Measured, widths: Widths, states: Sequence[tuple[str, str]]
) -> tuple[onnx.ModelProto, list[str]]:
    """Return a copy of the model with quantize nodes, and notes."""
    import onnx

    rough = onnx.ModelProto()
    rough.CopyFrom(model)
    notes = replace_endless(rough.graph, measured.ranges)
    result = insert(rough, measured, widths, states)
    notes += [*_range_notes(measured.ranges), *_op_notes(rough.graph)]
    return result, [*notes, *tie_states(result, states)]


def _tries(
    model: onnx.ModelProto,
    measured: Measured,
    narrow: Widths,
    states: Sequence[tuple[str, str]],
    pace: tuple[float, float],
) -> Iterator[TriedWidths]:
    """Yield the errors that wider types would have on the same samples.

    `pace` holds two times in seconds: for one attempt, and for all attempts.
    """
    seconds, limit = pace
    begin = monotonic()
    wider = (Widths(narrow.activations, 16), Widths(16, narrow.weights), Widths(16, 16))
    for widths in sorted({*wider} - {narrow}):
        if monotonic() - begin + seconds > limit:
            return
        worst = _worst_error(model, _inserted(model, measured, widths, states)[0], measured.feeds)
        if worst is not None:
            yield TriedWidths(*widths, finite(worst))


def _optimised(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model, simplified by onnxruntime if possible, and notes."""
    import onnx

    onnxruntime = import_onnxruntime()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        try:
            open_session(model, optimized_model_filepath=str(path), graph_optimization_level=level)
            simplified = onnx.load(path)
        except Exception as exc:  # onnxruntime raises classes of its own and plain RuntimeError
            return model, [f"the model was not simplified before quantizing: {sentence(exc)}"]
    drop_unused_domains(simplified)
    return simplified, []


def _measure(model: onnx.ModelProto, request: Quantize, say: Say) -> Measured:
    count, states = request.count, request.states
    state_inputs = {old for old, _ in states}
    done = iter(range(1, count + 1))

    def feeds() -> Iterator[Feed]:
        if request.samples is None:
            inputs = [item for item in request.inputs if item.name not in state_inputs]
            yield from (random_sample(inputs, request.seed, number) for number in range(count))
        else:
            for sample in request.samples:
                yield read_sample(sample, request.inputs, state_inputs)

    return measure(
        model, feeds(), states, lambda: say(f"calibrating sample {next(done)} of {count}")
    )


def _range_notes(ranges: Mapping[str, ValueRange]) -> Iterator[str]:
    wide = [name for name, r in ranges.items() if max(-r.lowest, r.highest) > _WIDE_RANGE]
    if wide:
        yield (
            f"tensors with values beyond {_WIDE_RANGE:,.0f}: {len(wide)}, e.g. "
            f"{quote(wide[0])}; their small values are lost; masks made of large constants "
            "are a common cause"
        )


def _op_notes(graph: onnx.GraphProto) -> Iterator[str]:
    kinds = [node.op_type for node in graph.node]
    recurrent = sum(kind in RECURRENT for kind in kinds)
    if recurrent:
        yield (
            f"recurrent ops with quantized inputs, weights and outputs: {recurrent}; a device may "
            "be less accurate, because only onnxruntime keeps full precision between time steps"
        )
    control = sum(kind in CONTROL for kind in kinds)
    if control:
        yield f"branches and loops whose bodies remain in floating point: {control}"


def _worst_error(
    model: onnx.ModelProto, result: onnx.ModelProto, feeds: Sequence[Feed]
) -> float | None:
    """Return the largest output error, relative to the largest absolute value of that output."""
    import numpy

    before, after = open_session(model), open_session(result)
    floats = [item.name for item in before.get_outputs() if item.type == "tensor(float)"]
    if not floats:
        return None
    spans, errors = numpy.zeros(len(floats)), numpy.zeros(len(floats))
    for feed in feeds:
        pairs = zip(before.run(floats, feed), after.run(floats, feed), strict=True)
        for position, (exact, rough) in enumerate(pairs):
            good = numpy.isfinite(exact)
            if good.any():
                spans[position] = max(spans[position], float(abs(exact[good]).max()))
                gaps = abs(exact[good] - rough[good])
                gap = float(numpy.where(numpy.isnan(gaps), numpy.inf, gaps).max())
                errors[position] = max(errors[position], gap)
    return float((errors / numpy.maximum(spans, 1e-30)).max())


def _changed_integers(
    model: onnx.ModelProto, result: onnx.ModelProto, feeds: Sequence[Feed]
) -> Iterator[str]:
    """Yield, for each integer output, a sentence about how many values quantization changed."""
    before, after = open_session(model), open_session(result)
    names = [item.name for item in before.get_outputs() if "float" not in item.type]
    changed, total = [0] * len(names), [0] * len(names)
    for feed in feeds if names else ():
        pairs = zip(before.run(names, feed), after.run(names, feed), strict=True)
        for i, (exact, rough) in enumerate(pairs):
            total[i] += exact.size
            changed[i] += int((exact != rough).sum()) if exact.shape == rough.shape else exact.size
    for name, differ, of in zip(names, changed, total, strict=True):
        yield (
            f"output {quote(name)} (integers): {differ:,} of {of:,} values differ on these samples"
        )


def main() -> int:
    """Serve one request; return the exit code."""
    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    frame = read_frame(sys.stdin.buffer, Quantize, limit)
    if frame is None:
        return 1
    try:
        reply, blob, tries = quantize(
            *frame, lambda text: write_frame(replies, QuantizeProgress(text))
        )
    except QnnMemError as exc:
        write_frame(replies, ChildFailure(str(exc), "usage"))  # the error names its file
    except MemoryError:
        used_up = f"{describe_limit(limit)} are used up; use smaller shapes"
        write_frame(replies, ChildFailure(used_up))
    except Exception as exc:  # the parent reports it
        write_frame(replies, ChildFailure(sentence(exc)))
    else:
        write_frame(replies, reply, blob)
        if reply.poor:
            write_frame(replies, QuantizeAdvice(tuple(tries)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
