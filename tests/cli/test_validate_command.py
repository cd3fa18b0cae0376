"""`qnnmem validate`: one model on the CPU and on HTP, or against saved outputs."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from command_line import exit_code, run, sentence
from onnx import TensorProto, helper

from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.results.schema import load_schema

MODEL = Path(__file__).parents[2] / "examples" / "small.onnx"
GIVEN = ("--dim", "N=1")


def saved(folder: Path, wrong: float = 0.0) -> tuple[str, str, str, str]:
    """Save two inputs and their outputs, the second wrong by `wrong`; return the options."""
    session = import_onnxruntime().InferenceSession(MODEL.read_bytes())
    for number in range(2):
        x = np.random.default_rng(number).random((1, 4, 8, 8), "float32")
        (y,) = session.run(None, {"x": x})
        y[0, 0, 0, 0] += wrong * number
        for side, array in (("x", x), ("y", y)):
            place = folder / side / str(number)
            place.mkdir(parents=True)
            np.save(place / f"{side}.npy", array)
    return "--data", str(folder / "x"), "--results", str(folder / "y")


def test_saved_outputs_that_agree_leave_memory_as_the_question(tmp_path: Path) -> None:
    """Equal outputs give exit code 0 and point to memory; the JSON follows its schema."""
    words = saved(tmp_path)
    done = run("validate", MODEL, *GIVEN, "--against", "cpu", *words)
    assert exit_code(done) == 0
    assert done.stdout.startswith("same: ")
    assert "the graph is right on these inputs; look at memory" in done.stdout
    values = json.loads(run("validate", MODEL, *GIVEN, *words, "--json").stdout)
    jsonschema.validate(values, load_schema("qnnmem.validate/1"))
    assert (values["verdict"], values["samples"], values["is_memory"]) == ("same", 2, True)


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    """Differing outputs give exit code 1 and name the first tensor; --tolerance accepts them."""
    words = saved(tmp_path, wrong=5.0)
    done = run("validate", MODEL, *GIVEN, *words)
    assert exit_code(done) == 1
    assert "first 'y'; look at the graph before memory" in done.stdout
    assert exit_code(run("validate", MODEL, *GIVEN, *words, "--tolerance", "1")) == 0
    assert exit_code(run("validate", MODEL, *GIVEN, *words, "--against", "gpu")) == 1


def test_what_is_missing_is_a_sentence(tmp_path: Path) -> None:
    """Missing options and a truncated model give exit code 2 and one sentence."""
    words = saved(tmp_path)
    for more, said in (
        ((), "choose a SoC"),
        (("--against", "gpu"), "pass its inputs and outputs with --data and --results"),
        (words[:2], "--data and --results must be given together"),
        (words[2:], "--data and --results must be given together"),
        (("--data", words[1], "--results", f"{words[3]}/0"), "2 input samples but 1 saved outputs"),
    ):
        done = run("validate", MODEL, *GIVEN, *more)
        assert exit_code(done) == 2
        assert said in sentence(done)
    other = tmp_path / "other.onnx"
    other.write_bytes(MODEL.read_bytes()[:200])
    assert exit_code(run("validate", other, "--soc", "SM8650")) == 2


def refused_model(folder: Path) -> Path:
    """Return a model that the CPU runs and HTP rejects."""
    node = helper.make_node("Det", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    onnx.save(model, folder / "det.onnx")
    return folder / "det.onnx"


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
def test_htp_is_compared_tensor_by_tensor(tmp_path: Path) -> None:
    """HTP is compared tensor by tensor in graph order; a rejected model points to the graph."""
    words = (*GIVEN, "--against", "cpu", "--soc", "SM8650", "--json")
    done = run("validate", MODEL, *words)
    values = json.loads(done.stdout)
    assert (exit_code(done), values["verdict"], values["every"]) == (0, "same", True)
    assert [one["operator"] for one in values["tensors"]] == ["Conv", "Relu", "Add"]
    values = json.loads(run("validate", MODEL, *words, "--tolerance", "0").stdout)
    assert (values["verdict"], values["first"]) == ("differs", "c")
    done = run("validate", refused_model(tmp_path), "--soc", "SM8650")
    assert exit_code(done) == 1
    assert "the CPU runs the model and HTP of SM8650" in done.stdout
    assert "look at the graph, not at memory" in done.stdout
