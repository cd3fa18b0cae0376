"""Every verb under a resource shortage: the verb works or fails with one sentence.

`make test` covers every shortage with some verbs; QNNMEM_EVERY_CASE=1 covers all pairs.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import onnx
import pytest
from command_line import exit_code, run
from onnx import TensorProto, helper, numpy_helper
from seeds import EVERY

import qnnmem

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = Path(qnnmem.__file__).parents[1]
# Yes, no, refused, cannot tell.
ANSWERS = {0, 1, 2, 3}

VERBS: dict[str, tuple[str, ...]] = {
    "help": ("--help",),
    "version": ("--version",),
    "plan csv": ("plan", "small.csv"),
    "plan eaix": ("plan", "tiny.eaix"),
    "plan onnx": ("plan", "model.onnx"),
    "plan to a file": ("plan", "small.csv", "-o", "out/plan.txt"),
    "prepare": ("prepare", "model.onnx", "--float", "-o", "out/model.bin"),
    "prepare quantized": ("prepare", "model.onnx", "--quantize", "int8", "-o", "out/model.bin"),
    "prepare htp": (
        *("prepare", "model.onnx", "--backend", "htp", "--soc", "SM8650"),
        *("-o", "out/model.bin"),
    ),
    "lpai rules": ("lpai", "rules"),
    "lpai selftest": ("lpai", "selftest"),
    "lint": ("lint", "config/eaiParams_direct.json"),
    "config": ("config", "--backend", "lpai", "-o", "out/config"),
    "inspect": ("inspect", "model.bin"),
    "net-run": (
        *("net-run", "--backend", "libQnnLpai.so", "--retrieve_context", "model.bin"),
        *("--input_list", "list.txt", "--output_dir", "out/results"),
    ),
    "footprint": ("footprint", "model.onnx", "--soc", "SM8650"),
    "qmem": ("qmem", "model.onnx", "--soc", "SM8650"),
    "provoke": ("provoke", "op-over-vtcm", "--soc", "SM8650", "-o", "out/provoked"),
    "fit": ("fit", "model.onnx", "--soc", "SM8650"),
    "sweep": ("sweep", "model.onnx", "--soc", "SM8650", "--vary", "batch=1,2"),
    "place": ("place", "model.onnx", "--soc", "SM8650"),
    "socs": ("socs",),
    "doctor": ("doctor", "graph_limit.log"),
    "doctor from a pipe": ("doctor", "-"),
    "doctor with jobs": ("doctor", "graph_limit.log", "--jobs", "2"),
    "explain": ("explain", "1002"),
    "kb list": ("kb", "list"),
    "kb find": ("kb", "find", "spill", "fill"),
    "kb show": ("kb", "show", "graph-over-limit"),
    "kb check": ("kb", "check"),
    "kb new": ("kb", "new", "my-entry", "-o", "out/my-entry.md"),
}


@dataclass(frozen=True)
class Shortage:
    """Limits and environment that a child process starts with."""

    take: Callable[[], object] = lambda: None
    environment: tuple[tuple[str, str | None], ...] = ()
    is_read_only: bool = False


def _limit(kind: int, value: int) -> Callable[[], object]:
    return lambda: resource.setrlimit(kind, (value, value))


def _close(*numbers: int) -> Callable[[], object]:
    return lambda: os.closerange(numbers[0], numbers[-1] + 1)


def _full(*numbers: int) -> Callable[[], object]:
    return lambda: [os.dup2(os.open("/dev/full", os.O_WRONLY), number) for number in numbers]


NO_HOME = (("HOME", None), ("XDG_CACHE_HOME", None))
SHORTAGES: dict[str, Shortage] = {
    "2 GB of address space": Shortage(_limit(resource.RLIMIT_AS, 2_000_000_000)),
    "300 MB of address space": Shortage(_limit(resource.RLIMIT_AS, 300_000_000)),
    "32 files": Shortage(_limit(resource.RLIMIT_NOFILE, 32)),
    "8 files": Shortage(_limit(resource.RLIMIT_NOFILE, 8)),
    "5 files": Shortage(_limit(resource.RLIMIT_NOFILE, 5)),
    "few processes": Shortage(_limit(resource.RLIMIT_NPROC, 1)),
    "files of no size": Shortage(_limit(resource.RLIMIT_FSIZE, 0)),
    "small files": Shortage(_limit(resource.RLIMIT_FSIZE, 512)),
    "no home": Shortage(environment=NO_HOME),
    "an empty home": Shortage(environment=(("HOME", ""), ("XDG_CACHE_HOME", ""))),
    "a relative home": Shortage(environment=(("HOME", "no/home"), ("XDG_CACHE_HOME", None))),
    "no cache": Shortage(environment=(("XDG_CACHE_HOME", "/dev/null/cache"),)),
    "no temporary folder": Shortage(
        _limit(resource.RLIMIT_FSIZE, 0), environment=(("TMPDIR", "/dev/null/tmp"),)
    ),
    "a read-only folder": Shortage(is_read_only=True),
    "no input": Shortage(_close(0)),
    "no output": Shortage(_close(1)),
    "no error": Shortage(_close(2)),
    "no streams": Shortage(_close(0, 1, 2)),
    "a full output": Shortage(_full(1)),
    "full output and error": Shortage(_full(1, 2)),
}


def _table() -> list[tuple[str, str]]:
    verbs, shortages = list(VERBS), list(SHORTAGES)
    if EVERY:
        return [(verb, shortage) for verb in verbs for shortage in shortages]
    # Every shortage once, with varying verbs.
    return [(verbs[3 * i % len(verbs)], shortage) for i, shortage in enumerate(shortages)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an input for every verb."""
    folder = tmp_path_factory.mktemp("inputs")
    weights = numpy_helper.from_array(numpy.eye(8, dtype=numpy.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights]
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    (folder / "small.csv").write_text("id,lower,upper,size\na,0,3,4\nb,2,6,4\n")
    (folder / "x.raw").write_bytes(bytes(32))
    (folder / "list.txt").write_text(f"{folder / 'x.raw'}\n")
    for name in ("tiny.eaix", "graph_limit.log"):
        shutil.copy(EXAMPLES / name, folder)
    model, binary = folder / "model.onnx", folder / "model.bin"
    assert run("prepare", model, "--float", "-o", binary).exception is None
    assert run("config", "--backend", "lpai", "-o", folder / "config").exception is None
    return folder


def _listing(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(name for name in names if name != ".ses")  # onnxruntime writes .ses files


QUICK = (
    "help",
    "plan csv",
    "lpai rules",
    "lint",
    "inspect",
    "socs",
    "doctor",
    "explain",
    "kb show",
)


@pytest.mark.parametrize("verb", QUICK)
def test_the_table_is_of_commands_that_work(
    verb: str, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every quick command works without a shortage."""
    monkeypatch.chdir(inputs)
    assert exit_code(run(*VERBS[verb])) in (0, 1)


@pytest.mark.parametrize(("verb", "shortage"), _table())
def test_it_works_or_says_so(verb: str, shortage: str, inputs: Path, tmp_path: Path) -> None:
    """A shortage causes no traceback and no exit code 70, and leaves no file behind."""
    here, cache, scratch = tmp_path / "here", tmp_path / "cache", tmp_path / "scratch"
    shutil.copytree(inputs, here)
    for folder in (here / "out", cache, scratch):
        folder.mkdir()
    lack = SHORTAGES[shortage]
    changed = {"XDG_CACHE_HOME": str(cache), "TMPDIR": str(scratch), **dict(lack.environment)}
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    for name, value in changed.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    before = _listing(here)
    if lack.is_read_only:
        (here / "out").rmdir()
        (here / "out").symlink_to("/proc/self")  # not even root can write there
    done = subprocess.run(
        [sys.executable, "-m", "qnnmem", *VERBS[verb]],
        cwd=here,
        env=environment,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=lack.take,
    )
    said = done.stderr
    assert done.returncode in ANSWERS, (done.returncode, said)
    assert "Traceback" not in said
    assert "internal error" not in said
    if done.returncode == 2 and verb != "net-run":
        is_deaf = shortage in ("no error", "no streams", "full output and error")
        assert said.count("\n") == (0 if is_deaf else 1), said
    new = [name for name in _listing(here) if name not in before and not name.startswith("out/")]
    assert (new, _listing(scratch)) == ([], [])
    if done.returncode == 2:
        assert not any(name.startswith("out/.") for name in _listing(here))
