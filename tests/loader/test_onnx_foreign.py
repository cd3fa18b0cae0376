"""Custom operators and results that are not tensors are refused with a way out."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

from qnnmem.errors import FreeDimensions, LoadError, join_words
from qnnmem.loader.onnx import read

HEAD = '<ir_version: 8, opset_import: ["" : 18, "maker" : 1, "ai.onnx.ml" : 3]>'


def save(folder: Path, text: str, *, imported: bool = True) -> Path:
    """Write a model given as text and return its path."""
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    if not imported:
        del model.opset_import[1]
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("size", ["4", "n"])
@pytest.mark.parametrize("imported", [True, False])
def test_an_operator_of_another_maker_is_named(tmp_path: Path, size: str, imported: bool) -> None:
    """A custom operator is refused by name, even with open sizes or an undeclared domain."""
    text = f"g (float[{size}] x) => (float[m] y) {{ a = maker.Quant (x) y = Relu (a) }}"
    with pytest.raises(LoadError) as caught:
        read(save(tmp_path, text, imported=imported))
    assert not isinstance(caught.value, FreeDimensions)
    said = caught.value.sentence()
    assert "Quant 'a' of domain 'maker' is not an ONNX operator" in said
    assert "export it as standard ONNX operators" in said
    assert "registered" not in said


def test_what_the_file_declares_is_planned_with_a_word_first(tmp_path: Path) -> None:
    """If the file declares a custom operator's shape, the plan states its unknown needs."""
    text = "g (float[4] x) => (float[4] y) { y = maker.Quant (x) }"
    model = read(save(tmp_path, text))
    assert "custom operator 'Quant' are unknown" in join_words(model.assumed)
    plain = read(save(tmp_path, "g (float[4] x) => (float[4] y) { y = Relu (x) }"))
    assert plain.assumed == ""


def test_an_operator_that_no_output_needs_does_no_harm(tmp_path: Path) -> None:
    """A custom operator that no output needs adds no assumption to the plan."""
    text = "g (float[4] x) => (float[4] y) { a = maker.Quant (x) y = Relu (x) }"
    assert read(save(tmp_path, text)).assumed == ""


@pytest.mark.parametrize("size", ["1", "n"])
def test_a_map_is_refused_before_sizes_are_asked_for(tmp_path: Path, size: str) -> None:
    """A map output is refused before sizes are requested, with ZipMap's option to avoid it."""
    node = "y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (x)"
    text = f"g (float[{size},2] x) => (seq(map(int64, float)) y) {{ {node} }}"
    with pytest.raises(LoadError, match="output of 'ZipMap', is a sequence, map") as caught:
        read(save(tmp_path, text))
    assert not isinstance(caught.value, FreeDimensions)
    assert "zipmap=False" in caught.value.sentence()


def test_a_sequence_is_refused_before_sizes_are_asked_for(tmp_path: Path) -> None:
    """A sequence output is refused before sizes are requested."""
    text = "g (float[n] x) => (seq(float[m]) y) { y = SequenceConstruct (x) }"
    with pytest.raises(LoadError, match="output of 'SequenceConstruct'") as caught:
        read(save(tmp_path, text))
    assert not isinstance(caught.value, FreeDimensions)
