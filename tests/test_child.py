from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from limited_child import Look, Number, Place, Reply, Sleep, Start, Take

import qnnmem.child
from qnnmem import machine, wire
from qnnmem.child import ChildProcess, memory_limit
from qnnmem.errors import ChildFailed, ChildLost, OutputError, UsageError
from qnnmem.loader.onnx.trial import TrialChild
from qnnmem.wire import Done, WireMessage

ECHO = "qnnmem.loader.onnx.trial_program"
TRIES = "limited_child"
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc of Linux")


class Unknown(WireMessage, frozen=True):
    """A request that no child knows."""


def test_a_child_answers_one_request_after_the_other() -> None:
    """A child answers each request in order, and continues after an unknown one."""
    with ChildProcess(TRIES, 60.0) as child:
        for size in (1, 2):
            assert child.ask(Take(size), Number) == (Number(size), b"")
        with pytest.raises(ChildFailed, match="Unknown"):
            child.ask(Unknown(), Done)
        assert child.ask(Take(3), Number) == (Number(3), b"")
    assert not child.expired


def test_a_child_that_takes_too_long_is_ended() -> None:
    """A child that exceeds the time limit is ended, and `expired` tells that from a crash."""
    with ChildProcess(TRIES, 0.5) as child:
        with pytest.raises(ChildLost, match=r"a request did not finish within 0\.5 s"):
            child.ask(Sleep(20), Done)
        assert child.expired


def test_a_child_that_dies_gives_no_answer() -> None:
    """A child that dies raises ChildLost, not a broken pipe error."""
    with ChildProcess("qnnmem.no_such_module", 60.0) as child:
        with pytest.raises(ChildLost, match="crashed or used up its "):
            child.ask(Take(1), Number, bytes(1 << 20))
        assert not child.expired


def test_an_answer_that_could_not_be_read_is_not_taken_for_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failed read, the child is given up, since a late answer could match a new request."""
    real = wire.read_frame

    def failing(*_: object) -> Any:
        monkeypatch.setattr(qnnmem.child, "read_frame", real)
        raise OSError(errno.EIO, "input/output error")

    with ChildProcess(TRIES, 60.0) as child:
        assert child.ask(Take(1), Number)[0] == Number(1)
        monkeypatch.setattr(qnnmem.child, "read_frame", failing)
        for size in (2, 3):
            with pytest.raises(ChildLost):
                child.ask(Take(size), Number)


def test_a_request_that_cannot_be_sent_whole_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a request cannot be sent whole, the parent does not wait for an answer."""

    def half(stream: BinaryIO, *_: object) -> None:
        stream.write(b"\1")
        raise OSError(errno.ENOSPC, "no space left on device")

    with ChildProcess(ECHO, 600.0) as child:
        monkeypatch.setattr("qnnmem.child.write_frame", half)
        with pytest.raises(ChildLost):
            child.ask(Take(1), Number)
        assert not child.expired


def test_a_child_without_files_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If no pipe can be opened, the child's folder is removed."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as short:
        for name in ("pipe", "open", "scandir"):
            short.setattr(os, name, refuse)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            ChildProcess(ECHO, 60.0)
    assert list(tmp_path.iterdir()) == []


def test_a_child_is_gone_when_its_start_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If starting a child is interrupted, the child is ended and its folder removed."""
    started: list[Any] = []
    real = qnnmem.child.start

    def start(*given: Any, **more: Any) -> Any:
        started.append(real(*given, **more))
        return started[0]

    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(qnnmem.child, "start", start)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ChildProcess(ECHO, 1.0)
    assert started[0].returncode is not None
    assert list(tmp_path.iterdir()) == []


@linux
def test_a_child_gets_no_more_memory_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child can allocate up to its memory limit and no more."""
    monkeypatch.setattr(qnnmem.child, "memory_limit", lambda: 1 << 30)
    with ChildProcess(TRIES, 60.0) as child:
        assert child.ask(Take(1 << 31), Number)[0].value == 0
        assert child.ask(Take(1 << 28), Number)[0].value == 1 << 28


@linux
@pytest.mark.parametrize("module", [ECHO, "qnnmem.lpai.quantize.child"])
def test_real_children_set_their_limits(module: str) -> None:
    """The real child programs limit their address space as told."""
    with ChildProcess(module, 60.0) as child:
        wanted = ["Max", "address", "space", str(child.memory_limit)]
        limits = Path(f"/proc/{child._process.pid}/limits")
        for _ in range(300):
            lines = [line.split() for line in limits.read_text("ascii").splitlines()]
            if any(line[:4] == wanted for line in lines):
                break
            time.sleep(0.1)
        assert any(line[:4] == wanted for line in lines)


