"""The graph changes that quantize a model; used in the child program.

ranges       of all float tensors are measured by running the model
infinity     constants that represent infinity (masks, neutral elements) are replaced, because no
             integer scale could hold them; the new value is outside the range of all other
             inputs and outputs of the reading ops, by the width of that range (span)
               Max(x, -inf)             ->  Max(x, low - span)          changes nothing
               Where(mask, x, -3.4e38)  ->  Where(mask, x, low - span)  still far below
QDQ nodes    are inserted around every op by onnxruntime's quantizer; the scale follows from the
             range, but both ends of a state share it, and ops that only move data preserve it
IO           becomes integer
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.errors import UsageError
from qnnmem.loader.onnx.graph import bodies, captured, is_quant, reads
from qnnmem.lpai.compiled import Quant
from qnnmem.quiet_onnxruntime import exact_session, import_onnxruntime
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Feed = Mapping[str, "NDArray[Any]"]
# Bytes of tensors fetched in one run; if a model has more, it runs several times for each sample.
_FETCH_BYTES = 512 << 20
# Numbers at least this large count as infinity, as in masks made of the largest float.
ENDLESS = 1e30
_KEPT_FEEDS = 8
_FLOATS = ("tensor(float)", "tensor(float16)")

# Ops that return the mask itself only if all inputs are masks.
_PICK = ("Max", "Min", "Clip")

METADATA_KEY = "qnnmem.quant."
RECURRENT = ("LSTM", "GRU", "RNN")
_BIASED = ("Conv", "ConvTranspose", "Gemm", "BatchNormalization", "InstanceNormalization")
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"

# Ops with bodies, which onnxruntime's static quantizer does not change.
CONTROL = ("If", "Loop", "Scan", "SequenceMap")
# First ONNX operator sets with a stable QuantizeLinear, and with 16-bit integers in it.
_OPSET_8_BITS, _OPSET_16_BITS = 13, 21
# Below this range every value is noise; it is also the smallest range that QNN accepts.
_LEAST_RANGE = 1e-4


class ValueRange(NamedTuple):
    """Minimum and maximum of the finite values of a tensor; both zero if there are none."""

    lowest: float
    highest: float

    def union(self, other: ValueRange) -> ValueRange:
        """Return the smallest range that contains this range and another."""
        return ValueRange(min(self.lowest, other.lowest), max(self.highest, other.highest))


class Measured(NamedTuple):
    """Ranges by tensor, types of all tensors, the number of samples, and the first samples."""

    ranges: dict[str, ValueRange]
    types: list[onnx.ValueInfoProto]
    samples: int
    feeds: Sequence[Feed]


def open_session(model: onnx.ModelProto, **settings: Any) -> Any:
    """Return a single-threaded session without optimisation, so that results are reproducible."""
    return exact_session(model.SerializeToString(), **settings)


def measure(
    model: onnx.ModelProto,
    samples: Iterable[Feed],
    states: Sequence[tuple[str, str]],
    after_sample: Callable[[], None],
) -> Measured:
    """Return the range of each float tensor over all samples.

    A state input without a value in the sample gets the previous state output, initially zero.
    """
    session = open_session(_with_all_outputs(model))
    outputs = [*session.get_outputs(), *session.get_inputs()]
    kinds = {item.name: (item.type, item.shape) for item in outputs}
    names = [item.name for item in session.get_outputs() if item.type in _FLOATS]
    chunks = _chunks(names, kinds, [new for _, new in states])
    ranges: dict[str, ValueRange] = {}
    feeds: list[Feed] = []
    count, carried = 0, _zeros(kinds, [old for old, _ in states])
    for count, sample in enumerate(samples, 1):
        feed = {**carried, **sample}
        for chunk in chunks:
            values = dict(zip(chunk, session.run(chunk, feed), strict=True))
            carried.update({old: values[new] for old, new in states if new in values})
            _widen(ranges, {name: values[name] for name in chunk if kinds[name][0] in _FLOATS})
        _widen(ranges, {n: value for n, value in feed.items() if kinds[n][0] in _FLOATS})
        feeds += [feed] * (count <= _KEPT_FEEDS)
        after_sample()
    return Measured(ranges, _types(kinds), count, feeds)


def _with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    known = {item.name for item in (*wide.graph.output, *wide.graph.input)}
    for name in (name for node in model.graph.node for name in node.output):
        if name and name not in known:
            wide.graph.output.append(onnx.ValueInfoProto(name=name))
            known.add(name)
    return wide


def _chunks(
    names: Sequence[str], kinds: Mapping[str, tuple[str, Any]], first: Sequence[str]
) -> list[list[str]]:
    """Return groups of names to fetch together; the first group contains the state outputs."""
    chunks: list[list[str]] = [list(dict.fromkeys(first))]
    room = _FETCH_BYTES
    for name in names:
        if name in first:
            continue
        size = _bytes(kinds[name][1])
        if size > room and chunks[-1]:
            chunks.append([])
            room = _FETCH_BYTES
        chunks[-1].append(name)
        room -= size
    return [chunk for chunk in chunks if chunk]


def _bytes(shape: Any) -> int:
    sizes = [size for size in shape or () if isinstance(size, int) and size >= 0]
    return 4 * math.prod(sizes)


def _zeros(kinds: Mapping[str, tuple[str, Any]], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    import numpy

    from qnnmem.loader.onnx.trial_program import TYPE_NAMES

    return {name: numpy.zeros(kinds[name][1], TYPE_NAMES[kinds[name][0]]) for name in names}


def _widen(ranges: dict[str, ValueRange], values: Feed) -> None:
    for name, value in values.items():
        seen = range_of(value)
        ranges[name] = ranges[name].union(seen) if name in ranges else seen


def range_of(value: NDArray[Any]) -> ValueRange:
    """Return the range of an array's finite values; infinite values, as in masks, are ignored."""
    import numpy

    finite = value[numpy.abs(value) < ENDLESS]  # false for NaN
    if not finite.size:
        return ValueRange(0.0, 0.0)
    return ValueRange(float(finite.min()), float(finite.max()))


