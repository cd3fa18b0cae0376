"""`qnnmem prepare`: a large quantization error is the first line."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import jsonschema
import numpy
import onnx
import onnx.parser
import pytest
from command_line import exit_code, run
from onnx import numpy_helper

from qnnmem.cli import outcome
from qnnmem.results.schema import load_schema


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a model whose one large weight makes 8 bits too coarse for the others."""
    monkeypatch.chdir(tmp_path)
    values = numpy.full((4, 4), 1e-3, "float32")
    values[0, 0] = 1.0
    text = "(float[1,4] x) => (float[1,3] y) { a = MatMul(x, w) y = Slice(a, from, to, axis) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}')
    numbers = {"from": [1], "to": [4], "axis": [1]}
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    for name, value in numbers.items():
        proto.graph.initializer.append(numpy_helper.from_array(numpy.array(value), name))
    onnx.save(proto, "fading.onnx")
    return "fading.onnx"


def test_a_large_error_is_the_first_line_and_its_cure_was_tried(model: str) -> None:
    """The error that the warning promises for an option is the error that the option gives."""
    done = run("prepare", model, "--quantize", "int8", "-o", "a.bin")
    assert exit_code(done) == 0
    first, second = done.stdout.splitlines()[:2]
    assert re.match(
        r"warning: graph fading, int8 with 8-bit weights: off by up to \d+\.\d% ", first
    )
    assert second.startswith("prepared a.bin")
    assert (done.stdout + done.stderr).count("warning:") == 1  # both streams may be one screen
    promised = re.findall(r"((?:--[\w-]+ \w+ ?)+) gives (\d+\.\d%)", first)
    assert promised
    for number, (options, error) in enumerate(promised):
        instead = "--quantize" in options
        words = ("prepare", model, *(() if instead else ("--quantize", "int8")))
        better = run(*words, *shlex.split(options), "-o", f"{number}.bin")
        assert not better.stdout.startswith("warning")
        told = run("inspect", f"{number}.bin", "--json").stdout
        assert f"off by up to {error} of the largest output on random samples" in told


def test_json_carries_the_error_and_what_was_tried(model: str) -> None:
    """The JSON holds the error and the tried settings; standard error has the warning."""
    done = run("prepare", model, "--quantize", "int8", "-o", "a.bin", "--json")
    values = json.loads(done.stdout)
    jsonschema.validate(values, load_schema("qnnmem.prepared/1"))
    (graph,) = values["graphs"]
    found = graph["quantized"]
    assert (found["bits"], found["weight_bits"], found["error_is_large"]) == (8, 8, True)
    assert found["error"] > 0.2
    tried = {(one["bits"], one["weight_bits"]): one["error"] for one in found["tried"]}
    assert tried[16, 16] < 0.01 < tried[16, 8]
    assert done.stderr.startswith("warning: graph fading")
    assert values["next"][1].startswith("qnnmem net-run a.bin --random-inputs 1")
    assert values["file_bytes"] == Path("a.bin").stat().st_size


def test_the_refusal_of_a_float_model_has_a_command_that_works(
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The refusal of a float model ends with a command that keeps all options and works."""
    options = ["--align", "256", "--graph-name=a b", "--seed", "3", "--io", "outside", "--json"]
    typed = ["prepare", model, "-o", "my binary.bin", *options]
    monkeypatch.setattr(sys, "argv", ["qnnmem", *typed])
    assert outcome.outcome(lambda: False) == 2
    said, tried = capsys.readouterr().err.splitlines()
    assert len(said) < 220
    assert tried.startswith("try: qnnmem prepare ")
    words = shlex.split(tried.removeprefix("try: qnnmem "))
    assert words == [*typed, "--quantize=int8"]
    assert exit_code(run(*words)) == 0
    assert Path("my binary.bin").exists()
