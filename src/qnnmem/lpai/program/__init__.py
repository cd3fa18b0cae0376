"""From a planned model to a program: its nodes in planned order, its constants set apart.

    for each op in planned order
        its nodes follow; a node that an earlier op took as well is repeated under other names,
        so that each op reads just what the plan says it reads
    constants leave the graph; small ones come back when a session is opened, large ones are lent
    constants computed from constants are computed now

onnxruntime may treat stored constants specially (pre-packing), and bits must not change by that:
what was computed by nodes in the model is handed to the program as an input, not as a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.ir import Model, Op
from qnnmem.loader.onnx.wire import MAX_STRUCTURE_BYTES
from qnnmem.lpai.compiled import CONSTANT_ALIGN, Constant, Quant
from qnnmem.lpai.program.source import Form, ProgramSource, outside_reads
from qnnmem.lpai.quantize.graph import METADATA_KEY
from qnnmem.text import quote
from qnnmem.units import Bytes, Offset, format_size, round_up

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

# Constants below this size are part of the graph that onnxruntime sees: shape inference needs the
# numbers of small ones, and lending them would only cost time at every run.
INLINE_BYTES = 1024
# LPAI has megabytes; weights in other files could be of any size, holes included.
MAX_CONSTANTS = 2 << 30
TIME_LIMIT_S = 60.0
# How the nodes of a program are called: onnxruntime's profile then tells their order.
NODE_PREFIX = "node:"


@dataclass(frozen=True)
class Program:
    """Nodes in planned order and the constants they read."""

    model: Model  # whose ops point into `proto`
    proto: onnx.ModelProto
    constants: tuple[Constant, ...]
    values: Mapping[str, NDArray[Any]]
    quants: Mapping[str, Quant]

    def constant_bytes(self) -> bytes:
        """All constants at their offsets, from the first on."""
        start = min((c.offset for c in self.constants), default=Offset(0))
        block = bytearray()
        for constant in self.constants:
            block.extend(bytes(constant.offset - start - len(block)))
            block.extend(self.values[constant.name].tobytes())
        return bytes(block)


def arrange(
    proto: onnx.ModelProto,
    model: Model,
    folder: Path | None,
    start: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
) -> Program:
    """Program of `model`, whose ops point into `proto`; constants are laid out from `start` on.

    The time limit is for constants that have to be computed, which a child process does.
    """
    source = ProgramSource(proto, model, folder)
    computed = source.compute(dict.fromkeys(source.computed_up_front()), time_limit_s)
    return _Arrangement(source, computed, start).program()


class _Arrangement:
    def __init__(
        self, source: ProgramSource, computed: dict[str, NDArray[Any]], start: int
    ) -> None:
        self._source, self._end = source, start
        self._most = start + MAX_CONSTANTS
        self._computed = computed
        self._node_bytes = 0
        self._nodes: list[onnx.NodeProto] = []
        self._made: set[str] = set()
        self._values: dict[str, NDArray[Any]] = {}
        self._constants: list[Constant] = []
        self._inline: list[onnx.TensorProto] = []

    def program(self) -> Program:
        import onnx

        ops = tuple(self._place(op) for op in self._source.model.ops)
        proto = onnx.ModelProto(ir_version=max(8, self._source.proto.ir_version))
        proto.opset_import.extend(self._source.proto.opset_import)
        proto.graph.name = "program"
        for at, node in enumerate(self._nodes):
            node.name = f"{NODE_PREFIX}{at}"
        proto.graph.node.extend(self._nodes)
        for name in dict.fromkeys(outside_reads(self._nodes)):
            self._keep(name)
        proto.graph.initializer.extend(self._inline)
        self._declare(proto.graph)
        model = replace(self._source.model, ops=ops)
        quants = find_quants(self._source.proto, self._source.initializers)
        known = {name: quants[name] for name in model.tensors if name in quants}
        return Program(model, proto, tuple(self._constants), self._values, known)

    def _declare(self, graph: onnx.GraphProto) -> None:
        """State what the program reads from outside and what the model gives."""
        from onnx import helper

        model = self._source.model
        for name in model.inputs:
            if name not in self._source.fixed:
                form = self._source.form(name, {})
                graph.input.append(helper.make_tensor_value_info(name, *form))
        for constant in self._constants:
            form = Form(constant.element, constant.shape)
            graph.input.append(helper.make_tensor_value_info(constant.name, *form))
        for name in model.outputs:
            form = self._source.form(name, {})
            graph.output.append(helper.make_tensor_value_info(name, *form))

    def _place(self, op: Op) -> Op:
        start = len(self._nodes)
        if not op.inputs:
            self._deliver(op)
        else:
            self._copy(op)
        return replace(op, sources=tuple(range(start, len(self._nodes))))

    def _deliver(self, op: Op) -> None:
        """Copy constants to where the application expects outputs."""
        from onnx import helper

        for name in op.outputs:
            stored = f"{name}:constant"
            self._computed[stored] = self._computed[name]
            self._nodes.append(helper.make_node("Identity", [stored], [name]))
            self._made.add(name)

    def _copy(self, op: Op) -> None:
        import onnx

        renamed: dict[str, str] = {}
        for original in self._source.nodes(op):
            node = onnx.NodeProto()
            node.CopyFrom(original)
            del node.input[:], node.output[:]
            node.input.extend(renamed.get(name, name) for name in original.input)
            for name in original.output:
                if name and name in self._made:
                    renamed[name] = f"{name}@{len(self._nodes)}"
                self._made.add(renamed.get(name, name))
                node.output.append(renamed.get(name, name))
            self._nodes.append(node)
            # What several ops share is repeated, and may be large.
            self._node_bytes += node.ByteSize()
            if self._node_bytes > MAX_STRUCTURE_BYTES:
                size = format_size(MAX_STRUCTURE_BYTES)
                raise UsageError(f"the nodes of the program take more than {size}")

    def _keep(self, name: str) -> None:
        """Store one constant that nodes read."""
        from onnx import helper

        tensor = self._source.initializers.get(name)
        folded = tensor is None and name not in self._source.literals
        if folded and name not in self._computed:
            return  # a tensor of the model
        if not folded:
            self._check_room(name)
        value = self._computed[name] if folded else self._source.value(name)
        if value is None:
            self._inline.append(self._source.embedded(name))
            return
        element = int(helper.np_dtype_to_tensor_dtype(value.dtype))
        size = Bytes(value.nbytes)
        folded = folded and size >= INLINE_BYTES
        offset = Offset(round_up(self._end, CONSTANT_ALIGN))
        self._end = offset + size
        self._values[name] = value
        self._constants.append(Constant(name, element, value.shape, offset, size, folded))

    def _check_room(self, name: str) -> None:
        """Refuse more constants than a binary may hold, before they are read."""
        need = self._source.stored_size(name)
        if self._end + need > self._most:
            size = format_size(MAX_CONSTANTS)
            raise UsageError(f"constants up to {quote(name)} take more than {size}, too much")


def find_quants(
    proto: onnx.ModelProto, initializers: Mapping[str, onnx.TensorProto]
) -> dict[str, Quant]:
    """What integers stand for, where a quantize or dequantize node or the file's notes say it."""
    import json

    found = dict(_node_quants(proto, initializers))
    for item in proto.metadata_props:
        if item.key.startswith(METADATA_KEY):
            try:
                noted = json.loads(item.value[:1000])
                quant = Quant(float(noted["scale"]), int(noted["zero_point"]))
            except (ValueError, TypeError, KeyError) as exc:
                raise UsageError(f"note {item.key[:80]!r} of the model is unreadable") from exc
            found[item.key.removeprefix(METADATA_KEY)] = quant
    return found


def _node_quants(
    proto: onnx.ModelProto, initializers: Mapping[str, onnx.TensorProto]
) -> Iterable[tuple[str, Quant]]:
    for node in proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) > 1:
            name = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
            scale = _scalar(initializers.get(node.input[1]))
            zero = _scalar(initializers.get(node.input[2])) if len(node.input) > 2 else 0
            if scale is not None and zero is not None:
                yield name, Quant(float(scale), int(zero))


def _scalar(tensor: onnx.TensorProto | None) -> float | int | None:
    """The one number a tensor holds; None for several, as in per-channel scales."""
    from onnx import numpy_helper

    if tensor is None or tensor.data_location or any(dim != 1 for dim in tensor.dims):
        return None
    value: float | int = numpy_helper.to_array(tensor).reshape(()).item()
    return value
