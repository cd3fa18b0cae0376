"""A child's limits, environment and end, each tested alone."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from qnnmem import child
from qnnmem.errors import OutputError, UsageError
from qnnmem.temporary_folder import temporary_folder
from qnnmem.wire import LENGTHS, Done

GIB = 1 << 30


@pytest.mark.parametrize(
    ("there", "most", "own", "wanted"),
    [
        (None, child.MEMORY_LIMIT, None, 12 * GIB),
        (8 * GIB, child.MEMORY_LIMIT, None, 6 * GIB),
        (64 * GIB, child.MEMORY_LIMIT, None, 12 * GIB),
        (64 * GIB, None, None, 48 * GIB),
        (64 * GIB, 20 * GIB, None, 20 * GIB),
        (1 * GIB, child.MEMORY_LIMIT, None, 2 * GIB),
        (8 * GIB, child.MEMORY_LIMIT, 1 * GIB, 1 * GIB),
        (8 * GIB, child.MEMORY_LIMIT, 7 * GIB, 6 * GIB),
    ],
)
def test_a_limit_of_memory(
    there: int | None,
    most: int | None,
    own: int | None,
    wanted: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory limit is three quarters of the machine, within the request and the own limit."""
    monkeypatch.setattr(child, "usable_memory", lambda: there)
    monkeypatch.setattr(child, "address_space_limit", lambda: own)
    assert child.memory_limit(most) == wanted
    if most == child.MEMORY_LIMIT:
        assert child.memory_limit() == wanted


@pytest.mark.parametrize(("own", "said"), [(None, False), (GIB, True), (GIB + 1, False)])
def test_a_limit_that_is_not_ours_is_said(
    own: int | None, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit from the shell is named as `ulimit -v`."""
    monkeypatch.setattr(child, "address_space_limit", lambda: own)
    more = " (limited by ulimit -v)" if said else ""
    assert child.describe_limit(GIB) == f"its 1.00 GiB of address space{more}"


@pytest.mark.parametrize(("own", "wanted"), [(None, 50), (40, 40), (60, 50)])
def test_memory_is_limited_and_no_core_is_left(
    own: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`limit_memory` sets the address space limit and disables core files."""
    calls: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", calls.__setitem__)
    monkeypatch.setattr(child, "address_space_limit", lambda: own)
    child.limit_memory(50)
    assert calls == {resource.RLIMIT_AS: (wanted, wanted), resource.RLIMIT_CORE: (0, 0)}
    monkeypatch.setitem(sys.modules, "resource", None)
    child.limit_memory(50)  # as on Windows: no limits to set


def test_the_environment_finds_our_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's environment has the parent's import path in absolute form."""
    monkeypatch.setattr(sys, "path", ["", "relative", "/absolute"])
    monkeypatch.setenv("QNNMEM_TEST", "kept")
    found = child.child_environment(Path("/files"), {"TMP": "/other"})
    assert found["PYTHONPATH"] == os.pathsep.join([str(Path("relative").absolute()), "/absolute"])
    assert (found["TMPDIR"], found["TEMP"], found["TMP"]) == ("/files", "/files", "/other")
    assert (found["QNNMEM_TEST"], found["OMP_NUM_THREADS"]) == ("kept", "1")


class Process:
    """A fake process that records calls."""

    pid = 12345

    def __init__(self, returncode: int | None = None, pipe: Any = None) -> None:
        self.returncode, self.stdin, self.stdout = returncode, pipe, None
        self.done: list[str] = []

    def kill(self) -> None:
        """Record the kill."""
        self.done.append("kill")

    def wait(self) -> None:
        """Record the wait."""
        self.done.append("wait")


def test_a_group_is_killed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group is killed at most once: after the end its number may be reused."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *group: killed.append(group))
    child.kill_group(Process(0))  # type: ignore[arg-type]
    assert killed == []
    child.kill_group(Process())  # type: ignore[arg-type]
    assert killed == [(12345, signal.SIGKILL)]


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError, AttributeError])
def test_without_a_group_the_process_is_killed(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a process group, as on Windows, the process alone is killed."""

    def refuse(*_: int) -> None:
        raise error

    monkeypatch.setattr(os, "killpg", refuse)
    process = Process()
    child.kill_group(process)  # type: ignore[arg-type]
    assert process.done == ["kill"]


def test_the_end_closes_and_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending a child closes its pipes and collects it, even if unsent bytes are lost."""

    class Pipe:
        closed = 0

        def close(self) -> None:
            self.closed += 1
            raise BrokenPipeError

    monkeypatch.setattr(os, "killpg", lambda *_: None)
    pipe = Pipe()
    process = Process(pipe=pipe)
    child.end(process)  # type: ignore[arg-type]
    assert (pipe.closed, process.done) == (1, ["wait"])


def test_a_lifeline_is_closed_at_both_ends() -> None:
    """Both ends of a lifeline are closed, and closing twice is safe."""
    line = child._Lifeline()
    ours = line._end
    assert line.words == {"QNNMEM_LIFELINE": str(line.child_end)}
    assert line.passed == (line.child_end,)
    line.let_go()
    line.cut()
    line.cut()
    for number in (line.child_end, ours):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def open_pipes() -> int:
    """Return the number of descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("fails", ["thread", "process"])
def test_a_child_that_cannot_be_started_leaves_nothing(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child whose start fails leaves no descriptor, process or folder."""
    before, started = open_pipes(), list[subprocess.Popen[bytes]]()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real = subprocess.Popen

    def popen(*values: Any, **more: Any) -> Any:
        if fails == "process":
            raise OSError(11, "Resource temporarily unavailable")
        started.append(real(*values, **more))
        return started[-1]

    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", popen)
    if fails == "thread":
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(
        UsageError, match=r"(no child process|a child's time limit) can(not)? be started"
    ):
        child.ChildProcess("limited_child", 60.0)
    assert [process.returncode for process in started] == [-9] * len(started)
    assert (open_pipes(), list(tmp_path.iterdir())) == (before, [])


def test_a_full_scratch_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the inner folder cannot be made, OutputError is raised and no folder remains."""

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OutputError, match=r"no temporary folder can be created \(No space left"):
        child.ChildFolder()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [b"{", b"\xff", b"\x91" * 100_000, b""])
