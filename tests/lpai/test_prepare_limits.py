"""Preparing an untrusted model: its computation stays in the child, within limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from command_line import exit_code, run, sentence

from qnnmem import lpai
from qnnmem.errors import QnnMemError
from qnnmem.lpai import preparation

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
# A constant of 400 MB from a few bytes, returned as an output.
LARGE = """g (float[4] x) => (float[4] y, float[100000000] b)
    <int64[1] s = {100000000}> { b = ConstantOfShape(s) y = Relu(x) }"""
# The same constant, used only on the way to a scalar.
USED = """g (float[4] x) => (float[4] y) <int64[1] s = {100000000}>
    { b = ConstantOfShape(s) r = ReduceSum<keepdims = 0>(b) y = Add(x, r) }"""
ENDLESS = """g (float[4] x) => (float[4] y)
    <int64 n = {1000000000000000}, float z = {0}, float one = {1}>
    { r = Loop (n, , z) <body = b (int64 i, bool c, float v) => (bool d, float u)
          { d = Identity(c) u = Add(v, one) }>
      y = Add(x, r) }"""
SMALL = "g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> { y = Mul(x, w) }"

MEASURED = """
import sys
from pathlib import Path
from qnnmem.cli import main
sys.argv = ["qnnmem", *sys.argv[1:]]
try:
    main()
finally:
    # Not ru_maxrss: that begins with what whoever started us had.
    words = Path("/proc/self/status").read_text().split()
    print(words[words.index("VmHWM:") + 1])
"""


def write(folder: Path, text: str) -> Path:
    """Write a model file and return its path."""
    path = folder / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="kilobytes of Linux")
@pytest.mark.parametrize(("text", "code"), [(LARGE, 2), (USED, 0)])
def test_constants_are_not_computed_in_the_parent(tmp_path: Path, text: str, code: int) -> None:
    """A constant of 400 MB is not computed in the parent process, which stays below 300 MB."""
    path = str(write(tmp_path, text))
    command = [sys.executable, "-c", MEASURED, "prepare", path, "--float", "-o"]
    done = subprocess.run(
        [*command, str(tmp_path / "m.bin")], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert int(done.stdout.split()[-1]) < 300_000
    if code:
        assert "400,000,000 bytes, over the limit of 268,435,456" in done.stderr
        assert not (tmp_path / "m.bin").exists()


def test_the_time_limit_covers_computing_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit stops an endless loop in a constant computation."""
    monkeypatch.setattr(preparation, "ROOM_S", 1.5)
    options = lpai.PrepareOptions(allow_float=True, time_limit_s=0.5)
    with pytest.raises(QnnMemError, match=r"(did not|not) finish"):
        lpai.prepare({"m": write(tmp_path, ENDLESS)}, options)


def test_weights_with_holes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """A sparse 4 GB weight file is refused for its stated size before it is read."""
    path = write(tmp_path, SMALL.replace("float[4]", "float[1000, 1000000]"))
    model = onnx.ModelProto.FromString(path.read_bytes())
    tensor = model.graph.initializer[0]
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.data_location = "w", 1, onnx.TensorProto.EXTERNAL
    tensor.dims.extend([1000, 1_000_000])
    tensor.external_data.add(key="location", value="w.bin")
    path.write_bytes(model.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4_000_000_000)
    done = run("prepare", path, "--float", "-o", tmp_path / "m.bin")
    assert exit_code(done) == 2
    assert "exceed the limit of 2.00 GiB" in sentence(done)


def test_nothing_is_written_to_the_home_of_the_user(tmp_path: Path) -> None:
    """Planning, preparing and running write no file to the user's home but qnnmem's own cache."""
    home, path = tmp_path / "home", write(tmp_path, SMALL)
    home.mkdir()
    np.ones(4, "float32").tofile(tmp_path / "x.raw")
    (tmp_path / "list.txt").write_text(f"{tmp_path / 'x.raw'}\n", "ascii")
    # Only the variables that Python needs: onnxruntime writes nothing when it detects a CI.
    kept = {"PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG"}
    paths = os.pathsep.join(str(Path(place).resolve()) for place in sys.path if place)
    environment = {k: v for k, v in os.environ.items() if k in kept}
    environment |= {"HOME": str(home), "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    binary = str(tmp_path / "m.bin")
    listed = ["--input_list", str(tmp_path / "list.txt"), "--output_dir", str(tmp_path / "out")]
    for words in (
        ["plan", str(path)],
        ["prepare", str(path), "--quantize", "int8", "-o", binary],
        ["net-run", "--backend", "libQnnLpai.so", "--retrieve_context", binary, *listed],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "qnnmem", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert not (home / ".cache" / "Microsoft").exists()
    assert [p for p in home.rglob("*") if p.is_file() and "qnnmem" not in p.parts] == []
