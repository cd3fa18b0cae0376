"""The real library through a pipe gives the local answers and leaves nothing when cut off."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from command_line import exit_code, run
from onnx import TensorProto, helper, numpy_helper

from qnnmem.errors import WorkerError
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import find_library, has_library
from qnnmem.htp.remote.client import close_parked
from qnnmem.htp.requests import LoadRequest, Tick, VersionsRequest, WaitRequest
from qnnmem.htp.worker import Worker

ROOT = Path(__file__).parents[2]
BINARY, MODEL = ROOT / "examples" / "small_htp.bin", ROOT / "examples" / "small.onnx"
SOC = ("--soc", "SM8650")
# These values differ between two runs on the same machine.
VARYING = {"seconds", "copy_seconds", "nanoseconds", "host_ram", "host_ram_bytes", "from_cache"}
pytestmark = [
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start using a worker on this machine, and return its folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    folder = tmp_path / "far"
    command = f"{sys.executable} -m qnnmem htp-worker --cache {folder}"
    monkeypatch.setenv("QNNMEM_HTP_WORKER", command)
    yield folder / "htp-worker"
    close_parked()


def settled(value: Any) -> Any:
    """Return a result without times and host memory."""
    if isinstance(value, dict):
        return {key: settled(one) for key, one in value.items() if key not in VARYING}
    return [settled(one) for one in value] if isinstance(value, list) else value


def answer(*words: str | Path) -> tuple[int, Any]:
    """Return the exit code and the JSON of a command."""
    done = run(*words, "--json")
    return exit_code(done), settled(json.loads(done.stdout))


def external(folder: Path) -> Path:
    """Write a model with weights in a separate file."""
    weights = numpy.random.default_rng(0).standard_normal((32, 32)).astype("float32")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "m")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 32]) for name in "xy"]
    graph = helper.make_graph(
        [node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("footprint", MODEL, "--dim", "N=1", *SOC),
        ("qmem", BINARY, "--run"),
        ("sweep", MODEL, *SOC, "--vary", "N=1,2"),
    ],
    ids=lambda words: words[0],
)
def test_answers_through_a_pipe_are_those_of_this_machine(
    far: Path, words: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Answers through a pipe equal the local answers except for times, and leave no work folder."""
    there = answer(*words)
    close_parked()
    assert [path for path in far.iterdir() if path.name.startswith(".")] == []
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert there == answer(*words)


def test_weights_and_samples_go_along(far: Path, tmp_path: Path) -> None:
    """The client sends weights and calibration files, so the worker can quantize the model."""
    model, sample = external(tmp_path), tmp_path / "sample.npy"
    numpy.save(sample, numpy.ones((4, 32), "float32"))
    target = tmp_path / "made.bin"
    words = ("--backend", "htp", *SOC, "--precision", "int8", "--calibration", sample)
    done = run("prepare", model, *words, "-o", target)
    assert exit_code(done) == 0
    assert target.stat().st_size > 10_000
    sent = {path.stat().st_size for path in far.iterdir() if not path.name.startswith(".")}
    assert {4096, sample.stat().st_size} <= sent


def test_weights_of_their_own_are_quantized_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """External weights are quantized locally too, although ONNX Runtime does not fold them in."""
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "")
    target = tmp_path / "made.bin"
    words = ("--backend", "htp", *SOC, "--precision", "int8", "-o", target)
    assert exit_code(run("prepare", external(tmp_path), *words)) == 0


def test_a_worker_that_is_killed_is_one_sentence(far: Path, tmp_path: Path) -> None:
    """A worker killed during a file or a request gives one sentence; the next request works."""
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(64 << 20))
    request = LoadRequest([large], 57)
    with Worker(library=find_library()) as worker:

        def kill(tick: Tick, *, sending: bool) -> None:
            if (tick.sent is not None) == sending and worker.pid is not None:
                os.kill(worker.pid, signal.SIGKILL)

        with pytest.raises(WorkerError, match="was ended by signal 9") as caught:
            worker.ask(request, progress=lambda tick: kill(tick, sending=True))
        assert "\n" not in str(caught.value)
        with pytest.raises(WorkerError, match="was ended by signal 9"):
            worker.ask(WaitRequest(), progress=lambda tick: kill(tick, sending=False))
        assert worker.ask(VersionsRequest()).is_done
    assert [path for path in far.iterdir() if not path.name.startswith(".")] == []
