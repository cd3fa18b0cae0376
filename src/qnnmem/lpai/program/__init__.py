"""Turns a planned model into a program: nodes in planned order, and constants kept apart.

  for each op in planned order
    append its nodes; if an earlier op contains the same node, append a copy with other tensor
    names, so that each op reads exactly the tensors in its plan
  constants leave the graph; a new session gets small ones embedded and large ones by reference
  constants that nodes compute from constants are computed now, by onnxruntime in a child process,
  because even a few nodes can require any amount of time and memory

onnxruntime might treat stored constants specially (pre-packing), which could change results.
Therefore values computed by nodes of the model enter the program as inputs, not as constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.errors import ChildFailed, UsageError
from qnnmem.ir import DType, Model, Op
from qnnmem.loader.onnx.graph import is_op
from qnnmem.loader.onnx.protobuf_wire import MAX_STRUCTURE_BYTES
from qnnmem.loader.onnx.tensor import STRING, embed, stored_bytes
from qnnmem.lpai.compiled import CONSTANT_ALIGN, Constant, Quant
from qnnmem.lpai.quantize.quantized_graph import encodings
from qnnmem.text import quote, sentence
from qnnmem.units import Bytes, Offset, format_size, round_up

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

# ONNX's names of element types that differ from those of qnnmem in more than case.
_ELEMENT = {"float32": "FLOAT", "float64": "DOUBLE", "float8": "FLOAT8E4M3FN"}
# Attributes that may hold the value of a Constant node, and their number types.
_LITERALS = {
    "value": "",
    **dict.fromkeys(("value_float", "value_floats"), "f4"),
    **dict.fromkeys(("value_int", "value_ints"), "i8"),
    **dict.fromkeys(("value_string", "value_strings"), "O"),
}

# Smaller constants are part of the graph that onnxruntime sees: shape inference needs their
# numbers, and passing them by reference would only cost time in every run.
INLINE_BYTES = 1024
# LPAI has megabytes of memory, but a sparse file can claim weights of any size.
MAX_CONSTANTS = 2 << 30
TIME_LIMIT_S = 60.0
# Prefix of node names in a program, by which onnxruntime's profile shows their order.
NODE_PREFIX = "node:"


class Form(NamedTuple):
    """The ONNX element type and the shape of a tensor."""

    element: int
    shape: tuple[int, ...]


def bytes_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the bytes of an array in C order.

    Comparing bytes treats NaN like any other value.
    """
    import numpy

    return numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)


def element_of(dtype: DType) -> int:
    """Return ONNX's number for an element type."""
    import onnx

    word = _ELEMENT.get(dtype.value, dtype.value.upper())
    return int(onnx.TensorProto.DataType.Value(word))


