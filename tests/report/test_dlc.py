"""`qnnmem inspect` of a DLC."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from command_line import exit_code, run, sentence

from qnnmem.installation import package_folder
from qnnmem.loader.dlc.composed import dlc_result
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedTensor
from qnnmem.report.inspect import render_dlc
from qnnmem.results.schema import load_schema

FILES = Path(__file__).parents[1] / "loader" / "dlc"
reads_dlc = pytest.mark.skipif(
    package_folder(["libQnnSystem.so"]) is None,
    reason="needs libQnnSystem of onnxruntime-qnn",
)


@reads_dlc
def test_a_dlc_is_shown() -> None:
    """The text counts operators and constants; the JSON has every tensor."""
    path = FILES / "quantized8.dlc"
    text = run("inspect", path).output
    assert text.startswith("DLC: 1 graph\n")
    assert "9 operators: 2 Transpose, 2 ElementWiseBinary, 1 Conv2d" in text
    assert "x  UFIXED_POINT_8 1x4x8x8, 256 bytes, scale 0.03125 offset -128" in text
    assert "13 constants of 368 bytes, 11 of them operator parameters (128 byte" in text
    assert text.rstrip().endswith("quantized8.dlc -v")
    values = json.loads(run("inspect", path, "--json").output)
    jsonschema.Draft202012Validator(load_schema(values["schema"])).validate(values)
    (graph,) = values["graphs"]
    ids = {tensor["id"] for tensor in graph["tensors"]}
    assert {one for op in graph["ops"] for one in (*op["inputs"], *op["outputs"])} <= ids


@reads_dlc
def test_a_damaged_dlc_is_refused(tmp_path: Path) -> None:
    """A truncated DLC is refused with exit code 2."""
    path = tmp_path / "damaged.dlc"
    path.write_bytes((FILES / "image.dlc").read_bytes()[:3000])
    done = run("inspect", path)
    assert (exit_code(done), "the vendor's reader" in sentence(done)) == (2, True)


def test_names_are_safe_to_print() -> None:
    """Control characters in names do not reach the output."""
    tensor = ComposedTensor(1, "x\x1b[31m", TensorType.APP_WRITE, DataType.FLOAT_32, (1,))
    text = render_dlc(dlc_result([ComposedGraph("net\x1b", (tensor,), ())], "file.dlc"))
    assert "\x1b" not in text
    assert "0 operators" in text
