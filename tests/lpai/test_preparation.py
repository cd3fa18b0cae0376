"""Preparation refuses models that LPAI cannot run, and fixes all sizes and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from qnnmem import lpai
from qnnmem.errors import FloatModel, FreeDimensions, LoadError, UsageError
from qnnmem.lpai.binary import pack, unpack
from qnnmem.lpai.runtime.graph_io import to_float
from qnnmem.planner import Io, Pool

TFLITE = Path(__file__).parents[2] / ".cache" / "models" / "keyword_spotting.tflite"


def network(bench: Any, batch: int | str = 1) -> Any:
    """Return a small float network with a tensor pair that looks like a state."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((8, 8)).astype(np.float32)}
    nodes = [
        bench.node("MatMul", ["x", "w"], ["a"]),
        bench.node("Add", ["a", "h_in"], ["b"]),
        bench.node("Tanh", ["b"], ["h_out"]),
        bench.node("Sigmoid", ["h_out"], ["y"]),
    ]
    shapes = {"x": [batch, 8], "h_in": [batch, 8]}
    return bench.model(nodes, shapes, ["y", "h_out"], weights)


@pytest.fixture(scope="module")
def folder(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the models."""
    made = tmp_path_factory.mktemp("models")
    (made / "net.onnx").write_bytes(network(bench).SerializeToString())
    (made / "free.onnx").write_bytes(network(bench, "batch").SerializeToString())
    return made


@pytest.fixture(scope="module")
def plain(folder: Path) -> lpai.Prepared:
    """Return the prepared float network."""
    return prepare(folder, "net.onnx")


@pytest.fixture(scope="module")
def quantized(folder: Path) -> lpai.Prepared:
    """Return the network, quantized during preparation, with a state pair."""
    states = (("h_in", "h_out"),)
    return prepare(folder, "net.onnx", allow_float=False, quantize=8, states=states)


def prepare(folder: Path, *names: str, **options: Any) -> lpai.Prepared:
    """Return the prepared files of a folder, floats allowed by default."""
    chosen = {"allow_float": True, "time_limit_s": 60.0} | options
    files = {Path(name).stem: folder / name for name in names}
    return lpai.prepare(files, lpai.PrepareOptions(**chosen))


def binary(prepared: lpai.Prepared) -> bytes:
    """Return the bytes of the binary."""
    return b"".join(pack(prepared.context))


def test_a_float_model_is_refused(folder: Path) -> None:
    """A float model is refused with the settings that help."""
    with pytest.raises(FloatModel) as caught:
        prepare(folder, "net.onnx", allow_float=False, states=(("h_in", "h_out"),))
    assert caught.value.quantizable
    text = str(caught.value)
    assert "only 8- and 16-bit models" in text
    assert text.endswith(
        "quantize int8 quantizes it first, or add allow_float for an experiment on the host"
    )


def test_a_float_model_is_marked(plain: lpai.Prepared) -> None:
    """With `allow_float`, a float model is prepared with a count of its float ops."""
    assert plain.context.graphs[0].float_ops > 0


def test_quantizing_on_the_way(bench: Any, quantized: lpai.Prepared, tmp_path: Path) -> None:
    """A model quantized to int8 stays close to the float one; random calibration is warned of."""
    graph = quantized.context.graphs[0]
    assert graph.float_ops == 0
    assert any("random samples" in warning for warning in quantized.warnings)
    assert sum(graph.model.tensors[name].nbytes for name in graph.inputs) == 8
    feeds = {"x": np.full((1, 8), 0.5, np.float32), "h_in": np.zeros((1, 8), np.float32)}
    with bench.open(quantized.context, tmp_path) as session:
        for _ in range(4):
            found = to_float(session.run({"x": feeds["x"]})["y"], graph.quants["y"])
            expected = bench.plain(network(bench), feeds)
            assert np.abs(found - expected["y"]).max() < 0.03
            feeds["h_in"] = expected["h_out"]
    assert session.findings == ()


def test_quantized_state_starts_at_zero(quantized: lpai.Prepared) -> None:
    """A quantized state is 8 bits wide and lies in the persistent pool."""
    graph = quantized.context.graphs[0]
    assert graph.states == (("h_in", "h_out"),)
    assert graph.buffer_of["h_in"].pool is Pool.PERSISTENT
    assert graph.model.tensors["h_in"].nbytes == 8


def test_the_same_input_gives_the_same_bytes(
    folder: Path, plain: lpai.Prepared, quantized: lpai.Prepared
) -> None:
    """Preparing the same model with the same options gives the same bytes."""
    assert binary(prepare(folder, "net.onnx")) == binary(plain)
    again = prepare(folder, "net.onnx", allow_float=False, quantize=8, states=(("h_in", "h_out"),))
    assert binary(again) == binary(quantized)


def test_a_binary_holds_what_was_prepared(plain: lpai.Prepared) -> None:
    """A binary reads back as the prepared context with its plan."""
    found = unpack(binary(plain))
    assert found.graphs == plain.context.graphs
    graph = found.graphs[0]
    assert graph.scratch_bytes == plain.plans[0].scratch_bytes
    assert graph.persistent_bytes == plain.plans[0].persistent_bytes == 0


def test_likely_state_is_suggested(plain: lpai.Prepared, quantized: lpai.Prepared) -> None:
    """A likely state pair is suggested only while no state is given."""
    hint = "h_in and h_out look like state; states={'h_in': 'h_out'} keeps it in persistent memory"
    assert hint in plain.warnings
    assert not any("look like state" in warning for warning in quantized.warnings)


def test_io_outside(folder: Path) -> None:
    """With IO outside, inputs and outputs are in the IO pool."""
    prepared = prepare(folder, "net.onnx", io=Io.OUTSIDE)
    graph = prepared.context.graphs[0]
    assert graph.io is Io.OUTSIDE
    assert {graph.buffer_of[name].pool for name in (*graph.inputs, *graph.outputs)} == {Pool.IO}


@pytest.mark.parametrize("version", ["v4", "v7"])
def test_the_hardware_version_is_stored(folder: Path, version: str) -> None:
    """The hardware version is stored in the binary."""
    path = folder.parent / "list.csv"
    path.write_text("id,lower,upper,size\na,0,3,4\nb,2,6,4\n", "utf-8")
    prepared = prepare(folder.parent, "list.csv", hw_version=version)
    assert unpack(binary(prepared)).hw_version == version


def test_free_dimensions_must_be_fixed(folder: Path) -> None:
    """An open dimension is refused by name; with a given size the model is prepared."""
    with pytest.raises(FreeDimensions, match="batch"):
        prepare(folder, "free.onnx")
    graph = prepare(folder, "free.onnx", dims={"batch": 3}).context.graphs[0]
    assert graph.model.tensors["x"].shape == (3, 8)


def test_free_dimensions_are_fixed_before_quantizing(folder: Path) -> None:
    """Open dimensions are fixed before the model is quantized."""
    made = prepare(folder, "free.onnx", dims={"batch": 3}, quantize=8, allow_float=False)
    assert made.context.graphs[0].model.tensors["x"].shape == (3, 8)


def test_unknown_state_is_refused(folder: Path) -> None:
    """A state pair with an unknown input raises UsageError."""
    with pytest.raises(UsageError, match="nothing"):
        prepare(folder, "net.onnx", states=(("nothing", "h_out"),))


def test_state_that_is_an_output_itself_is_refused(bench: Any, tmp_path: Path) -> None:
    """An old state that is also an output is refused, since the new state overwrites it."""
    nodes = [bench.node("Add", ["h", "x"], ["n"])]
    proto = bench.model(nodes, {"x": [4], "h": [4]}, ["n", "h"])
    with pytest.raises(UsageError, match="state 'h' is also an output"):
        bench.prepare(proto, tmp_path, states=(("h", "n"),))


def test_nothing_to_prepare_is_refused() -> None:
    """Preparing no model raises UsageError."""
    with pytest.raises(UsageError, match="at least one model"):
        lpai.prepare({})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A missing file raises LoadError."""
    with pytest.raises(LoadError):
        prepare(tmp_path, "missing.onnx")


@pytest.mark.parametrize("options", [{"quantize": 8}, {"rnn_state": True}])
def test_layouts_cannot_be_changed(folder: Path, options: dict[str, Any]) -> None:
    """`quantize` and `rnn_state` are refused for a buffer list."""
    path = folder.parent / "rows.csv"
    path.write_text("id,lower,upper,size\na,0,3,4\n", "utf-8")
    with pytest.raises(UsageError, match="for ONNX models"):
        prepare(folder.parent, "rows.csv", **options)


def test_tflite_gives_a_program() -> None:
    """A quantized TFLite model is prepared with a program and the planned scratch."""
    if not TFLITE.exists():
        pytest.skip("model keyword_spotting is not here; fetch it with tools/models.py")
    graph = prepare(TFLITE.parent, TFLITE.name, allow_float=False).context.graphs[0]
    assert graph.program
    assert graph.scratch_bytes == 16_000
    assert not any("layout without a program" in note for note in graph.notes)


def test_progress_is_told(folder: Path) -> None:
    """The progress callback gets each step: reading, planning, trying."""
    said: list[str] = []
    options = lpai.PrepareOptions(allow_float=True, time_limit_s=600.0)
    lpai.prepare({"net": folder / "net.onnx"}, options, said.append)
    assert said == ["reading net.onnx", "planning net", "trying net"]


def test_a_quantized_model_that_cannot_be_read_is_told_by_the_name_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error after quantization names the user's file, not the temporary one."""
    from qnnmem.lpai import preparation

    def write_nonsense(path: Path, target: Path, *_rest: object) -> tuple[tuple[()], None]:
        target.write_bytes(path.read_bytes()[:40])
        return (), None

    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    path = tmp_path / "mine.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    monkeypatch.setattr(preparation, "_quantize", write_nonsense)
    with pytest.raises(LoadError, match="cannot be prepared after quantization") as e:
        preparation.prepare({"g": path}, lpai.PrepareOptions(quantize=8))
    assert str(e.value).startswith(str(path))
    assert str(e.value).count(".onnx") == 1
