"""Random values for an input that indexes a table stay within the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import exit_code, run
from onnx import TensorProto, helper, numpy_helper, parser, save

from qnnmem.calibration import Input, random_sample
from qnnmem.loader.onnx.inputs import index_limits


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("g (int64[2] i) => (float[2,3] y) <float[5,3] t> { y = Gather(t, i) }", {"i": 5}),
        ("g (int64[2] i) => (float[5,2] y) <float[5,3] t> { y = Gather<axis=1>(t, i) }", {"i": 3}),
        ("g (int64[2] i) => (float[5,2] y) <float[5,3] t> { y = Gather<axis=-1>(t, i) }", {"i": 3}),
        (
            "g (int32[2] i) => (float[2] y) <float[5] t, float[2] u> "
            "{ a = Cast<to=7>(i) b = Identity(a) c = Gather(t, b) d = Gather(u, i) y = Add(c, d) }",
            {"i": 2},
        ),
        ("g (int64[2,1] i) => (float[2] y) <float[5] t> { y = GatherND(t, i) }", {"i": 5}),
        ("g (int64[2] i) => (int64[2] y) { y = Add(i, i) }", {}),
        ("g (int64[2] i, float[5] t) => (float[2] y) { y = Gather(t, i) }", {"i": 5}),
        ("g (int64[1] i) => (float[1] y) <float[9] t> { j = Add(i, i) y = Gather(t, j) }", {}),
    ],
)
def test_the_table_that_an_input_is_looked_up_in(text: str, limits: dict[str, int]) -> None:
    """The limit of an index input is found through ops that pass integers on, and no others."""
    assert index_limits(parser.parse_graph(text)) == limits


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "float32"])
def test_made_up_indices_stay_inside_their_table(dtype: str) -> None:
    """Random indices stay within their table, also as floats."""
    item = Input("i", dtype, (400,), below=2)
    values = random_sample([item], 0, 0)["i"]
    assert values.dtype == dtype
    assert set(values.tolist()) == {0, 1}


def embedding(path: Path, kind: int) -> None:
    """Write a model with a table of two rows, as language models have for token types."""
    random = np.random.default_rng(0)
    weights = {"t": random.standard_normal((2, 8)), "w": random.standard_normal((8, 4))}
    nodes = [
        helper.make_node("Cast", ["ids"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["t", "i"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=-1),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 4]),
        helper.make_tensor_value_info("best", TensorProto.INT64, [1, 6, 1]),
    ]
    inputs = [helper.make_tensor_value_info("ids", kind, [1, 6])]
    stored = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT8, onnx.TensorProto.FLOAT])
def test_a_model_with_a_small_table_is_prepared_and_run(
    kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with a two-row table is prepared and run; changed integer outputs are counted."""
    monkeypatch.chdir(tmp_path)
    embedding(tmp_path / "m.onnx", kind)
    done = run("prepare", "m.onnx", "--quantize", "int8", "-o", "m.bin")
    assert exit_code(done) == 0, done.stderr
    assert "output 'best' (integers): 0 of 48 values differ on these samples" in done.stdout
    assert exit_code(run("net-run", "m.bin", "--random-inputs", "3")) == 0
