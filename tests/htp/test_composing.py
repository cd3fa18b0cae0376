"""ONNX models as ONNX Runtime passes them to QNN: recorded by a library that listens."""

from __future__ import annotations

import copy
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from command_line import exit_code, run, sentence
from packed import packed

from qnnmem.errors import QnnMemError
from qnnmem.htp import installed
from qnnmem.htp.library import has_library
from qnnmem.htp.plan_difference import ComposedModel, compose_onnx, composed_model, difference_notes
from qnnmem.htp.requests import ListenReply
from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.loader.dlc.model import as_model
from qnnmem.loader.dlc.operators import translate
from qnnmem.planner import PoolOptions, plan_model
from qnnmem.qnn.graph import ComposedGraph
from qnnmem.quiet_onnxruntime import exact_session
from qnnmem.targets.socs import find_soc
from qnnmem.wire import decode

GRU = """<ir_version: 8, opset_import: ["" : 17]>
cell (float[2, 1, 3] x, float[1, 1, 4] h) => (float[2, 1, 1, 4] y, float[1, 1, 4] last) {
    y, last = GRU <hidden_size = 4> (x, w, r, b, , h)
}"""
SPLIT = """<ir_version: 8, opset_import: ["" : 17]>
split (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) {
    a = Relu (x)
    b = Erf (a)
    y = Sigmoid (b)
}"""


def written(text: str, path: Path, **constants: Any) -> Path:
    """Write a model to a file."""
    model = onnx.parser.parse_model(text)
    for name, values in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, path)
    return path


MISSING = object()
HEARD: dict[str, Any] = {
    "graphs": [
        {
            "name": "g",
            "tensors": [
                {
                    "call": "tensor",
                    "id": 1,
                    "name": "x",
                    "type": 0,
                    "data_type": 562,
                    "dimensions": [2, 3],
                },
                {
                    "call": "tensor",
                    "id": 2,
                    "name": "y",
                    "type": 1,
                    "data_type": 562,
                    "dimensions": [2, 3],
                },
            ],
            "ops": [
                {
                    **{"name": "a", "package": "qti.aisw", "type": "Relu", "inputs": [1]},
                    **{"outputs": [2], "scalars": {}, "arrays": {}, "call": "node"},
                }
            ],
        }
    ],
    **{"shared": [], "on_cpu": [["b", "Erf"]], "on_htp": 1, "type": "ListenReply"},
}
for _one in HEARD["graphs"][0]["tensors"]:
    _one["call"] = "tensor"
    _one["quantization"] = {"encoding": 0, "scales": [0.5], "offsets": [0]}


def places(value: Any, *way: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each nested value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        yield (*way, key)
        if isinstance(one, dict | list):
            yield from places(one, *way, key)


def answered(path: Path, reply: Any) -> str:
    """Return the outcome for a worker's reply: nonsense, a sentence or a plan."""
    try:
        heard = decode(packed(reply), ListenReply)
    except ValueError:
        return "nonsense"
    try:
        for graph in composed_model(path, heard, b"", "a library").graphs:
            plan_model(as_model(path, graph))
    except QnnMemError:
        return "a sentence"
    return "planned"


def test_nonsense_from_elsewhere_is_a_sentence(tmp_path: Path) -> None:
    """A worker's reply with a wrong or missing value is refused or planned, without a crash."""
    assert answered(tmp_path, HEARD) == "planned"
    found = set()
    for *way, last in places(HEARD):
        for nonsense in (None, -1, 1 << 70, 1e308, "x", [], [[]], {}, ["a"], MISSING):
            reply = copy.deepcopy(HEARD)
            at: Any = reply
            for key in way:
                at = at[key]
            at[last] = nonsense
            if nonsense is MISSING:
                del at[last]
            found.add(answered(tmp_path, reply))
    assert found == {"nonsense", "a sentence", "planned"}


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="needs the real HTP library")
def test_a_recurrent_model_is_heard_and_computes_the_same(tmp_path: Path) -> None:
    """A composed GRU computes the same results as ONNX Runtime; the vendor rejects its DLC."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 12, 3), "r": (1, 12, 4), "b": (1, 24)}
    weights = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    path = written(GRU, tmp_path / "cell.onnx", **weights)
    nothing: dict[str, Any] = {"dims": {}, "shapes": {}, "values": {}}
    found = compose_onnx(path, find_soc("SM8650"), **nothing, with_data=True)
    (graph,) = found.graphs
    assert not found.on_cpu
    assert [op.type for op in graph.ops].count("Gru") == 2
    _, proto = translate(graph, as_model(path, graph))
    given = {"x": rng.standard_normal((2, 1, 3)), "h": rng.standard_normal((1, 1, 4))}
    given = {name: values.astype("f4") for name, values in given.items()}
    wanted = exact_session(path.read_bytes()).run(["y", "last"], given)
    results = exact_session(proto.SerializeToString()).run(["y", "last"], given)
    for one, other in zip(wanted, results, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="needs the real HTP library")
def test_both_plans_are_said_with_why_they_differ(tmp_path: Path) -> None:
    """`plan --as qnn` names each unsupported node and explains how both plans differ."""
    path = written(SPLIT, tmp_path / "split.onnx")
    done = run("plan", str(path), "--as", "qnn")
    assert exit_code(done) == 0, done.exception
    assert "QNN does not support 1 node, which stay on the CPU: Erf" in done.stderr
    assert done.stdout.count("split.onnx Q") == 2
    whole = written(SPLIT.replace("Erf", "Tanh"), tmp_path / "whole.onnx")
    done = run("plan", str(whole), "--as", "qnn")
    assert "bytes for the QNN graph and 1,536 for the ONNX graph" in done.stdout
    values = json.loads(run("plan", str(whole), "--as", "qnn", "--json").stdout)
    assert values["as"] == "qnn"


def test_elsewhere_one_sentence_says_where_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On aarch64, `plan --as qnn` exits with 3 and says that Linux on x86-64 is required."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.delenv("QNNMEM_HTP_WORKER", raising=False)
    installed.installed_library.cache_clear()
    try:
        done = run("plan", str(written(SPLIT, tmp_path / "net.onnx")), "--as", "qnn")
    finally:
        installed.installed_library.cache_clear()
    assert exit_code(done) == 3
    assert "for Linux on x86-64 only" in sentence(done)
    assert os.listdir(tmp_path) == ["net.onnx"]  # noqa: PTH208  names are enough


def test_why_plans_differ_is_said_in_the_width_that_is_planned() -> None:
    """The notes on plan differences count bytes in the planned width: 64 bytes for 64 elements."""
    x, y, z = (Tensor(name, DType("float32"), (64,)) for name in "xyz")
    short = Model("a", "onnx", {"x": x, "y": y}, (Op("a", "Relu", ("x",), ("y",)),), ("x",), ("y",))
    ops = (Op("a", "Relu", ("x",), ("z",)), Op("t", "Transpose", ("z",), ("y",)))
    both = Model("a", "dlc", {"x": x, "y": y, "z": z}, ops, ("x",), ("y",))
    plans = [plan_model(one, PoolOptions(bits=8)) for one in (short, both)]
    composed = ComposedModel((ComposedGraph("a", (), ()),), (), 1, "")
    notes = difference_notes(plans[0], plans[1], composed)
    assert "only the QNN graph has 1 tensor with 64 bytes: outputs of Relu 1 (64)" in notes
