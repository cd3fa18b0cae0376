"""Preparation in words of the command line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from qnnmem.errors import FloatModel
from qnnmem.lpai import PrepareOptions
from qnnmem.lpai.quantize.error import QuantizeError, Tried
from qnnmem.plan import Io
from qnnmem.report.flags import flag
from qnnmem.report.prepare import (
    PrepareRequest,
    error_lines,
    quantize_command,
    word_float_model,
)
from qnnmem.units import Align


def request(options: PrepareOptions, *files: str) -> PrepareRequest:
    """Ask for graphs named after their files."""
    return PrepareRequest({Path(file).stem: Path(file) for file in files}, options, "out.bin")


def test_the_command_can_be_pasted() -> None:
    """Names with blanks are quoted, options repeat what was given, nothing is left to fill in."""
    options = PrepareOptions(
        dims={"n": 1}, shapes={"x": (1, 2), "s": ()}, states=(("h", "h_new"),), quantize=16
    )
    assert quantize_command(request(options, "my model.onnx")) == (
        "qnnmem prepare 'my model.onnx' --backend lpai --quantize int16 "
        "--dim=n=1 --shape=x=1x2 --shape=s=scalar --state=h=h_new -o out.bin"
    )


def test_the_command_keeps_every_option_that_changes_the_answer() -> None:
    """Files, names, pools, widths, hardware: only quantizing is new."""
    options = PrepareOptions(
        rnn_state=True,
        io=Io.OUTSIDE,
        align=Align(256),
        weight_bits=16,
        calibration=Path("my data"),
        seed=3,
        hw_version="v5",
        time_limit_s=2.5,
    )
    files = {"one": Path("a.onnx"), "b": Path("b.onnx")}
    assert quantize_command(PrepareRequest(files, options, "o.bin", force=True)) == (
        "qnnmem prepare a.onnx b.onnx --backend lpai --quantize int8 --graph-name=one "
        "--graph-name=b --rnn-state --io=outside --align=256 --weight-bits=16 "
        "'--calibration=my data' --seed=3 --hw-ver=v5 --time-limit=2.5 -o o.bin --force"
    )


def test_every_option_is_in_the_command_or_is_no_matter_of_it() -> None:
    """A setting that is new must be repeated, too."""
    told = {"dims", "shapes", "values", "states", "rnn_state", "inplace", "reorder", "quantize"}
    here = {"allow_float"}  # what is recommended against
    valued = {"io", "align", "weight_bits", "calibration", "seed", "hw_version", "time_limit_s"}
    assert {field.name for field in fields(PrepareOptions)} == told | here | valued


def test_a_model_that_can_be_quantized_gets_the_command() -> None:
    """The sentence of a float model holds the whole command."""
    error = FloatModel("a.onnx", "it is float", quantizable=True)
    assert word_float_model(error, request(PrepareOptions(), "a.onnx")).sentence(flag) == (
        "a.onnx: it is float; quantize it on the way with qnnmem prepare a.onnx --backend lpai "
        "--quantize int8 -o out.bin or add --float for a desk experiment"
    )


def test_a_layout_is_quantized_before() -> None:
    """What has no program cannot be quantized here."""
    error = FloatModel("a.tflite", "it is float", quantizable=False)
    assert word_float_model(error, request(PrepareOptions(), "a.tflite")).sentence(flag) == (
        "a.tflite: it is float; quantize it before, or add --float for a desk experiment"
    )


def test_a_large_error_is_a_warning_with_what_was_seen_to_help() -> None:
    """Only widths that at least halve the error are named, each better than the one before."""
    tried = (Tried(8, 16, 0.168), Tried(16, 8, 1.36), Tried(16, 16, 0.021))
    poor = QuantizeError("vad", 8, 8, 1.37, made_up=True, tried=tried)
    assert error_lines([poor]) == [
        "warning: graph vad, int8 with 8-bit weights: off by up to 137.0% of the largest output on "
        "made-up samples; tried on the same samples, --weight-bits 16 gives 16.8%, "
        "--quantize int16 --weight-bits 16 gives 2.1%; "
        "real samples with --calibration give other ranges"
    ]


def test_where_nothing_helped_nothing_is_promised() -> None:
    """Wider numbers that were tried in vain are not recommended."""
    poor = QuantizeError("g", 8, 8, 0.9, made_up=False, tried=(Tried(16, 16, 0.8),))
    (line,) = error_lines([poor])
    assert "--quantize" not in line
    assert "wider numbers do not halve it; check that the samples" in line


def test_a_small_error_is_no_warning() -> None:
    """Up to a fifth of the largest output is a note among others."""
    assert error_lines([QuantizeError("g", 8, 8, 0.2, made_up=True)]) == []
