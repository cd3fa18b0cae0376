"""`fix` on TFLite changes the quantized ONNX form and reports on both files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from command_line import exit_code, run, sentence
from tflite_writer import INT8, INT32, G, O, T, write_tflite

IMAGE, WIDE, SMALL = (1, 32, 32, 4), (1, 32, 32, 24), (1, 16, 16, 4)


def weights(name: str, shape: tuple[int, ...]) -> T:
    """Return weights with a scale for each channel."""
    numbers = np.random.default_rng(len(name))
    scales = tuple(float(one) for one in numbers.uniform(0.001, 0.01, shape[0]))
    data = numbers.integers(-127, 128, shape).astype("i1").tobytes()
    return T(name, shape, INT8, data, scales=scales, zeros=(0,) * shape[0], axis=0)


def bias(name: str, count: int) -> T:
    """Return a 32-bit bias."""
    values = np.random.default_rng(count).integers(-900, 900, count).astype("<i4")
    return T(name, (count,), INT32, values.tobytes(), scales=(0.001,), zeros=(0,))


def held(name: str, shape: tuple[int, ...], scale: float, zero: int = 3) -> T:
    """Return a quantized tensor."""
    return T(name, shape, INT8, scales=(scale,), zeros=(zero,))


def pictures(path: Path) -> Path:
    """Write an 8-bit model that widens and narrows an image, with 28,672 live bytes."""
    tensors = (
        *(held("x", IMAGE, 0.02), weights("k1", (24, 3, 3, 4)), bias("b1", 24)),
        *(held("wide", WIDE, 0.05, -128), weights("k2", (4, 3, 3, 24)), bias("b2", 4)),
        held("y", SMALL, 0.2),
    )
    ops = (
        O("CONV_2D", (0, 1, 2), (3,), {0: 0, 1: 1, 2: 1, 3: 1}, table=1),
        O("CONV_2D", (3, 4, 5), (6,), {0: 0, 1: 2, 2: 2, 3: 0}, table=1),
    )
    return write_tflite(path, G(tensors, (0,), (6,), ops))


def test_a_tflite_model_is_computed_in_bands(tmp_path: Path) -> None:
    """`fix` starts from the scratch of the TFLite file and writes a tiled ONNX model."""
    model, folder = pictures(tmp_path / "m.tflite"), tmp_path / "out"
    planned = json.loads(run("plan", model, "--json").stdout)
    assert planned["scratch_bytes"] == 28672
    done = run("fix", model, "--budget", "scratch=16K", "-o", folder, "--json")
    assert exit_code(done) == 0, sentence(done)
    found = json.loads(done.stdout)
    rows = {row["remedy"]: row for row in found["tried"]}
    assert rows["none"]["bytes"] == 28672
    assert "ONNX form of this TFLite model" in (folder / "m.report.md").read_text("utf-8")
    changed = folder / "m.onnx"
    options = ("--io", "inside", "--time-limit", "5", "-o", tmp_path / "m.bin", "--inplace")
    assert exit_code(run("prepare", changed, *options)) == 0


def test_what_cannot_be_changed_is_said(tmp_path: Path) -> None:
    """For HTP and for unknown operators, `fix` on TFLite exits with 2 and names the cause."""
    model = pictures(tmp_path / "m.tflite")
    done = run("fix", model, "--backend", "htp", "--soc", "SM8650", "-o", tmp_path / "a")
    assert exit_code(done) == 2
    assert "is not an ONNX model" in sentence(done)
    ends = (held("x", IMAGE, 0.1), held("y", IMAGE, 0.1))
    graph = G(ends, (0,), (1,), (O("CUSTOM", (0,), (1,), custom="Odd"),))
    odd = write_tflite(tmp_path / "odd.tflite", graph)
    done = run("fix", odd, "-o", tmp_path / "b")
    assert exit_code(done) == 2
    assert "Odd" in sentence(done)