def _types(kinds: Mapping[str, tuple[str, Any]]) -> list[onnx.ValueInfoProto]:
    """Return the tensor types that onnxruntime found; tensors without a type are not quantized."""
    import numpy
    from onnx import helper

    from qnnmem.loader.onnx.trial_program import TYPE_NAMES

    types = []
    for name, (kind, shape) in kinds.items():
        if kind in TYPE_NAMES:
            elem = helper.np_dtype_to_tensor_dtype(numpy.dtype(TYPE_NAMES[kind]))
            types.append(helper.make_tensor_value_info(name, elem, shape))
    return types


def replace_endless(graph: onnx.GraphProto, ranges: dict[str, ValueRange]) -> list[str]:
    """Replace infinite constants; widen the ranges of tensors computed from them; return notes."""
    from onnx import numpy_helper

    replaced = 0
    for item in graph.initializer:
        values = _endless(item)
        readers = [node for node in graph.node if item.name in node.input]
        names = {name for node in readers for name in (*node.input, *node.output)}
        neighbours = [ranges[name] for name in names if name in ranges]
        if values is None or not neighbours:
            continue
        seen = reduce(ValueRange.union, neighbours)
        item.CopyFrom(numpy_helper.from_array(_limited(values, seen), item.name))
        for node in (node for node in readers if node.op_type not in _PICK):
            for name in (name for name in node.output if name in ranges):
                ranges[name] = ranges[name].union(_reach(values, seen))
        replaced += 1
    what = "each was replaced by a value beyond the range of neighbouring tensors"
    return [f"constants that stand for infinity: {replaced}; {what}"] if replaced else []


def _endless(item: onnx.TensorProto) -> NDArray[Any] | None:
    """Return the values of a float constant if some of them are infinite, otherwise None."""
    import onnx
    from onnx import numpy_helper

    if item.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
        return None
    values = numpy_helper.to_array(item)
    return values if (abs(values) >= ENDLESS).any() else None


def _limited(values: NDArray[Any], seen: ValueRange) -> NDArray[Any]:
    import numpy

    wide = _widened(seen)
    low = numpy.where(values <= -ENDLESS, wide.lowest, values)
    return numpy.asarray(numpy.where(values >= ENDLESS, wide.highest, low), values.dtype)


def _reach(values: NDArray[Any], seen: ValueRange) -> ValueRange:
    """Return the range `seen`, widened below or above if finite values replace infinities there."""
    wide = _widened(seen)
    low = wide.lowest if (values <= -ENDLESS).any() else seen.lowest
    return ValueRange(low, wide.highest if (values >= ENDLESS).any() else seen.highest)


def _widened(seen: ValueRange) -> ValueRange:
    span = max(seen.highest - seen.lowest, 1.0)
    return ValueRange(seen.lowest - span, seen.highest + span)


def encodings(model: onnx.ModelProto) -> dict[str, Quant]:
    """Return the scales and zero points of integer inputs and outputs, from a model's metadata."""
    quants = {}
    for item in model.metadata_props:
        name = item.key.removeprefix(METADATA_KEY)
        if name != item.key:
            try:
                entry = json.loads(item.value[:1000])
                quants[name] = Quant(float(entry["scale"]), int(entry["zero_point"]))
            except (ValueError, TypeError, KeyError) as exc:
                what = f"the model's metadata entry {item.key[:80]!r} is not valid"
                raise UsageError(what) from exc
    return quants


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a unique name, because onnxruntime's quantizer identifies nodes by name."""
    used: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in used:
            node.name = f"{node.op_type}_{index}"
        while node.name in used:
            node.name += "_"
        used.add(node.name)