def test_nonsense_is_no_answer(answer: bytes) -> None:
    """Invalid bytes from a child count as no answer."""
    process = child.ChildProcess.__new__(child.ChildProcess)
    process._process = Process()  # type: ignore[assignment]
    lengths = LENGTHS.pack(len(answer), 0)
    process._process.stdout = io.BytesIO(lengths + answer) if answer else None
    assert process.receive(Done) is None


def test_sending_to_a_child_that_is_gone_is_no_error() -> None:
    """Sending to a child that is gone raises no error; the missing answer shows it."""
    closed = io.BytesIO()
    closed.close()
    process = child.ChildProcess.__new__(child.ChildProcess)
    for pipe in (closed, None):
        process._process = Process(pipe=pipe)  # type: ignore[assignment]
        process.send(Done())


def in_a_process(program: str, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """Return the result of this program in a separate process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(child.__file__).parents[1])}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(
        command, env=environment, capture_output=True, check=False, timeout=60, **more
    )


def test_what_a_library_prints_is_no_reply() -> None:
    """What a library prints to stdout goes to stderr, not into the replies."""
    done = in_a_process(
        "import os\n"
        "from qnnmem.child import open_replies\n"
        "replies = open_replies()\n"
        "os.write(1, b'noise')\n"
        "replies.write(b'reply')\n"
        "replies.flush()"
    )
    assert (done.stdout, done.stderr) == (b"reply", b"noise")


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
@pytest.mark.parametrize(("is_open", "said"), [(True, b"alive"), (False, b"")])
def test_a_parent_that_is_gone_already_is_noticed(is_open: bool, said: bytes) -> None:
    """A child whose parent is already gone exits before it works."""
    program = (
        "import sys\n"
        "from qnnmem.child import die_with_parent\n"
        "die_with_parent(int(sys.argv[1]))\n"
        "print('alive', end='')"
    )
    theirs, ours = os.pipe()
    if not is_open:
        os.close(ours)
    done = in_a_process(program, str(theirs), pass_fds=(theirs,), start_new_session=True)
    os.close(theirs)
    if is_open:
        os.close(ours)
    assert (done.returncode, done.stdout) == (0 if is_open else 1, said)


def test_nothing_watches_a_child_that_is_gone() -> None:
    """The watchdog thread ends with its child."""
    before = threading.enumerate()
    with child.ChildProcess("limited_child", 600.0):
        (watchdog,) = (one for one in threading.enumerate() if one not in before)
    watchdog.join(60)
    assert not watchdog.is_alive()


@pytest.mark.parametrize(
    ("error", "said"), [(OSError(28, "No space"), "no space"), (OSError("Odd"), "odd")]
)
def test_no_scratch_folder_is_one_sentence(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no temporary folder can be made, the message has the system's reason and names TMPDIR."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(
        OutputError, match=rf"no temporary folder can be created \({said}\); set TMPDIR"
    ):
        temporary_folder()


def test_a_scratch_folder_that_stays_hides_nothing() -> None:
    """A temporary folder that cannot be removed raises no error; its name starts with qnnmem~."""
    with temporary_folder() as name:
        assert Path(name).name.startswith("qnnmem~")
        Path(name).rmdir()
        Path(name).write_text("in the way")
    Path(name).unlink(missing_ok=True)
