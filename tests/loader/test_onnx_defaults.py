"""Attributes that are left out mean what the standard says, also where inference errs."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

from qnnmem.errors import LoadError
from qnnmem.loader.onnx import executable, read
from qnnmem.loader.onnx.passes import resolve

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
STEP = "step = Constant <value = int64 {4}> () length = Constant <value = int64 {16}> ()"


def save(folder: Path, text: str) -> Path:
    """Write a model given as text."""
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString())
    return path


@pytest.mark.parametrize(
    ("given", "bins"), [("", 9), (" <onesided = 1>", 9), (" <onesided = 0>", 16)]
)
def test_a_spectrum_is_one_sided_unless_told_otherwise(
    tmp_path: Path, given: str, bins: int
) -> None:
    """Half of the bins and one, as onnxruntime gives them."""
    node = f"y = STFT{given} (x, step, , length)"
    text = f"g (float[1,64,1] x) => (float[a,b,c,d] y) {{ {STEP} {node} }}"
    model = read(save(tmp_path, text))
    assert model.tensors["y"].shape == (1, 13, bins, 2)


def test_what_is_executed_says_the_default(tmp_path: Path) -> None:
    """Whoever runs the graph gets the shapes that were planned."""
    text = f"g (float[1,64,1] x) => (float[a,b,c,d] y) {{ {STEP} y = STFT (x, step, , length) }}"
    node = next(n for n in executable(save(tmp_path, text)).graph.node if n.op_type == "STFT")
    assert [(a.name, a.i) for a in node.attribute] == [("onesided", 1)]


def test_the_default_holds_in_a_branch_too(tmp_path: Path) -> None:
    """Bodies are graphs like the others."""
    branch = f"{{ {STEP} a = STFT (x, step, , length) }}"
    other = f"{{ {STEP} b = STFT <onesided = 1> (x, step, , length) }}"
    text = (
        "g (float[1,64,1] x, bool c) => (float[a,b,c,d] y) { y = If (c) <"
        f"then_branch = t () => (float[e,f,g,h] a) {branch}, "
        f"else_branch = e () => (float[e,f,g,h] b) {other}> }}"
    )
    assert read(save(tmp_path, text)).tensors["y"].shape == (1, 13, 9, 2)


def test_a_shape_that_inference_gets_wrong_is_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model is run to try sizes, every shape is compared with the one that is planned."""
    monkeypatch.setattr(resolve, "_DEFAULTS", {})
    nodes = f"{STEP} s = STFT (x, step, , length) y = ReduceSum (s)"
    path = save(tmp_path, f"g (float[1,N,1] x) => (float[a] y) {{ {nodes} }}")
    said = r"'s', output of 'STFT', is \[1, 13, 9, 2\] in a run but \[1, 13, 16, 2\]"
    with pytest.raises(LoadError, match=said):
        read(path, dims={"N": 64})
