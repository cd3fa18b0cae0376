"""Changes to a QDQ graph: integers at its border, one scale for both ends of a state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.loader.onnx.graph import bodies, captured, is_quant, reads
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

METADATA_KEY = "qnnmem.quant."
RECURRENT = ("LSTM", "GRU", "RNN")
_BIASED = ("Conv", "ConvTranspose", "Gemm", "BatchNormalization", "InstanceNormalization")
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"


class Encoding(NamedTuple):
    """What an integer of a tensor means: (integer - zero point) * scale."""

    scale: float
    zero_point: int


def encodings(model: onnx.ModelProto) -> dict[str, Encoding]:
    """Scales and zero points of integer graph inputs and outputs, as the file states them."""
    found = {}
    for item in model.metadata_props:
        name = item.key.removeprefix(METADATA_KEY)
        if name != item.key:
            values = json.loads(item.value)
            found[name] = Encoding(float(values["scale"]), int(values["zero_point"]))
    return found


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a name of its own; onnxruntime's quantizer tells them apart by it."""
    used: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in used:
            node.name = f"{node.op_type}_{index}"
        while node.name in used:
            node.name += "_"
        used.add(node.name)


def own_biases(graph: onnx.GraphProto) -> None:
    """Give every node a bias of its own, because its scale is that of the node's input and weight.

    onnxruntime copies shared ones itself, under names that the model may use for something else.
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
    """Drop the names of recurrent ops' results that nothing reads; all of them are optional."""
    read = {name for node in graph.node for name in reads(node)}
    read |= {item.name for item in graph.output}
    for node in graph.node:
        if node.op_type in RECURRENT and not node.domain:
            node.output[:] = [name if name in read else "" for name in node.output]


def drop_unused_domains(model: onnx.ModelProto) -> None:
    """Forget operator sets that nothing uses; onnxruntime lists all that it knows."""
    used = {""} | set(_domains(model.graph))
    kept = [item for item in model.opset_import if item.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _domains(graph: onnx.GraphProto) -> Iterable[str]:
    for node in graph.node:
        yield node.domain
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _domains(body)


def tie_states(model: onnx.ModelProto, states: Sequence[tuple[str, str]]) -> list[str]:
    """Requantize each state output whose scale is not that of its input; say which."""
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
    """Put quantize and dequantize with other parameters behind an output's dequantize node."""
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


def integer_io(model: onnx.ModelProto) -> tuple[dict[str, Encoding], list[str]]:
    """Take quantize nodes off graph inputs and dequantize nodes off outputs.

    Names stay; the metadata says what the integers mean. An input or output that something else
    needs as float stays float, and a note says so.
    """
    graph, found = model.graph, {}
    for item in graph.input:
        entry = _entry(graph, item.name)
        if entry is not None and item.name not in {other.name for other in graph.output}:
            found[item.name] = _encoding(graph, entry)
            _set_type(graph, item, entry)
            _rename_reads(graph, entry.output[0], item.name)
            graph.node.remove(entry)
    for item in graph.output:
        leave = None if item.name in _captured(graph) else _exit(graph, item.name)
        if leave is not None and leave.input[0] not in _io(graph):
            found[item.name] = _encoding(graph, leave)
            _set_type(graph, item, leave)
            _take_output(graph, leave, item.name)
    for name, encoding in found.items():
        entry_text = json.dumps(encoding._asdict(), sort_keys=True)
        model.metadata_props.add(key=METADATA_KEY + name, value=entry_text)
    _drop_unread(graph)
    return found, [f"{quote(name)} stays floating point" for name in _float_io(graph)]


def _take_output(graph: onnx.GraphProto, leave: onnx.NodeProto, name: str) -> None:
    """Let the integers behind a dequantize node be the output."""
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
    """The quantize node that is alone in reading a graph input."""
    readers = [node for node in graph.node if name in reads(node)]
    return readers[0] if len(readers) == 1 and is_quant(readers[0], _Q) else None


def _exit(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    """The dequantize node that makes a graph output."""
    makers = (node for node in graph.node if name in node.output)
    return next((node for node in makers if is_quant(node, _DQ)), None)


def _encoding(graph: onnx.GraphProto, node: onnx.NodeProto) -> Encoding:
    scale, zero_point = _values(graph, node)
    return Encoding(scale, int(zero_point))


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
    """Names that branches and loop bodies read from outside; those are not renamed."""
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
    """Remove stored tensors that nothing reads any more, in the order of the file."""
    read = {name for node in graph.node for name in reads(node)} | _io(graph)
    kept = [item for item in graph.initializer if item.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.value_info[:]