@linux
def test_a_model_that_eats_memory_costs_only_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that exceeds the memory limit fails in the child only."""
    import onnx.parser

    monkeypatch.setattr(qnnmem.child, "memory_limit", lambda: 1 << 30)
    text = """<ir_version: 8, opset_import: ["" : 18]> g () => (float[n] y)
        <int64[1] s = {550000000}> { y = ConstantOfShape(s) }"""
    model = onnx.parser.parse_model(text)
    with TrialChild(Path("m.onnx"), 60.0) as child, pytest.raises(ChildFailed):
        child.run(model, [], ["y"])


@linux
def test_what_a_child_started_ends_with_it() -> None:
    """Processes that a child started end with the child."""
    with ChildProcess(TRIES, 60.0) as child:
        pid = child.ask(Start(), Number)[0].value
        assert is_running(pid)
    for _ in range(100):
        if not is_running(pid):
            break
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    """True if the process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("seconds", [60.0, 1.0])
def test_a_child_works_in_an_empty_folder(seconds: float) -> None:
    """A child works in an empty folder, which is removed with the child."""
    with ChildProcess(TRIES, seconds) as child:
        there, _ = child.ask(Look(), Place)
        assert there.names == []
        here = there.here
        assert here.exists()
        (here / "left.txt").write_text("behind", "utf-8")
        if seconds < 60:
            with pytest.raises(ChildLost):
                child.ask(Sleep(20), Done)
    assert not here.exists()
    assert not here.parent.exists()


def test_the_environment_of_a_child_is_quiet() -> None:
    """A child's environment turns telemetry off, limits threads and sets its temporary folder."""
    with ChildProcess(TRIES, 60.0) as child:
        there, _ = child.ask(Look(), Place)
    environment = there.environment
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert Path(environment["TMPDIR"]) == there.here.parent


def test_a_reply_larger_than_asked_for_is_not_read() -> None:
    """A reply larger than the caller allows is not read."""
    with ChildProcess(TRIES, 60.0) as child, pytest.raises(ChildLost):
        child.ask(Reply(2000), Done, limit=1999)
    with ChildProcess(TRIES, 60.0) as child:
        assert child.ask(Reply(2000), Done, limit=2000) == (Done(), bytes(2000))


def test_no_room_for_temporary_files_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no temporary folder can be created, the message names TMPDIR."""
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with pytest.raises(OutputError, match="TMPDIR"):
        ChildProcess(TRIES, 60.0)


def test_no_process_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no process can be started, UsageError gives the reason and no folder remains."""
    made: list[Path] = []

    def refuse(*_: Any, cwd: Path, **__: Any) -> None:
        made.append(cwd)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(UsageError, match=r"no child process can be started \(too many open files"):
        ChildProcess(TRIES, 60.0)
    assert not made[0].exists()


def test_a_child_asks_for_no_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child's memory limit is at most the limit of the parent process."""
    wish = memory_limit()
    monkeypatch.setattr(qnnmem.child, "address_space_limit", lambda: wish // 2)
    assert memory_limit() == wish // 2
    monkeypatch.setattr(qnnmem.child, "address_space_limit", lambda: wish * 2)
    assert memory_limit() == wish


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/a/b", "a/memory.max"),
        ("0::/", "memory.max"),
        ("5:cpu,memory:/a/b", "memory/a/b/memory.limit_in_bytes"),
    ],
)
def test_a_control_group_counts_as_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, file: str
) -> None:
    """The usable memory is the least limit of the process's control groups."""
    own = tmp_path / "cgroup"
    own.write_text(f"9:cpuset:/x\n{line}\n", "ascii")
    limit = tmp_path / "fs" / file
    limit.parent.mkdir(parents=True)
    monkeypatch.setattr(machine, "_OWN_GROUPS", own)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "fs")
    whole = machine.usable_memory()
    assert whole is not None
    limit.write_text("max\n", "ascii")
    assert machine.usable_memory() == whole
    limit.write_text(f"{whole // 4}\n", "ascii")
    assert machine.usable_memory() == whole // 4


@linux
@pytest.mark.parametrize("gigabytes", [2])
def test_models_are_read_under_a_low_limit(tmp_path: Path, gigabytes: int) -> None:
    """Under a shell limit of 2 GiB, a model is still prepared and inspected."""
    import onnx.parser

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    )
    source, binary = tmp_path / "m.onnx", tmp_path / "m.bin"
    source.write_bytes(model.SerializeToString())
    limited = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({gigabytes << 30}, {gigabytes << 30}))
from qnnmem.cli import main
sys.argv = ["qnnmem", *sys.argv[1:]]
main()"""
    for words in (["prepare", str(source), "--float", "-o", str(binary)], ["inspect", str(binary)]):
        done = subprocess.run(
            [sys.executable, "-c", limited, *words],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
