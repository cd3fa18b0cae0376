from pathlib import Path

import onnx
import onnx.parser

from qnnmem.ir import DType, Effect, Model
from qnnmem.loader.onnx import read

STORED = (
    "<float s = {0.5}, float s2 = {0.25}, uint8 z = {0}, uint8[2,2] w = {1,2,3,4},"
    "int64[1] m = {-1}>"
)


def load(folder: Path, body: str, signature: str = "(float[2,2] x) => (float[2,2] y)") -> Model:
    """Return a small quantized model that stores `s`, `s2`, `z`, `w` and `m`."""
    text = f'<ir_version: 8, opset_import: ["" : 18, "com.microsoft": 1]> g {signature} {STORED}'
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(f"{text} {{ {body} }}").SerializeToString())
    return read(path)


def steps(model: Model) -> list[tuple[str, tuple[str, ...], tuple[str, ...], tuple[int, ...]]]:
    """Return the type, inputs, outputs and sources of each op."""
    return [(op.type, op.inputs, op.outputs, op.sources) for op in model.ops]


def test_an_op_between_dequantize_and_quantize_works_on_integers(tmp_path: Path) -> None:
    """An op between DequantizeLinear and QuantizeLinear works on integers.

    Only the floats at the model's borders stay.
    """
    model = load(
        tmp_path,
        "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) h = Relu(a)"
        "p = QuantizeLinear(h, s2, z) y = DequantizeLinear(p, s2, z)",
    )
    assert steps(model) == [
        ("QuantizeLinear", ("x", "s", "z"), ("q",), (0,)),
        ("Relu", ("q", "s", "z", "s2"), ("p",), (1, 2, 3)),
        ("DequantizeLinear", ("p", "s2", "z"), ("y",), (4,)),
    ]
    assert model.tensors["p"].dtype is DType.UINT8
    assert "h" not in model.tensors
    assert model.ops[1].effect is Effect.ELEMENTWISE


def test_dequantized_weights_are_stored_integers(tmp_path: Path) -> None:
    """Weights behind DequantizeLinear are counted as their stored integers."""
    model = load(tmp_path, "a = DequantizeLinear(w, s, z) y = MatMul(x, a)")
    assert steps(model) == [("MatMul", ("x", "w", "s", "z"), ("y",), (0, 1))]
    assert model.constants == ("w", "s", "z")
    assert model.tensors["w"].nbytes == 4


def test_a_float_with_two_readers_stays(tmp_path: Path) -> None:
    """A float tensor with a second reader stays, and its QuantizeLinear is a separate op."""
    model = load(
        tmp_path,
        "h = Relu(x) q = QuantizeLinear(h, s, z) a = DequantizeLinear(q, s, z) y = Add(h, a)",
    )
    assert steps(model) == [
        ("Relu", ("x",), ("h",), (0,)),
        ("QuantizeLinear", ("h", "s", "z"), ("q",), (1,)),
        ("Add", ("h", "q", "s", "z"), ("y",), (2, 3)),
    ]


def test_each_reader_dequantizes_for_itself(tmp_path: Path) -> None:
    """A DequantizeLinear that two ops read is folded into both."""
    model = load(
        tmp_path,
        "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z)"
        "b = Exp(a) c = Neg(a) y = Add(b, c)",
    )
    assert [op.sources for op in model.ops] == [(0,), (1, 2), (1, 3), (4,)]


def test_the_microsoft_domain_counts_too(tmp_path: Path) -> None:
    """Quantize ops of the com.microsoft domain are folded too."""
    model = load(
        tmp_path,
        "q = com.microsoft.QuantizeLinear(x, s, z) a = com.microsoft.DequantizeLinear(q, s, z)"
        "y = Relu(a)",
    )
    assert [op.type for op in model.ops] == ["QuantizeLinear", "Relu"]


def test_a_reshape_at_equal_scales_is_a_view(tmp_path: Path) -> None:
    """A quantized Reshape is a view only if both scales are equal."""
    body = (
        "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) r = Reshape(a, m)"
        "p = QuantizeLinear(r, {scale}, z) y = DequantizeLinear(p, {scale}, z)"
    )
    signature = "(float[2,2] x) => (float[4] y)"
    same = load(tmp_path, body.format(scale="s"), signature)
    other = load(tmp_path, body.format(scale="s2"), signature)
    assert [same.ops[1].effect, other.ops[1].effect] == [Effect.VIEW, Effect.COMPUTE]
    assert same.ops[1].inputs[0] == "q"


def test_a_captured_float_stays(tmp_path: Path) -> None:
    """A dequantized tensor that a body captures is not folded."""
    model = load(
        tmp_path,
        "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z)"
        "y = If (c) <then_branch = t () => (float[2,2] u) { u = Exp(a) },"
        "            else_branch = f () => (float[2,2] v) { v = Neg(a) }>",
        "(float[2,2] x, bool c) => (float[2,2] y)",
    )
    assert [op.type for op in model.ops] == ["QuantizeLinear", "DequantizeLinear", "If"]
    assert model.ops[2].inputs == ("c", "a")
