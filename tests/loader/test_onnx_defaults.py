"""A missing attribute has the standard's default, even where shape inference is wrong."""

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
    """Write a model given as text and return its path."""
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString())
    return path


@pytest.mark.parametrize(
    ("given", "bins"), [("", 9), (" <onesided = 1>", 9), (" <onesided = 0>", 16)]
)
def test_a_spectrum_is_one_sided_unless_told_otherwise(
    tmp_path: Path, given: str, bins: int
) -> None:
    """An STFT without the attribute `onesided` returns 9 of 16 bins, as in onnxruntime."""
    node = f"y = STFT{given} (x, step, , length)"
    text = f"g (float[1,64,1] x) => (float[a,b,c,d] y) {{ {STEP} {node} }}"
    model = read(save(tmp_path, text))
    assert model.tensors["y"].shape == (1, 13, bins, 2)


def test_what_is_executed_says_the_default(tmp_path: Path) -> None:
    """The executable graph states the default of `onesided`, so a run gives the planned shapes."""
    text = f"g (float[1,64,1] x) => (float[a,b,c,d] y) {{ {STEP} y = STFT (x, step, , length) }}"
    node = next(n for n in executable(save(tmp_path, text)).graph.node if n.op_type == "STFT")
    assert [(a.name, a.i) for a in node.attribute] == [("onesided", 1)]


def test_the_default_holds_in_a_branch_too(tmp_path: Path) -> None:
    """The default of `onesided` applies inside a branch too."""
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
    """A trial run that contradicts an inferred shape is refused."""
    monkeypatch.setattr(resolve, "_DEFAULTS", {})
    nodes = f"{STEP} s = STFT (x, step, , length) y = ReduceSum (s)"
    path = save(tmp_path, f"g (float[1,N,1] x) => (float[a] y) {{ {nodes} }}")
    said = r"'s', output of 'STFT', is \[1, 13, 9, 2\] in a run but \[1, 13, 16, 2\]"
    with pytest.raises(LoadError, match=said):
        read(path, dims={"N": 64})
