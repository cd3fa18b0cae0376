"""Quantize and dequantize nodes around every op of a float model, by onnxruntime's quantizer.

Used in the child program. Which scale a tensor gets follows from its range, with two exceptions:
both ends of a state share one, and ops that only move data keep that of their input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.lpai.quantize.graph import RECURRENT, drop_unused_domains
from qnnmem.lpai.quantize.ranges import Measured, ValueRange
from qnnmem.quiet_onnxruntime import import_onnxruntime

if TYPE_CHECKING:
    import onnx

# Their bodies are graphs of their own, which onnxruntime's static quantizer leaves alone.
CONTROL = ("If", "Loop", "Scan", "SequenceMap")
# QuantizeLinear of the ONNX standard: since 10, settled in 13, with 16-bit integers since 21.
_OPSET_8_BITS, _OPSET_16_BITS = 13, 21
# Below this range every value is noise; it is also the least that QNN takes.
_LEAST_RANGE = 1e-4


class Widths(NamedTuple):
    """Bits of one element."""

    activations: int
    weights: int


def insert(
    model: onnx.ModelProto, measured: Measured, bits: Widths, states: Sequence[tuple[str, str]]
) -> onnx.ModelProto:
    """Model with quantize and dequantize nodes around every op."""
    import onnx

    widths = import_onnxruntime("quantization").QuantType
    quantizer_of = import_onnxruntime("quantization.qdq_quantizer").QDQQuantizer
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    del typed.graph.value_info[:]
    io = {item.name for item in (*typed.graph.input, *typed.graph.output)}
    typed.graph.value_info.extend(item for item in measured.types if item.name not in io)
    weights = widths.QInt8 if bits.weights == 8 else widths.QInt16
    overrides = _state_ranges(measured.ranges, states) | _recurrent_weights(model.graph, weights)
    quantizer = quantizer_of(
        typed,
        per_channel=False,
        reduce_range=False,
        weight_qType=weights,
        activation_qType=widths.QUInt8 if bits.activations == 8 else widths.QUInt16,
        tensors_range=_tensors_data(measured.ranges),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=sorted({n.op_type for n in model.graph.node} - {*CONTROL}),
        extra_options=_options(model, bits, overrides, bool(states)),
    )
    for item in model.graph.input:  # else an activation right behind an input stays float
        quantizer.quantize_activation_tensor(item.name)
    return _finished(quantizer.quantize_model())


def _options(
    model: onnx.ModelProto, bits: Widths, overrides: dict[str, Any], has_states: bool
) -> dict[str, Any]:
    """Settings of onnxruntime's quantizer."""
    opset = _OPSET_8_BITS if bits == Widths(8, 8) else _OPSET_16_BITS
    return {
        "WeightSymmetric": True,
        "ActivationSymmetric": False,
        "ForceQuantizeNoInputCheck": True,
        "MinimumRealRange": _LEAST_RANGE,
        "TensorQuantOverrides": overrides,
        # A Relu may go because its range starts at 0; that of a state may start below.
        "QDQKeepRemovableActivations": has_states,
        "UseQDQContribOps": _opset(model) < opset,
    }


def _finished(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without the working notes of onnxruntime's quantizer."""
    del model.graph.value_info[:]
    kept = [item for item in model.metadata_props if not item.key.startswith("onnx.")]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    drop_unused_domains(model)
    return model


def _opset(model: onnx.ModelProto) -> int:
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def _tensors_data(ranges: Mapping[str, ValueRange]) -> Any:
    import numpy

    calibrate = import_onnxruntime("quantization.calibrate")
    values = {
        name: (numpy.array(item.lowest, "float32"), numpy.array(item.highest, "float32"))
        for name, item in ranges.items()
    }
    return calibrate.TensorsData(calibrate.CalibrationMethod.MinMax, values)


def _state_ranges(
    ranges: Mapping[str, ValueRange], states: Sequence[tuple[str, str]]
) -> dict[str, list[dict[str, Any]]]:
    """One range for both ends of a state: its bytes are read as they were written."""
    import numpy

    found = {}
    for old, new in states:
        if old in ranges and new in ranges:
            both = ranges[old].union(ranges[new])
            limits = {"rmin": numpy.float32(both.lowest), "rmax": numpy.float32(both.highest)}
            found[old] = found[new] = [limits]
    return found


def _recurrent_weights(graph: onnx.GraphProto, kind: Any) -> dict[str, list[dict[str, Any]]]:
    """Weights of recurrent ops are weights like others; onnxruntime would not know."""
    stored = {item.name for item in graph.initializer}
    recurrent = [node for node in graph.node if node.op_type in RECURRENT]
    names = {name for node in recurrent for name in node.input[1:3] if name in stored}
    return {n: [{"quant_type": kind, "symmetric": True}] for n in sorted(names)}
