"""Preparation in words of the command line."""

from __future__ import annotations

from pathlib import Path

from qnnmem.errors import FloatModel
from qnnmem.lpai import PrepareOptions
from qnnmem.report.flags import flag
from qnnmem.report.prepare import quantize_command, word_float_model


def test_the_command_can_be_pasted() -> None:
    """Names with blanks are quoted, options repeat what was given."""
    options = PrepareOptions(
        dims={"n": 1}, shapes={"x": (1, 2), "s": ()}, states=(("h", "h_new"),), quantize=16
    )
    assert quantize_command("my model.onnx", options) == (
        "qnnmem prepare 'my model.onnx' --backend lpai --quantize int16 --calibration DIR "
        "--dim=n=1 --shape=x=1x2 --shape=s=scalar --state=h=h_new -o model.bin"
    )
    given = PrepareOptions(calibration=Path("data"))
    assert "--quantize int8 --calibration data -o" in quantize_command("a.onnx", given)


def test_a_model_that_can_be_quantized_gets_the_command() -> None:
    """The sentence of a float model holds the whole command."""
    error = FloatModel("a.onnx", "it is float", quantizable=True)
    assert word_float_model(error, PrepareOptions()).sentence(flag) == (
        "a.onnx: it is float; quantize it on the way with qnnmem prepare a.onnx --backend lpai "
        "--quantize int8 --calibration DIR -o model.bin or add --float for a desk experiment"
    )


def test_a_layout_is_quantized_before() -> None:
    """What has no program cannot be quantized here."""
    error = FloatModel("a.tflite", "it is float", quantizable=False)
    assert word_float_model(error, PrepareOptions()).sentence(flag) == (
        "a.tflite: it is float; quantize it before, or add --float for a desk experiment"
    )
