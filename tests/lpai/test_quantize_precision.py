from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.lpai.quantize.precision import classify, float_tensors


def model(*ops: tuple[str, str, str], floats: str, inputs: str = "x", outputs: str = "y") -> Model:
    """Return a model of ops (type, reads, writes) with one-letter tensors; `floats` are float."""
    views = {"Reshape": Effect.VIEW}
    built = [
        Op(f"{kind}_{k}", kind, tuple(old), tuple(new), views.get(kind, Effect.COMPUTE))
        for k, (kind, old, new) in enumerate(ops)
    ]
    names = {n for op in built for n in (*op.inputs, *op.outputs)} | {*inputs, *outputs}
    tensors = {
        n: Tensor(n, DType.FLOAT32 if n in floats else DType.INT8, (4,)) for n in sorted(names)
    }
    return Model("m", "onnx", tensors, tuple(built), tuple(inputs), tuple(outputs))


@pytest.mark.parametrize(
    ("ops", "floats", "wrong"),
    [
        ([("Conv", "x", "a"), ("Relu", "a", "y")], "", []),
        ([("Conv", "x", "a"), ("Relu", "a", "y")], "xay", ["Conv", "Relu"]),
        ([("QuantizeLinear", "x", "a"), ("DequantizeLinear", "a", "y")], "xy", []),
        ([("Reshape", "x", "a"), ("QuantizeLinear", "a", "y")], "xa", []),
        ([("Conv", "x", "a"), ("DequantizeLinear", "a", "b"), ("Reshape", "b", "y")], "by", []),
        ([("DequantizeLinear", "x", "a"), ("Softmax", "a", "y")], "ay", ["Dequant", "Softmax"]),
        ([("Conv", "x", "y")], "y", ["Conv"]),
        ([("Conv", "x", "y")], "x", ["Conv"]),
        ([("Reshape", "x", "y")], "xy", ["Reshape"]),
        ([("Conv", "x", "a"), ("Exp", "a", "b"), ("Quantize", "b", "y")], "b", ["Exp", "Quantize"]),
        ([("Split", "x", "yz")], "z", []),
    ],
)
def test_floats_are_allowed_at_the_border_only(
    ops: Sequence[tuple[str, str, str]], floats: str, wrong: Sequence[str]
) -> None:
    """An op that computes with floats is listed; one that only converts at the border is not."""
    found = classify(model(*ops, floats=floats))
    assert [op.type for op in found.float_ops] == [
        w.replace("Dequant", "DequantizeLinear") for w in wrong
    ]
    assert found.is_quantized is (not wrong)


def test_float_constants_do_not_count() -> None:
    """Float constants, such as scales, do not make a model float."""
    plain = model(("Conv", "xs", "y"), floats="s")
    stored = replace(plain, constants=("s",))
    assert not classify(plain).is_quantized
    assert classify(stored).is_quantized
    assert float_tensors(stored) == ()


def test_branches_count_with_what_they_capture() -> None:
    """A float op in a body counts, and so does an op that captures a float."""
    body = model(("Exp", "a", "b"), floats="", inputs="", outputs="b")
    outer = model(("QuantizeLinear", "x", "y"), floats="xa")
    ops = (*outer.ops, Op("if", "If", ("a",), ("z",), bodies=(body,)))
    found = classify(replace(outer, ops=ops, tensors={**outer.tensors, **_float("a")}))
    assert [op.type for op in found.float_ops] == ["If", "Exp"]
    assert found.ops == 3


def _float(name: str) -> dict[str, Tensor]:
    return {name: Tensor(name, DType.FLOAT32, (4,))}


def test_the_verdict_counts_and_names_the_first() -> None:
    """The verdict counts the float ops and names the first ones, with names escaped."""
    ops = [("Exp", "x", "a"), ("Exp", "a", "b"), ("Exp", "b", "c"), ("Exp", "c", "y")]
    found = classify(model(*ops, floats="xabcy"))
    assert found.sentence.startswith("4 of 4 ops compute in floating point: 'Exp_0' (Exp), ")
    assert found.sentence.endswith(" and 1 more")
    border = classify(model(("QuantizeLinear", "x", "y"), floats="x"))
    assert border.sentence.endswith("float inputs or outputs: 'x'")
    assert border.bits == (8,)
    hostile = replace(model(ops[0], floats="x", outputs="a").ops[0], name="\x1b[31m")
    shown = classify(replace(model(ops[0], floats="x", outputs="a"), ops=(hostile,))).sentence
    assert "\x1b" not in shown