@dataclass(frozen=True)
class ProgramSource:
    """A graph from which sub-models are extracted."""

    proto: onnx.ModelProto
    model: Model
    folder: Path | None

    @cached_property
    def initializers(self) -> dict[str, onnx.TensorProto]:
        """The stored weights, by name."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def literals(self) -> dict[str, onnx.NodeProto]:
        """Constant nodes by output name; onnxruntime treats them exactly like initializers."""
        return {node.output[0]: node for node in self.proto.graph.node if is_op(node, "Constant")}

    @cached_property
    def producers(self) -> dict[str, int]:
        """For each tensor, the index of the node that produces it."""
        nodes = self.proto.graph.node
        return {name: index for index, node in enumerate(nodes) for name in node.output if name}

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Names of all constants."""
        return frozenset(self.model.constants)

    @cached_property
    def declared(self) -> dict[str, onnx.TypeProto.Tensor]:
        """The tensor types that the graph declares."""
        graph = self.proto.graph
        infos = (*graph.value_info, *graph.input, *graph.output)
        return {info.name: info.type.tensor_type for info in infos}

    def embedded(self, name: str) -> onnx.TensorProto:
        """Return a stored constant as a tensor that contains its bytes."""
        import onnx

        tensor = onnx.TensorProto()
        tensor.CopyFrom(
            self.initializers[name] if name in self.initializers else self._literal(name)
        )
        tensor.name = name
        embed(self._path, tensor)
        return tensor

    @property
    def _path(self) -> Path:
        """The path for error messages: the model's name in the folder of its external data."""
        return Path(self.folder or "", self.model.name)

    def stored_size(self, name: str) -> int:
        """Return the size of a stored constant without reading it."""
        if name in self.initializers:
            tensor = self.initializers[name]
            return 0 if tensor.data_type == STRING else stored_bytes(tensor)
        return int(self.literals[name].ByteSize())

    def value(self, name: str) -> NDArray[Any] | None:
        """Return the value of a stored constant; None if numpy lacks its type."""
        from onnx import helper, numpy_helper

        tensor = self.embedded(name)
        if helper.tensor_dtype_to_np_dtype(tensor.data_type).kind not in "biufc":
            return None
        value: NDArray[Any] = numpy_helper.to_array(tensor)
        return value

    def _literal(self, name: str) -> onnx.TensorProto:
        """Return the value of a Constant node, whichever attribute holds it."""
        import numpy
        from onnx import helper, numpy_helper

        attributes = self.literals[name].attribute
        if len(attributes) != 1 or attributes[0].name not in _LITERALS:
            raise UsageError(f"the value of constant {quote(name)} is of an unsupported kind")
        value = helper.get_attribute_value(attributes[0])
        if attributes[0].name == "value":
            tensor: onnx.TensorProto = value
            return tensor
        return numpy_helper.from_array(numpy.asarray(value, _LITERALS[attributes[0].name]))

    def is_embedded(self, name: str) -> bool:
        """Return whether a constant is stored in the file, so that sub-models can contain it."""
        return name in self.initializers or name in self.literals

    def computed_up_front(self) -> Iterator[str]:
        """Yield constants that nodes must compute, and constants that are outputs of the model."""
        for op in self.model.ops:
            if not op.inputs:
                yield from op.outputs
                continue
            for name in outside_reads(self.nodes(op)):
                if name in self.fixed and not self.is_embedded(name):
                    yield name
        yield from (name for name in self.model.outputs if name in self.fixed)

    def nodes(self, op: Op) -> list[onnx.NodeProto]:
        """Return the nodes that an op represents."""
        count = len(self.proto.graph.node)
        if not op.sources or not all(0 <= index < count for index in op.sources):
            raise UsageError(f"op {op.name[:80]!r} does not list the nodes it was made from")
        return [self.proto.graph.node[index] for index in dict.fromkeys(op.sources)]

    def form(self, name: str, constants: Mapping[str, NDArray[Any]]) -> Form:
        """Return the type and shape with which a tensor is passed to onnxruntime."""
        from onnx import helper

        if name in constants:
            value = constants[name]
            return Form(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        tensor = self.model.tensors[name]
        stated = self.declared[name].elem_type if name in self.declared else 0
        return Form(stated or element_of(tensor.dtype), tensor.shape)

    def sub_model(
        self,
        nodes: Sequence[onnx.NodeProto],
        reads: Iterable[str],
        inputs: Mapping[str, Form],
        outputs: Iterable[str],
    ) -> onnx.ModelProto:
        """Return a model that consists of `nodes` and the stored constants among `reads`."""
        import onnx
        from onnx import helper

        reads = tuple(reads)
        # Below version 4 an initializer must be an input as well, and so would not be constant.
        part = onnx.ModelProto(ir_version=max(4, self.proto.ir_version))
        part.opset_import.extend(self.proto.opset_import)
        part.functions.extend(self.proto.functions)
        part.graph.name = "step"
        part.graph.node.extend(self.literals[name] for name in reads if name in self.literals)
        part.graph.node.extend(nodes)
        part.graph.initializer.extend(
            self.initializers[name] for name in reads if name in self.initializers
        )
        for name, form in inputs.items():
            part.graph.input.append(helper.make_tensor_value_info(name, *form))
        # Outputs have no type: declared ranks can be wrong, and onnxruntime infers them anyway.
        part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        return part

    def compute(self, names: Iterable[str], time_limit_s: float) -> dict[str, NDArray[Any]]:
        """Return the values of constants, computed by running the nodes that produce them."""
        from onnx import helper, numpy_helper

        from qnnmem.loader.onnx.trial import TrialChild
        from qnnmem.loader.onnx.trial_program import TrialInput

        names = tuple(names)
        if not names:
            return {}
        nodes = [self.proto.graph.node[index] for index in sorted(self._ancestors(names))]
        reads = dict.fromkeys((*outside_reads(nodes), *names))
        written = {name for node in nodes for name in node.output}
        # Only the shapes of the remaining tensors matter, so any values will do.
        blank = {n: self._stated(n) for n in reads if n not in written and not self.is_embedded(n)}
        feeds = [
            TrialInput(name, helper.tensor_dtype_to_np_dtype(form.element).name, form.shape)
            for name, form in blank.items()
        ]
        model = self.sub_model(nodes, reads, blank, names)
        try:
            with TrialChild(self._path, time_limit_s) as child:
                values = child.fold(model, feeds, names, self.folder)
        except ChildFailed as exc:
            raise UsageError(f"constants cannot be computed: {sentence(exc)}") from exc
        for name, value in zip(names, values, strict=True):
            if value.data_type == STRING:
                raise UsageError(
                    f"constant {quote(name)} contains strings, which are not supported"
                )
        return {n: numpy_helper.to_array(v) for n, v in zip(names, values, strict=True)}

    def _stated(self, name: str) -> Form:
        if name not in self.declared:
            raise UsageError(f"constants depend on {name[:80]!r}, whose shape is unknown")
        kind = self.declared[name]
        return Form(kind.elem_type, tuple(dim.dim_value for dim in kind.shape.dim))

    def _ancestors(self, names: Iterable[str]) -> set[int]:
        """Return the indexes of the nodes needed to compute the constants that the file lacks."""
        ancestors: set[int] = set()
        pending = [name for name in names if not self.is_embedded(name)]
        while pending:
            index = self.producers.get(pending.pop())
            if index is None or index in ancestors:
                continue
            ancestors.add(index)
            node = self.proto.graph.node[index]
            if not is_op(node, "Shape", "Size"):  # these read only the shape of their input
                pending += [name for name in reads_of(node) if not self.is_embedded(name)]
        return ancestors


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including outer names that its bodies read."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inside = {value.name for value in (*graph.input, *graph.initializer)}
            inside |= {name for inner in graph.node for name in inner.output}
            results = (value.name for value in graph.output)
            names = (*outside_reads(graph.node), *results)
            yield from (name for name in names if name not in inside)


def outside_reads(nodes: Iterable[onnx.NodeProto]) -> dict[str, None]:
    """Return, in order, the names that nodes read before any node has written them."""
    written: set[str] = set()
    reads: dict[str, None] = {}
    for node in nodes:
        reads.update((name, None) for name in reads_of(node) if name not in written)
        written.update(node.output)
    return reads


@dataclass(frozen=True)
class Program:
    """Nodes in planned order and the constants that they read."""

    model: Model  # its ops contain indices of nodes in `proto`
    proto: onnx.ModelProto
    constants: tuple[Constant, ...]
    values: Mapping[str, NDArray[Any]]
    quants: Mapping[str, Quant]

    def constant_bytes(self) -> bytes:
        """Return the bytes of all constants, each at its offset."""
        block = bytearray()
        for constant in self.constants:
            block.extend(bytes(constant.offset - len(block)))
            block.extend(self.values[constant.name].tobytes())
        return bytes(block)


def arrange(
    proto: onnx.ModelProto,
    model: Model,
    folder: Path | None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Program:
    """Return the program of `model`.

    The ops of the program refer to its nodes by index. A child process computes the constants that
    are not stored, within the time limit.
    """
    source = ProgramSource(proto, model, folder)
    computed = source.compute(dict.fromkeys(source.computed_up_front()), time_limit_s)
    return _Arrangement(source, computed).program()


class _Arrangement:
    def __init__(self, source: ProgramSource, computed: dict[str, NDArray[Any]]) -> None:
        self._source, self._computed = source, computed
        self._end = 0  # of the constants so far
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
        for number, node in enumerate(self._nodes):
            node.name = f"{NODE_PREFIX}{number}"
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
        """Declare the inputs that the program reads and the outputs of the model."""
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
        """Add nodes that copy computed constants to outputs of the model."""
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
            # Nodes shared by several ops are repeated, and may be large.
            self._node_bytes += node.ByteSize()
            if self._node_bytes > MAX_STRUCTURE_BYTES:
                size = format_size(MAX_STRUCTURE_BYTES)
                raise UsageError(f"the nodes of the program exceed the limit of {size}")

    def _keep(self, name: str) -> None:
        """Add the tensor `name` to the program's constants if it is a constant."""
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
        """Raise UsageError if the binary has no room for a constant; the constant is not read."""
        need = self._source.stored_size(name)
        if self._end + need > MAX_CONSTANTS:
            size = format_size(MAX_CONSTANTS)
            raise UsageError(f"with {quote(name)}, the constants exceed the limit of {size}")


def find_quants(
    proto: onnx.ModelProto, initializers: Mapping[str, onnx.TensorProto]
) -> dict[str, Quant]:
    """Return scales and zero points from quantize and dequantize nodes and the file's metadata."""
    return {**dict(_node_quants(proto, initializers)), **encodings(proto)}


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
    """Return a tensor's only number; None if the tensor is absent, external or larger."""
    from onnx import numpy_helper

    if tensor is None or tensor.data_location or any(dim != 1 for dim in tensor.dims):
        return None
    value: float | int = numpy_helper.to_array(tensor).reshape(()).item()
    return value
