"""A count of one uses the singular in every report."""

from __future__ import annotations

import re
from pathlib import Path

import onnx.parser
import pytest
from command_line import run

from qnnmem.report.table import size_column, size_words

REPORT = Path(__file__).parents[2] / "src" / "qnnmem" / "report"
# A number followed by a plural; an excess over the TCM slots is never one.
PLAIN = re.compile(
    r"\{[^{}]*:[^{}]*,\} (?:bytes|ops|graphs|tensors|files|contexts|frames)\b(?! are needed)"
)
ONE = """<ir_version: 8, opset_import: ["" : 18]>
g (int8[1] x) => (int8[1] y) <int8[1] w = {1}> { y = Add(x, w) }"""
SINGULAR = re.compile(r"(?<![\d,.])1 (?:bytes|ops|graphs|tensors|inputs|outputs|buffers|files)\b")


def test_no_report_writes_a_plural_after_a_number_by_hand() -> None:
    """No report formats a plural directly; `text.counted` and `report.table` choose the form."""
    found = {
        path.name: PLAIN.findall(path.read_text("utf-8")) for path in sorted(REPORT.glob("*.py"))
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_one_byte() -> None:
    """One byte is singular, alone and in a column."""
    assert [size_words(size) for size in (0, 1, 2, 2048)] == [
        *("0 bytes", "1 byte", "2 bytes", "2,048 bytes (2.00 KiB)"),
    ]
    assert size_column(1, 5) == "    1 byte"


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "one.onnx", "--align", "1"),
        ("plan", "one.onnx", "--align", "1", "-v"),
        ("plan", "one.onnx", "--align", "1", "--format", "c"),
        ("plan", "one.onnx", "--align", "1", "--io", "outside", "--budget", "io=1"),
        ("plan", "one.onnx", "--align", "1", "--budget", "constants=0", "--budget", "scratch=1"),
        ("plan", "one.csv"),
        ("plan", "one.csv", "--capacity", "0"),
        ("prepare", "one.onnx", "-o", "one.bin"),
        ("inspect", "one.bin"),
    ],
)
def test_a_model_of_one_byte(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports on a model of one byte contain no plural after 1."""
    monkeypatch.chdir(tmp_path)
    Path("one.onnx").write_bytes(onnx.parser.parse_model(ONE).SerializeToString())
    Path("one.csv").write_text("id,lower,upper,size\na,0,1,1\n")
    if words[0] == "inspect":
        run("prepare", "one.onnx", "-o", "one.bin")
    text = run(*words).stdout
    assert text
    assert SINGULAR.findall(text) == []
