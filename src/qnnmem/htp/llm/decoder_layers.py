"""A few decoder layers as an ONNX model: quantized, static, with random weights.

The graph resembles an export: RMS norms, rotary embedding, grouped heads without copies of the KV
cache, a mask, a gated MLP. The cache is an input, and only its entries for new tokens are an
output.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.htp.llm.rule import matrices
from qnnmem.results.llm import LlmModel, LlmRecipe

if TYPE_CHECKING:
    import onnx

_OPSET = 23  # the first with RMSNormalization
_SCALES = {"act": (0.001, 32768), "kv": (0.02, 128), "kv16": (0.001, 32768)}


def write_layers(
    path: Path, model: LlmModel, recipe: LlmRecipe, *, layers: int, ar: int, context: int
) -> None:
    """Write `layers` layers of a decoder that takes `ar` tokens at a time."""
    graph = _Decoder(model, recipe, ar, context)
    hidden = graph.input("hidden", [1, ar, model.hidden])
    graph.shared_inputs()
    for number in range(layers):
        hidden = graph.layer(f"l{number}", hidden)
    graph.output(hidden, [1, ar, model.hidden], "act")
    path.write_bytes(graph.model().SerializeToString(deterministic=True))


class _Decoder:
    """Builder of the graph; a name stands for a float tensor that is quantized and dequantized."""

    def __init__(self, model: LlmModel, recipe: LlmRecipe, ar: int, context: int) -> None:
        import numpy
        import onnx

        self._model, self._recipe, self._ar, self._context = model, recipe, ar, context
        self._onnx, self._numpy = onnx, numpy
        self._random = numpy.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._kv = "kv" if recipe.kv == 8 else "kv16"
        for kind, (scale, zero) in _SCALES.items():
            self._constant(f"{kind}.scale", numpy.float32(scale))
            self._constant(f"{kind}.zero", self._type(kind)(zero))

    def model(self) -> onnx.ModelProto:
        """Return the whole graph."""
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, self._weights
        )
        opset = helper.make_opsetid("", _OPSET)
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        return model

    def input(self, name: str, shape: list[int], kind: str = "act") -> str:
        """Add a quantized input and return the name of its dequantized tensor."""
        self._inputs.append(self._value(name, shape, kind))
        return self._dequantized(name, kind)

    def output(self, name: str, shape: list[int], kind: str) -> None:
        """Declare the quantized form of a tensor as a graph output."""
        self._outputs.append(self._value(f"{name}.q", shape, kind))

    def shared_inputs(self) -> None:
        """Add the mask and rotary tables, which all layers share."""
        ar, half = self._ar, self._model.head_dim // 2
        self._mask = self.input("mask", [1, 1, ar, self._context])
        self._cos = self.input("cos", [1, 1, ar, half])
        self._sin = self.input("sin", [1, 1, ar, half])

    def layer(self, name: str, hidden: str) -> str:
        """Add attention and MLP with their residuals, and return the output's name."""
        normed = self._norm(f"{name}.norm1", hidden, self._model.hidden)
        attended = self._attention(name, normed)
        hidden = self._op("Add", f"{name}.add1", [hidden, attended])
        normed = self._norm(f"{name}.norm2", hidden, self._model.hidden)
        gate = self._linear(name, "gate", normed)
        gate = self._op("Mul", f"{name}.silu", [gate, self._op("Sigmoid", f"{name}.sig", [gate])])
        both = self._op("Mul", f"{name}.gated", [gate, self._linear(name, "up", normed)])
        return self._op("Add", f"{name}.add2", [hidden, self._linear(name, "down", both)])

    def _attention(self, name: str, normed: str) -> str:
        model, ar, kv = self._model, self._ar, self._kv
        heads, groups, size = model.heads, model.kv_heads, model.head_dim
        past, each = self._context - ar, model.heads // model.kv_heads
        query = self._heads(f"{name}.qh", self._linear(name, "q", normed), heads)
        key = self._heads(f"{name}.kh", self._linear(name, "k", normed), groups)
        value = self._heads(f"{name}.vh", self._linear(name, "v", normed), groups, kind=kv)
        query, key = self._rotary(f"{name}.qr", query), self._rotary(f"{name}.kr", key)
        key = self._op("Transpose", f"{name}.kt", [key], kind=kv, perm=[0, 1, 3, 2])
        self.output(key, [1, groups, size, ar], kv)
        self.output(value, [1, groups, ar, size], kv)
        old_key = self.input(f"{name}.k_in", [1, groups, size, past], kv)
        old_value = self.input(f"{name}.v_in", [1, groups, past, size], kv)
        key = self._op("Concat", f"{name}.kc", [old_key, key], kind=kv, axis=3)
        value = self._op("Concat", f"{name}.vc", [old_value, value], kind=kv, axis=2)
        query = self._reshape(f"{name}.qg", query, [1, groups, each * ar, size])
        scores = self._op("MatMul", f"{name}.scores", [query, key])
        scores = self._reshape(f"{name}.sh", scores, [1, heads, ar, self._context])
        scores = self._op("Add", f"{name}.masked", [scores, self._mask])
        scores = self._op("Softmax", f"{name}.soft", [scores], axis=-1)
        scores = self._reshape(f"{name}.sg", scores, [1, groups, each * ar, self._context])
        attended = self._op("MatMul", f"{name}.found", [scores, value])
        attended = self._reshape(f"{name}.fh", attended, [1, heads, ar, size])
        attended = self._op("Transpose", f"{name}.ft", [attended], perm=[0, 2, 1, 3])
        return self._linear(name, "o", self._reshape(f"{name}.fr", attended, [1, ar, heads * size]))

    def _heads(self, name: str, flat: str, count: int, kind: str = "act") -> str:
        shaped = self._reshape(f"{name}.s", flat, [1, self._ar, count, self._model.head_dim])
        if self._model.family.startswith("qwen3") and kind == "act":
            shaped = self._norm(f"{name}.n", shaped, self._model.head_dim)
        return self._op("Transpose", f"{name}.t", [shaped], kind=kind, perm=[0, 2, 1, 3])

    def _rotary(self, name: str, rows: str) -> str:
        half = self._model.head_dim // 2
        ends = ((0, half), (half, 2 * half))
        first, second = (
            self._op("Slice", f"{name}.{low}", [rows, *self._slice(low, high)])
            for low, high in ends
        )
        turned = []
        for number, (op, left, right) in enumerate(
            (("Sub", first, second), ("Add", second, first))
        ):
            cos = self._op("Mul", f"{name}.c{number}", [left, self._cos])
            sin = self._op("Mul", f"{name}.s{number}", [right, self._sin])
            turned.append(self._op(op, f"{name}.o{number}", [cos, sin]))
        return self._op("Concat", f"{name}.cat", turned, axis=3)

    def _slice(self, low: int, high: int) -> list[str]:
        numbers = {f"from{low}": low, f"to{high}": high, "axis3": 3}
        for name, value in numbers.items():
            if all(weight.name != name for weight in self._weights):
                self._constant(name, self._numpy.array([value], self._numpy.int64))
        return list(numbers)

    def _norm(self, name: str, rows: str, size: int) -> str:
        weights = self._random.integers(1, 255, size).astype(self._numpy.uint16)
        self._constant(f"{name}.w", weights)
        scale = self._dequantized(f"{name}.w", "act")
        return self._op("RMSNormalization", name, [rows, scale], axis=-1, epsilon=1e-5)

    def _linear(self, layer: str, part: str, rows: str) -> str:
        """Add a multiplication by a matrix of the recipe's bit width; return the output's name.

        The weights have one scale per channel or per block.
        """
        name, recipe = f"{layer}.{part}", self._recipe
        inputs, outputs, _ = matrices(self._model)[part]
        is_wide = recipe.bits == 8 or part in recipe.wide
        block = 0 if is_wide or inputs % max(1, recipe.block) else recipe.block
        bits = 8 if is_wide else 4
        count = inputs * outputs * bits // 8
        values = self._random.integers(0, 256, count, self._numpy.uint8)
        self._integers(f"{name}.w", [inputs, outputs], bits, values)
        channel = self._numpy.full(outputs, 0.01, self._numpy.float32)
        self._constant(f"{name}.channel", channel)
        extra: dict[str, int] = {"axis": 1}
        scale = f"{name}.channel"
        if block:
            counts = self._random.integers(1, 15, (inputs // block, outputs))
            self._constant(f"{name}.blocks", counts.astype(self._numpy.uint8))
            self._node("DequantizeLinear", [f"{name}.blocks", scale], f"{name}.scales", axis=1)
            scale, extra = f"{name}.scales", {"axis": 0, "block_size": block}
        # Without a zero point the compiler stores 4-bit weights in 8 bits.
        shape = [inputs // block, outputs] if block else [outputs]
        count = -(-shape[0] * shape[-1] ** (len(shape) - 1) * bits // 8)
        self._integers(f"{name}.zero", shape, bits, self._numpy.zeros(count, self._numpy.uint8))
        self._node("DequantizeLinear", [f"{name}.w", scale, f"{name}.zero"], f"{name}.f", **extra)
        return self._op("MatMul", name, [rows, f"{name}.f"])

    def _integers(self, name: str, shape: list[int], bits: int, packed: Any) -> None:
        """Add a tensor of signed weights from bytes; 4-bit weights are packed two per byte."""
        kinds = self._onnx.TensorProto
        kind = kinds.INT8 if bits == 8 else kinds.INT4
        tensor = kinds(name=name, data_type=kind, dims=shape, raw_data=packed.tobytes())
        self._weights.append(tensor)

    def _reshape(self, name: str, rows: str, shape: list[int]) -> str:
        self._constant(f"{name}.shape", self._numpy.array(shape, self._numpy.int64))
        return self._op("Reshape", name, [rows, f"{name}.shape"])

    def _op(self, op: str, name: str, inputs: list[str], kind: str = "act", **extra: Any) -> str:
        """Add a node with a quantized output; return the name of its dequantized output."""
        self._node(op, inputs, f"{name}.raw", **extra)
        places = [f"{name}.raw", f"{kind}.scale", f"{kind}.zero"]
        self._node("QuantizeLinear", places, f"{name}.q")
        self._node("DequantizeLinear", [f"{name}.q", *places[1:]], name)
        return name

    def _dequantized(self, name: str, kind: str) -> str:
        self._node("DequantizeLinear", [name, f"{kind}.scale", f"{kind}.zero"], f"{name}.f")
        return f"{name}.f"

    def _node(self, op: str, inputs: list[str], output: str, **extra: Any) -> None:
        self._nodes.append(self._onnx.helper.make_node(op, inputs, [output], output, **extra))

    def _constant(self, name: str, value: Any) -> None:
        array = self._numpy.asarray(value)
        self._weights.append(self._onnx.numpy_helper.from_array(array, name))

    def _type(self, kind: str) -> Any:
        return self._numpy.uint8 if kind == "kv" else self._numpy.uint16

    def _value(self, name: str, shape: list[int], kind: str) -> onnx.ValueInfoProto:
        types = self._onnx.TensorProto
        element = types.UINT8 if kind == "kv" else types.UINT16
        return self._onnx.helper.make_tensor_value_info(name, element, shape)
