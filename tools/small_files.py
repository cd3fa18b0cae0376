"""Small files of every kind, generated in code, for the fuzzer to damage and for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_ONNX = (
    """g (float[2,4] x, bool c) => (float[2,4] y) <float[4] w = {1,2,3,4}, int64[2] s = {4,-1}>
    { h = Add(x, w) n = Shape(h) r = Reshape(h, s)
      e = If (c) <then_branch = t () => (float[4,2] u) { u = Relu(r) },
                  else_branch = f () => (float[4,2] v) { v = Neg(r) }>
      y = Reshape(e, n) }""",
    """g (int8[1,4] x) => (int8[1,4] y) <float s = {0.5}, int8 z = {0}, float[4,4] w = {1,2,3,4,5,
    6,7,8,9,1,2,3,4,5,6,7}>
    { f = DequantizeLinear(x, s, z) m = MatMul(f, w) r = Relu(m) y = QuantizeLinear(r, s, z) }""",
    """g (float[1,2,4,4] x, float[1,3] h_in) => (float[1,2,4,4] y, float[1,3] h_out)
    { a = Relu(x) b = Sigmoid(x) y = Mul(a, b) t = Tanh(h_in) h_out = Add(t, h_in) }""",
)


def onnx_seeds() -> list[bytes]:
    """Return small ONNX models: with a branch, quantized, with state."""
    import onnx.parser

    head = '<ir_version: 8, opset_import: ["" : 18]> '
    return [onnx.parser.parse_model(head + body).SerializeToString() for body in _ONNX]


# Tensors as (name, shape, type, stored), ops as (code, inputs, outputs), graph inputs and outputs:
# a chain with weights, a diamond with a variable tensor. Lists, so that damage can change them.
TFLITE: tuple[list[Any], ...] = (
    [
        [["in", [1, 8], 9, 0], ["w", [16], 9, 1], ["m", [1, 8], 9, 0], ["out", [2, 4], 9, 0]],
        [[3, [0, 1, -1], [2]], [22, [2], [3]]],
        [[0], [3]],
    ],
    [
        [["in", [1, 8], 0, 0], ["v", [1, 8], 0, -1], ["a", [1, 8], 0, 0], ["b", [1, 8], 0, 0]],
        [[0, [0, 1], [2]], [18, [2, 0], [3]]],
        [[0], [3, 2]],
    ],
)


def tflite_seeds() -> list[bytes]:
    """Return small TFLite models."""
    return [Flat().file(*graph) for graph in TFLITE]


class Flat:
    """Builder of a TFLite flatbuffer; the numbers are field numbers of the schema."""

    def __init__(self) -> None:
        import flatbuffers

        self.builder = flatbuffers.Builder(512)

    def table(self, fields: dict[int, tuple[str, int]]) -> int:
        """Write a table; return its offset."""
        self.builder.StartObject(max(fields, default=0) + 1)
        for slot, (kind, value) in fields.items():
            getattr(self.builder, f"Prepend{kind}Slot")(slot, value, 0)
        return int(self.builder.EndObject())

    def vector(self, items: Iterable[int], kind: str) -> tuple[str, int]:
        """Write a vector of numbers (Int32) or of tables (UOffsetTRelative); return its field."""
        values = tuple(items)
        self.builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            getattr(self.builder, f"Prepend{kind}")(value)
        return "UOffsetTRelative", self.builder.EndVector()

    def tables(self, items: Iterable[int]) -> tuple[str, int]:
        """Write a vector of tables; return its field."""
        return self.vector(tuple(items), "UOffsetTRelative")

    def tensor(self, name: str, shape: list[int], kind: int, stored: int) -> int:
        """Write a tensor; `stored` is 1 for a tensor with data, -1 for a variable."""
        text = ("UOffsetTRelative", self.builder.CreateString(name))
        fields = {0: self.vector(shape, "Int32"), 1: ("Int8", kind), 3: text}
        return self.table(fields | {2: ("Uint32", max(stored, 0)), 5: ("Bool", stored < 0)})

    def file(self, tensors: list[Any], ops: list[Any], ends: list[list[int]]) -> bytes:
        """Return a file with one graph of tensors and ops; an op is (code, inputs, outputs).

        `ends` are the inputs and the outputs of the graph.
        """
        data = ("UOffsetTRelative", self.builder.CreateByteVector(bytes(16)))
        buffers = [self.table({}), self.table({0: data})]
        codes = [self.table({0: ("Int8", code), 3: ("Int32", code)}) for code, _, _ in ops]
        nodes = [
            self.table({0: ("Uint32", at), 1: self.vector(i, "Int32"), 2: self.vector(o, "Int32")})
            for at, (_, i, o) in enumerate(ops)
        ]
        graph = {
            0: self.tables([self.tensor(*tensor) for tensor in tensors]),
            1: self.vector(ends[0], "Int32"),
            2: self.vector(ends[1], "Int32"),
            3: self.tables(nodes),
        }
        graphs = self.tables([self.table(graph)])
        head = {0: ("Uint32", 3), 1: self.tables(codes), 2: graphs, 4: self.tables(buffers)}
        self.builder.Finish(self.table(head), b"TFL3")
        return bytes(self.builder.Output())


def eaix_seeds() -> list[bytes]:
    """Return small eAI reports: a chain with weights, a diamond with a padded layout."""

    def tensor(key: int, dims: list[int], flag: int = 0, layout: str = "") -> dict[str, Any]:
        kind = {"dataLayout": layout, "dataType": "int8", "shape": {"dimensions": dims}}
        return {"tensor_id": str(key), "tensor_name": f"t{key}", "flag": hex(flag), "type": kind}

    def ports(*tensors: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": f"Port{at}", "value": [item]} for at, item in enumerate(tensors)]

    def node(order: int, operator: str, inputs: Any, outputs: Any) -> dict[str, Any]:
        name = f"{operator}_{order}"
        about = {"id": order, "name": name, "operator": operator, "actual_order": order}
        return {**about, "inputs": inputs, "outputs": outputs}

    rows = "  Index, Start Pad Bytes, Valid Size, Stride Bytes</br>[0, 0, 1, 64]</br>[1, 4, 8, 8]"
    start, end = tensor(1, [1, 8], 1), tensor(5, [1, 8], 2)
    weights = {**tensor(9, [8, 8], 4), "data_size": 64}
    left, right = tensor(2, [1, 8], 0, rows), tensor(3, [1, 16])
    nodes = [
        node(0, "SUPER_GEMM_EAI", ports(start, weights), ports(left)),
        node(1, "NOP", ports(start), ports(right)),
        node(2, "SUPER_ADD_EAI", ports(left, right), ports(end)),
    ]
    graph = {"name": "g", "nodes": nodes, "inputs": ports(start), "outputs": ports(end)}
    report = {"format": "eAI v5.9", "name": "made.eai", "graphs": [graph]}
    graph = {**graph, "nodes": nodes[:1], "outputs": ports(left)}
    return [json.dumps(r).encode() for r in (report, {**report, "graphs": [graph]})]


def csv_seeds() -> list[bytes]:
    """Return small buffer lists, with and without alignment and offsets."""
    rows = [b"b%d,%d,%d,%d\n" % (i, i, i + 3, 16 + i) for i in range(8)]
    return [
        b"id,lower,upper,size\n" + b"".join(rows),
        b"id,lower,upper,size,alignment,offset\na,0,4,12,4,0\nb,2,6,8,8,16\nc,4,9,100,1,0\n",
        b"buffer_id,start,end,size\r\n0,0,5,1\r\n1,-3,5,7\r\n",
    ]


SEEDS = {"onnx": onnx_seeds, "tflite": tflite_seeds, "eaix": eaix_seeds, "csv": csv_seeds}