def own_biases(graph: onnx.GraphProto) -> None:
    """Copy shared biases, so that each node has a separate bias.

    The scale of a bias depends on the node's input and weight. onnxruntime also copies shared
    biases, but under names that the model might already use for something else.
    """
    stored, seen = dict(_stored(graph)), set[str]()
    for node in graph.node:
        bias = node.input[2] if len(node.input) > 2 and node.op_type in _BIASED else ""
        if bias in stored and bias in seen:
            copy = graph.initializer.add()
            copy.CopyFrom(stored[bias])
            copy.name = node.input[2] = _fresh(graph, f"{bias}_of_{node.name}")
        seen.add(bias)


def drop_unread_states(graph: onnx.GraphProto) -> None:
    """Remove unread results of recurrent ops; in ONNX all of these results are optional."""
    read = {name for node in graph.node for name in reads(node)}
    read |= {item.name for item in graph.output}
    for node in graph.node:
        if node.op_type in RECURRENT and not node.domain:
            node.output[:] = [name if name in read else "" for name in node.output]


def drop_unused_domains(model: onnx.ModelProto) -> None:
    """Remove unused operator sets, because onnxruntime adds every set that it knows."""
    used = {""} | set(_domains(model.graph))
    entries = [item for item in model.opset_import if item.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(entries)


def _domains(graph: onnx.GraphProto) -> Iterable[str]:
    for node in graph.node:
        yield node.domain
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _domains(body)


def tie_states(model: onnx.ModelProto, states: Sequence[tuple[str, str]]) -> list[str]:
    """Requantize each state output whose scale differs from its input's scale; return notes."""
    notes = []
    for old, new in states:
        entry, leave = _entry(model.graph, old), _exit(model.graph, new)
        if entry is None or leave is None:
            continue
        if _values(model.graph, entry) != _values(model.graph, leave):
            _requantize(model.graph, leave, entry)
            notes.append(f"state {quote(new)} is requantized to the scale of {quote(old)}")
    return notes


def _requantize(graph: onnx.GraphProto, leave: onnx.NodeProto, like: onnx.NodeProto) -> None:
    """Add nodes that requantize an output after its dequantize node.

    The new quantize and dequantize nodes use the scale and zero point of `like`.
    """
    from onnx import helper

    result = leave.output[0]
    names = [_fresh(graph, f"{result}_requantized_{part}") for part in ("from", "to")]
    leave.output[0] = names[0]
    _rename_reads(graph, result, names[0])
    parameters = list(like.input[1:])
    domain = leave.domain
    graph.node.extend(
        [
            helper.make_node(_Q, [names[0], *parameters], [names[1]], names[1], domain=domain),
            helper.make_node(_DQ, [names[1], *parameters], [result], names[1] + "_", domain=domain),
        ]
    )


def integer_io(model: onnx.ModelProto) -> tuple[dict[str, Quant], list[str]]:
    """Make float inputs and outputs integer by removing their quantize and dequantize nodes.

    Return the scales and zero points by name, and notes. Names do not change. An input or output
    that other nodes need as float stays float, and a note names it.
    """
    graph, quants = model.graph, {}
    for item in graph.input:
        entry = _entry(graph, item.name)
        if entry is not None and item.name not in {other.name for other in graph.output}:
            quants[item.name] = _encoding(graph, entry)
            _set_type(graph, item, entry)
            _rename_reads(graph, entry.output[0], item.name)
            graph.node.remove(entry)
    for item in graph.output:
        leave = None if item.name in _captured(graph) else _exit(graph, item.name)
        if leave is not None and leave.input[0] not in _io(graph):
            quants[item.name] = _encoding(graph, leave)
            _set_type(graph, item, leave)
            _take_output(graph, leave, item.name)
    for name, quant in quants.items():
        entry_text = json.dumps(asdict(quant), sort_keys=True)
        model.metadata_props.add(key=METADATA_KEY + name, value=entry_text)
    _drop_unread(graph)
    return quants, [f"{quote(name)} stays floating point" for name in _float_io(graph)]


def _take_output(graph: onnx.GraphProto, leave: onnx.NodeProto, name: str) -> None:
    """Replace a float output with the integers that its dequantize node reads."""
    stored = leave.input[0]
    if any(name in reads(node) for node in graph.node):
        leave.output[0] = _fresh(graph, f"{name}_dequantized")
        _rename_reads(graph, name, leave.output[0])
    else:
        graph.node.remove(leave)
    for node in graph.node:
        node.output[:] = [name if out == stored else out for out in node.output]
    _rename_reads(graph, stored, name)


def _entry(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    """Return the quantize node that is the only reader of a graph input; None if there is none."""
    readers = [node for node in graph.node if name in reads(node)]
    return readers[0] if len(readers) == 1 and is_quant(readers[0], _Q) else None


def _exit(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    """Return the dequantize node that writes a graph output; None if there is none."""
    makers = (node for node in graph.node if name in node.output)
    return next((node for node in makers if is_quant(node, _DQ)), None)


def _encoding(graph: onnx.GraphProto, node: onnx.NodeProto) -> Quant:
    scale, zero_point = _values(graph, node)
    return Quant(scale, int(zero_point))


def _values(graph: onnx.GraphProto, node: onnx.NodeProto) -> tuple[float, float]:
    stored = _stored(graph)
    scale, zero_point = (stored[name] for name in node.input[1:3])
    return _scalar(scale), _scalar(zero_point)


def _scalar(tensor: onnx.TensorProto) -> float:
    from onnx import numpy_helper

    return float(numpy_helper.to_array(tensor).reshape(-1)[0])


def _set_type(graph: onnx.GraphProto, item: onnx.ValueInfoProto, node: onnx.NodeProto) -> None:
    item.type.tensor_type.elem_type = _stored(graph)[node.input[2]].data_type


def _stored(graph: onnx.GraphProto) -> Mapping[str, onnx.TensorProto]:
    return {item.name: item for item in graph.initializer}


def _rename_reads(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def _captured(graph: onnx.GraphProto) -> set[str]:
    """Return the outer names that branches and loop bodies read; these must not be renamed."""
    return {name for node in graph.node for body in bodies(node) for name in captured(body)}


def _io(graph: onnx.GraphProto) -> set[str]:
    return {item.name for item in (*graph.input, *graph.output)}


def _float_io(graph: onnx.GraphProto) -> list[str]:
    import onnx

    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    items = (*graph.input, *graph.output)
    return [item.name for item in items if item.type.tensor_type.elem_type in floats]


def _fresh(graph: onnx.GraphProto, name: str) -> str:
    used = {out for node in graph.node for out in node.output} | _stored(graph).keys() | _io(graph)
    while name in used:
        name += "_"
    return name


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Remove unused constants and all value infos; used constants keep their order."""
    read = {name for node in graph.node for name in reads(node)} | _io(graph)
    constants = [item for item in graph.initializer if item.name in read]
    del graph.initializer[:]
    graph.initializer.extend(constants)
    del graph.value_info[:]


class Widths(NamedTuple):
    """Bits per element of activations and of weights."""

    activations: int
    weights: int


def insert(
    model: onnx.ModelProto, measured: Measured, bits: Widths, states: Sequence[tuple[str, str]]
) -> onnx.ModelProto:
    """Return the model with quantize and dequantize nodes around every op."""
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
    for item in model.graph.input:  # otherwise an activation right after an input stays float
        quantizer.quantize_activation_tensor(item.name)
    return _finished(quantizer.quantize_model())


def _options(
    model: onnx.ModelProto, bits: Widths, overrides: dict[str, Any], has_states: bool
) -> dict[str, Any]:
    """Return the settings of onnxruntime's quantizer."""
    opset = _OPSET_8_BITS if bits == Widths(8, 8) else _OPSET_16_BITS
    return {
        "WeightSymmetric": True,
        "ActivationSymmetric": False,
        "ForceQuantizeNoInputCheck": True,
        "MinimumRealRange": _LEAST_RANGE,
        "TensorQuantOverrides": overrides,
        # Without states, a Relu whose range starts at 0 may be dropped; the range of a state may
        # start below 0.
        "QDQKeepRemovableActivations": has_states,
        "UseQDQContribOps": _opset(model) < opset,
    }


def _finished(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove the metadata of onnxruntime's quantizer from a model and return the model."""
    del model.graph.value_info[:]
    entries = [item for item in model.metadata_props if not item.key.startswith("onnx.")]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
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
    """Return settings that give the input and the output of each state the same range.

    The next execution reads the bytes of a state unconverted, so their meaning must not change.
    """
    import numpy

    overrides = {}
    for old, new in states:
        if old in ranges and new in ranges:
            both = ranges[old].union(ranges[new])
            limits = {"rmin": numpy.float32(both.lowest), "rmax": numpy.float32(both.highest)}
            overrides[old] = overrides[new] = [limits]
    return overrides


def _recurrent_weights(graph: onnx.GraphProto, kind: Any) -> dict[str, list[dict[str, Any]]]:
    """Return settings that make onnxruntime quantize the weights of recurrent ops."""
    stored = {item.name for item in graph.initializer}
    recurrent = [node for node in graph.node if node.op_type in RECURRENT]
    names = {name for node in recurrent for name in node.input[1:3] if name in stored}
    return {n: [{"quant_type": kind, "symmetric": True}] for n in sorted(names)}
