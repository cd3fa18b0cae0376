"""The numbers of `fit` for a binary equal the parts that the library stored in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, run
from judge.situations import write_convolution

pytestmark = pytest.mark.htp
SOC = ("--soc", "SM8650")
POOLS = {
    "weights": ("weights", "shared weights"),
    "io": ("IO",),
    "spill-fill": ("spill/fill",),
    "ram": ("weights", "shared weights", "IO", "op data", "DDR tensors", "spill/fill", "VTCM"),
}


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a small model with VTCM set, so the file states the VTCM in use."""
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("fit")
    model = write_convolution(folder / "conv.onnx")
    words = ("--backend", "htp", *SOC, "--vtcm-mb", "2", "-o", str(folder / "conv.bin"))
    assert exit_code(run("prepare", model, *words)) == 0
    return folder / "conv.bin"


def parts_of(path: Path) -> dict[str, int]:
    """Return the bytes of each part from `footprint`."""
    parts: dict[str, Any] = json.loads(run("footprint", path, *SOC, "--json").stdout)["parts"]
    return {name: part["bytes"] for name, part in parts.items() if part is not None}


@pytest.mark.parametrize("pool", POOLS)
def test_a_budget_is_met_from_the_sum_of_its_parts_on(binary: Path, pool: str) -> None:
    """A budget holds from the sum of its parts upwards; the JSON states the exact margin."""
    parts = parts_of(binary)
    need = sum(parts.get(name, 0) for name in POOLS[pool])
    for limit in (need - 1, need, need + 1):
        if limit < 1:
            continue
        words = ("fit", binary, *SOC, "--budget", f"{pool}={limit}")
        done = run(*words)
        assert exit_code(done) == (0 if need <= limit else 1), done.stdout
        answer = json.loads(run(*words, "--json").stdout)["socs"][0]
        check = next(row for row in answer["checks"] if row["pool"] == pool)
        assert check["need_high"]["bytes"] == check["need_low"]["bytes"] == need
        assert check["spare"] == limit - need
        first = done.stdout.splitlines()[0]
        assert first.startswith("fits" if need <= limit else "does not fit"), first


def test_a_binary_that_may_use_more_vtcm_than_it_says_stays_open(tmp_path: Path) -> None:
    """Without a VTCM setting the library stores 4 MiB; up to 8 MiB `fit` cannot tell."""
    pytest.importorskip("onnxruntime_qnn")
    model = write_convolution(tmp_path / "conv.onnx")
    words = ("--backend", "htp", *SOC, "-o", str(tmp_path / "conv.bin"))
    assert exit_code(run("prepare", model, *words)) == 0
    parts = parts_of(tmp_path / "conv.bin")
    most = sum(parts.values())
    least = most - parts["VTCM"] + (4 << 20)
    assert parts["VTCM"] == 8 << 20
    for limit, code in ((least - 1, 1), (least, 3), (most - 1, 3), (most, 0)):
        done = run("fit", tmp_path / "conv.bin", *SOC, "--budget", f"ram={limit}")
        assert exit_code(done) == code, done.stdout
