"""Load errors for models with open sizes: the message names the options that fix the sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from qnnmem.cli import main


def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """Return standard error of a call that ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["qnnmem", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    return capsys.readouterr().err.strip()


def save(folder: Path, body: str) -> Path:
    """Write an ONNX model given as text."""
    path = folder / "model.onnx"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {body}')
    path.write_bytes(model.SerializeToString())
    return path


def test_a_shape_that_data_decide_can_be_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data-dependent shape is refused with a --shape option to paste."""
    path = save(tmp_path, "g (float[4] x) => (int64[A,B] y) { y = NonZero(x) }")
    assert say(capsys, monkeypatch, "plan", path) == (
        f"qnnmem: {path}: the shape of 'y', output of 'NonZero', depends on the data; "
        "set its largest shape with --shape y=1x4"
    )


def test_free_dimensions_can_be_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal suggests --dim for each named dimension and --shape for unnamed dimensions."""
    path = save(tmp_path, "g (float[batch,3] x, float[?] z) => (float[A] y) { y = Neg(z) }")
    assert say(capsys, monkeypatch, "plan", path) == (
        f"qnnmem: {path}: these dimensions are open: batch (input 'x'), axis 0 (input 'z'); "
        "fix them, e.g. with --dim batch=1 --shape z=1\n"
        f"try: qnnmem plan {path} --dim=batch=1 --shape=z=1"
    )


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--dim", "n=1"), "has no named dimensions to fix; --dim is for ONNX models"),
        (("--shape", "x=1"), "has fixed shapes; --shape is for ONNX and TFLite models"),
    ],
)
def test_options_a_format_has_no_use_for_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: tuple[str, str],
    sentence: str,
) -> None:
    """An option that the file format does not support is refused by name."""
    path = tmp_path / "buffers.csv"
    path.write_text("id,lower,upper,size\na,0,3,4\n", "utf-8")
    assert say(capsys, monkeypatch, "plan", path, *option) == f"qnnmem: {path} {sentence}"
