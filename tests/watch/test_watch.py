"""Watched programs: what the report shows, failures on purpose, and traces."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import exit_code, run, sentence, verb

from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
from qnnmem.errors import UsageError
from qnnmem.htp.library import has_library
from qnnmem.installation import package_folder
from qnnmem.programs import launch, socket_server
from qnnmem.programs.functions import NAMES, in_table, number_of
from qnnmem.programs.socket_server import Message
from qnnmem.programs.watch.injections import Injection, read_injection
from qnnmem.programs.watch.observer_server import _WatchedThread
from qnnmem.results.schema import load_schema

watch = verb("watch")
HERE = Path(__file__).parent
_AT_MOST_S = 600.0  # generous: the event is immediate on any machine
EXAMPLE = HERE.parents[1] / "examples" / "run_on_htp.py"


def seen(tmp_path: Path, *words: str | Path) -> dict[str, Any]:
    """Return the JSON report of a watched run, checked against its schema."""
    target = tmp_path / "seen.json"
    done = watch("--json", "-o", target, "--force", *words)
    assert done.exception is None, done.exception
    found: dict[str, Any] = json.loads(target.read_text("utf-8"))
    jsonschema.validate(found, load_schema(found["schema"]))
    return {**found, "left_with": exit_code(done)}


def line(mark: str) -> int:
    """Return the number of a marked line of the program."""
    text = (HERE / "program.c").read_text("utf-8").splitlines()
    return next(at for at, row in enumerate(text, 1) if f"line: {mark} " in row)


def test_every_function_gets_its_arguments(program: Path, backend: Path, tmp_path: Path) -> None:
    """Every function gets all its arguments, on the stack and by value; the library checks them."""
    found = seen(tmp_path, "--", program, backend, "arguments")
    assert found["exit_code"] == 0
    assert len(found["functions"]) == 70  # of 72: one logs, one takes a struct of unknown size
    assert found["libraries"][0]["name"] == "TEST_BACKEND"
    assert found["libraries"][0]["path"] == str(backend)


def test_a_program_without_mistakes_has_nothing_said_about_it(
    program: Path, backend: Path, tmp_path: Path
) -> None:
    """A correct program passes with its own exit code, and the report counts its objects."""
    found = seen(tmp_path, "--", program, backend)
    assert (found["left_with"], found["passes"], found["log_lines"]) == (0, True, 2)
    peak = {key: value for key, value in found["peak"].items() if key != "time_ns"}
    size = 1024 * 1024 * 5  # one tensor of floats, one of bytes
    assert peak == {"contexts": 2, "graphs": 1, "memory_handles": 2, "memory_bytes": size}
    assert found["functions"]["QnnContext_createFromBinary"]["count"] == 2
    assert [row["contexts"] for row in found["timeline"]] == [1, 2, 2, 2, 2, 1, 0]


@pytest.mark.parametrize("what", ["threads", "fork"])
def test_threads_and_forked_processes_are_followed(
    program: Path, backend: Path, tmp_path: Path, what: str
) -> None:
    """Contexts of threads and forked processes are counted, and none remains."""
    found = seen(tmp_path, "--", program, backend, what)
    made = {"threads": 80, "fork": 20}[what]
    assert (found["left_with"], found["functions"]["QnnContext_create"]["count"]) == (0, made)


def test_a_program_that_becomes_another_is_followed(
    program: Path, backend: Path, tmp_path: Path
) -> None:
    """A program that replaces itself with exec is followed under the same pid."""
    found = seen(tmp_path, "--", program, backend, "becomes-another")
    assert (found["left_with"], found["peak"]["memory_bytes"]) == (0, 1024 * 1024 * 5)


def test_a_program_goes_on_where_no_thread_can_be_had(
    program: Path, backend: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no thread can start, the program continues unwatched, and the report says so."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if "_serve" in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    done = watch("--time-limit", "600", "--", program, backend)
    assert exit_code(done) == 3
    assert "not watched: " in done.stdout
    assert "exit code 0" in done.stdout


def test_a_child_does_not_wait_for_a_thread_of_its_parent(
    backend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked child gets its own connection and does not wait for a thread of its parent."""
    script = tmp_path / "forks.py"
    script.write_text(
        "import ctypes, os, pathlib, signal, sys, threading, time\n"
        "asks = ctypes.CDLL(sys.argv[1]).QnnInterface_getProviders\n"
        "held, over = map(pathlib.Path, sys.argv[2:])\n"
        "def ask():\n"
        "    return asks(ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_uint32()))\n"
        "thread = threading.Thread(target=ask)\n"
        "thread.start()\n"
        "while not held.exists():\n"
        "    time.sleep(0.001)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(600)\n"
        "    os._exit(ask())\n"
        "status = os.waitpid(child, 0)[1]\n"
        "over.touch()\n"
        "thread.join()\n"
        "sys.exit(os.waitstatus_to_exitcode(status) & 255)\n"
    )
    held, over = tmp_path / "held", tmp_path / "over"
    library = _WatchedThread._library

    def hold(self: _WatchedThread, said: Message) -> None:
        if not held.exists():
            held.touch()
            while not over.exists():
                time.sleep(0.001)
        library(self, said)

    monkeypatch.setattr(_WatchedThread, "_library", hold)
    found = seen(tmp_path, "--", sys.executable, script, backend, held, over)
    assert (found["exit_code"], len(found["libraries"])) == (0, 2)


def test_a_linked_library_is_watched_too(linked: Path, tmp_path: Path) -> None:
    """A library that the program links is watched like a library that it opens."""
    assert seen(tmp_path, "--", linked)["peak"]["contexts"] == 2


def test_what_is_left_is_named_with_its_line(program: Path, backend: Path, tmp_path: Path) -> None:
    """A context that outlives its backend and unreleased memory are reported with their lines."""
    found = seen(tmp_path, "--", program, backend, "leak")
    assert found["left_with"] == 1
    [one] = found["freed_after_backend"]
    assert (one["kind"], one["bytes"]) == ("context", 50)
    assert one["place"].endswith(f"program.c:{line('second')}")
    found = seen(tmp_path, "--", program, backend, "memory-leaked")
    assert [row["kind"] for row in found["unreleased"]] == ["memory", "memory"]


def test_a_failed_call_comes_with_its_log_and_a_diagnosis(
    program: Path, backend: Path, tmp_path: Path
) -> None:
    """A failed call is reported with its log lines and the doctor's diagnosis."""
    found = seen(tmp_path, "--", program, backend, "finalize-fails")
    [one] = found["failed_calls"]
    assert (found["left_with"], one["function"], one["code"]) == (1, "QnnGraph_finalize", 1002)
    assert one["place"].endswith(f"program.c:{line('finalize')}")
    assert "Requires 10000384 bytes" in one["log"][0]["text"]
    assert "op-over-vtcm" in one["diagnosis"]


@pytest.mark.parametrize(
    ("rule", "printed"),
    [
        ("contextCreateFromBinary#2=1002", "fallback"),
        ("QnnContext_createFromBinary#2=MEM_ALLOC", "fallback"),
        ("memRegister>4M=1002", "registered: 1002"),
        ("memRegister>5M=1002", "registered: 0"),
    ],
)
def test_calls_fail_on_purpose(
    program: Path,
    backend: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    rule: str,
    printed: str,
) -> None:
    """--fail makes the chosen call fail, or calls about more bytes, and the program falls back."""
    found = seen(tmp_path, "--fail", rule, "--", program, backend)
    assert printed in capfd.readouterr().out
    missed, fell_back = printed == "registered: 0", printed == "fallback"
    assert any(one["injected"] for one in found["failed_calls"]) != missed
    assert found["unmatched"] == (["memRegister>5242880=1002"] if missed else [])
    assert found["left_with"] == (missed or fell_back)
    places = [one["place"].rpartition("/")[2] for one in found["lost"]]
    assert places == ([f"program.c:{line('second')}"] if fell_back else [])


def test_what_is_not_executed_as_it_was_prepared_is_said(
    program: Path, backend: Path, tmp_path: Path
) -> None:
    """Each mismatch of prepared and executed IO is reported once with its bytes."""
    found = seen(tmp_path, "--", program, backend, "mixed")
    raw, shared = found["mixed_io"]
    assert (raw["executed"], raw["tensors"], raw["bytes"]) == ("raw", ["y"], 1024)
    assert (shared["executed"], shared["tensors"], shared["bytes"]) == ("memhandle", ["x"], 1024)
    assert "1,024 bytes are reserved and never used" in shared["sentence"]
    assert raw["place"].endswith(f"program.c:{line('graph')}")
    assert [(one["kind"], one["name"]) for one in found["unreleased"]] == [("memory", "x")]
    assert found["findings"] == 1  # the memory


@pytest.mark.parametrize(
    ("what", "said", "left_with", "failed"),
    [
        ("together", "the failure goes away with one call at a time", 1, 0),
        ("finalize-fails", "the failure also occurs with one call at a time", 1, 1),
        ("", "no failure in the unchanged run", 0, 0),
    ],
)
def test_calls_are_let_through_one_at_a_time(
    program: Path, backend: Path, tmp_path: Path, what: str, said: str, left_with: int, failed: int
) -> None:
    """--serialise runs the program again with one call at a time, and the verdict compares both."""
    found = seen(tmp_path, "--serialise", "--", program, backend, what)
    assert found["verdict"].startswith(said)
    assert (found["left_with"], len(found["failed_calls"])) == (left_with, failed)
    turns = found["serialised"]
    assert (turns["waited"] > 0, turns["gave_up"]) == (what == "together", 0)
    assert bool(turns["failure_before"]) == bool(what)
    assert bool(turns["failure"]) == bool(failed)


@pytest.mark.parametrize(
    ("entry", "number", "failing", "said"),
    [
        ("founding-device-init", 1, "leak", "program.c:"),
        ("founding-inference", 4, "together", "the failure goes away with one call at a time"),
    ],
)
def test_the_founding_solutions_that_a_program_shows(
    program: Path, backend: Path, entry: str, number: int, failing: str, said: str
) -> None:
    """The commands in the founding doctor entries name the unreleased object or the contention."""
    (found,) = (one for one in read_folder(BUILT_IN)[1] if one.id == entry)
    words = re.findall(r"`qnnmem ([^`]+)`", found.remedies[number - 1])[0].split()
    assert words.pop() == "COMMAND"
    done = run(*words, program, backend, failing)
    assert (exit_code(done), said in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("what", "outcome", "code"),
    [("crash-on-error", "crashed", 1), ("leak-on-error", "leaked", 1), ("", "exited 0", 1)],
)
def test_each_call_fails_in_turn(
    program: Path, backend: Path, tmp_path: Path, what: str, outcome: str, code: int
) -> None:
    """--fail-each fails each call in turn and reports a crash, a leak or the exit code."""
    each = ("--fail-each", "contextCreateFromBinary")
    found = seen(tmp_path, *each, "--", program, backend, what)
    assert [run["outcome"] for run in found["runs"]] == ["leaked", outcome]
    assert found["left_with"] == code
    assert found["runs"][1]["place"].endswith(f"program.c:{line('second')}")


def _limit_counts_from(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Start a program's time limit when a file exists, so a slow machine cannot end it early."""
    wait = launch.wait

    def patient(child: subprocess.Popen[bytes], limit_s: float | None) -> tuple[int, bool]:
        while not file.exists() and child.poll() is None:
            time.sleep(0.001)
        return wait(child, limit_s if child.poll() is None else None)

    monkeypatch.setattr(launch, "wait", patient)


def test_a_run_that_hangs_is_ended(
    program: Path, backend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that hangs is ended and listed as hung, and --most-runs limits the number of runs."""
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    _limit_counts_from(monkeypatch, tmp_path / "hangs")
    each = ("--fail-each", "contextCreateFromBinary=QNN_COMMON_ERROR_SYSTEM", "--time-limit", "0.1")
    found = seen(tmp_path, *each, "--", program, backend, "hang-on-error")
    assert [run["outcome"] for run in found["runs"]] == ["leaked", "hung"]
    (tmp_path / "hangs").unlink()
    found = seen(tmp_path, *each, "--most-runs", "1", "--", program, backend, "hang-on-error")
    assert len(found["runs"]) == 1


def test_a_trace_shows_the_same_again(program: Path, backend: Path, tmp_path: Path) -> None:
    """A stored trace gives the same text again, and also Perfetto JSON and a page."""
    trace = tmp_path / "trace.jsonl"
    done = watch("-o", trace, "--", program, backend, "leak")
    assert exit_code(done) == 1
    assert '"source":"if (CALL(13' in trace.read_text("utf-8")  # the source may be gone later
    again = watch("--read", trace)
    assert exit_code(again) == 1
    assert again.stdout == done.stdout
    assert watch("-o", trace, "--", program, backend).exception is not None  # the trace exists
    shown = json.loads(watch("--read", trace, "--format", "perfetto").stdout)
    calls = [one for one in shown["traceEvents"] if one["ph"] == "X"]
    alive = [one["args"]["contexts"] for one in shown["traceEvents"] if one["name"] == "alive"]
    assert (len(calls), max(alive)) == (10, 2)
    assert exit_code(run("report", trace, "-o", tmp_path / "page.html")) == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert f"program.c:{line('second')}" in page  # the line that made the leaked context


def test_traces_that_are_none_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """A malformed trace is refused in one sentence."""
    head = b'{"schema":"qnnmem.trace/1","tool":"x","command":["x"]}\n'
    cases = {
        b"": "empty",
        b"\xff\xfe": "not a trace",
        b'{"schema": 3}\n': "not a trace",
        b'{"schema":"qnnmem.trace/2","tool":"x","command":["x"]}\n': "not a trace",
        head: "ends before",
        head + b'{"event":"call"}\n': "line 2",
        head + b"[" * 100_000 + b"\n": "line 2",
        head + b'{"event":"place","id":1,"stack":[{"function":1}]}\n': "line 2",
    }
    for data, words in cases.items():
        (tmp_path / "trace.jsonl").write_bytes(data)
        done = watch("--read", tmp_path / "trace.jsonl")
        assert (exit_code(done), words in sentence(done)) == (2, True), sentence(done)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no program"),
        (("--read", "x", "--", "y"), "--read"),
        (("--fail", "memRegister", "--", "true"), "does not state which calls"),
        (("--fail", "memRegistr=1", "--", "true"), "memRegister"),
        (("--fail", "memRegister=0", "--", "true"), "not a QNN error code"),
        (("--fail", "graphExecute>1M=1002", "--", "true"), "have no size to compare"),
        (("--fail", "memRegister#0=1002", "--", "true"), "at least 1"),
        (("--fail-each", "memRegister", "--", "true"), "never calls memRegister"),
        (("--serialise", "--fail", "memRegister=1", "--", "true"), "remove --fail"),
        (("--serialise", "--read", "x"), "--read"),
        (("--fail-each", "memRegister", "--format", "perfetto", "--", "true"), "--fail-each"),
        (("--", "no-such-program"), "does not exist"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(words: tuple[str, ...], said: str) -> None:
    """Wrong options are refused with one sentence and exit code 2."""
    done = watch(*words)
    assert (exit_code(done), said in sentence(done)) == (2, True), sentence(done)


def test_a_program_without_qnn_cannot_be_judged() -> None:
    """A program without QNN calls exits with 2, whatever its own exit code."""
    for words in (("true",), ("sh", "-c", "exit 8")):
        done = watch("--", *words)
        assert exit_code(done) == 2
        assert "never called QNN" in done.stdout


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    """A real-time signal is named relative to SIGRTMIN, and long commands are truncated."""
    done = watch("--", "sh", "-c", "kill -40 $$", *["x" * 5000] * 250)
    assert (exit_code(done), "ended by SIGRTMIN+6" in done.stdout) == (2, True)


@pytest.mark.parametrize("instead", ["mkfifo", "mkdir", ":"])
def test_a_program_cannot_put_anything_in_the_way(
    program: Path, backend: Path, tmp_path: Path, instead: str
) -> None:
    """A program that replaces the checker's files cannot change or block the report."""
    spoil = (
        'cd "${LD_PRELOAD%/*}"; for f in ledger events trace.jsonl; do '
        f'rm -f "$f"; {instead} "$f"; done'
    )
    found = seen(tmp_path, "--", "sh", "-c", f'"$0" "$1" && {spoil}', program, backend)
    assert found["functions"]["QnnContext_createFromBinary"]["count"] == 2
    assert found["peak"]["contexts"] == 2
    assert "overwrote or removed the counter" in found["verdict"]


def test_what_any_thread_has_started_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit ends all processes that any thread of the program started."""
    script = tmp_path / "start.py"
    script.write_text(
        "import os, pathlib, subprocess, sys, threading, time\n"
        "def start():\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    pathlib.Path(sys.argv[1] + '.new').write_text(str(child.pid))\n"
        "    os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "    time.sleep(600)\n"
        "threading.Thread(target=start).start()\n"
    )
    _limit_counts_from(monkeypatch, tmp_path / "pid")
    watch("--time-limit", "0.1", "--", sys.executable, script, tmp_path / "pid")
    assert _ends(int((tmp_path / "pid").read_text()))


def _ends(pid: int) -> bool:
    """True if a process ends within the time limit, even if its parent does not collect it."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([held], [], [], _AT_MOST_S)[0])
    finally:
        os.close(held)


def test_all_lines_that_are_held_are_waited_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open connections are joined with one common time limit, not one after the other."""
    given: list[float] = []

    class Held:
        def join(self, seconds: float) -> None:
            given.append(seconds)
            clock[0] += seconds

    clock = [100.0]
    monkeypatch.setattr(socket_server, "monotonic", lambda: clock[0])
    socket_server._join([Held()] * 6)  # type: ignore[list-item]
    assert sum(given) == socket_server._JOIN_S


def test_a_program_with_other_rights_is_refused(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A setuid program is refused, because the loader would not load the observer."""
    copy = tmp_path / "copy"
    copy.write_bytes(program.read_bytes())
    copy.chmod(0o4755)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert "rights of another user" in sentence(watch("--", copy))


def test_functions_have_both_names() -> None:
    """A function is found by its header name and by its table name."""
    assert [number_of(in_table(name)) for name in NAMES.values()] == list(NAMES)
    assert [number_of(name) for name in NAMES.values()] == list(NAMES)
    rule = read_injection("memRegister#3>64M=0x3ea")
    assert rule == Injection(number_of("memRegister"), 1002, 3, 64 << 20)
    assert str(rule) == "memRegister#3>67108864=1002"
    with pytest.raises(UsageError):
        read_injection("memRegister=70000")


def _watching(program: Path, backend: Path, what: str) -> tuple[subprocess.Popen[bytes], int]:
    """Return a running `qnnmem watch` and the pid of the watched program."""
    words = [sys.executable, "-m", "qnnmem", "watch", "--", str(program), str(backend), what]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    while b"registered" not in parent.stdout.readline():
        assert parent.poll() is None
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    return parent, int(listed[0])


@pytest.mark.parametrize("killed", ["program", "watcher"])
def test_neither_side_waits_for_one_that_is_killed(
    program: Path, backend: Path, killed: str
) -> None:
    """A killed program ends the watch with a report; a killed watcher ends the program."""
    parent, child = _watching(program, backend, "hang")
    os.kill(child if killed == "program" else parent.pid, signal.SIGKILL)
    said = parent.communicate(timeout=_AT_MOST_S)[0].decode()
    assert ("SIGKILL" in said) == (killed == "program")
    assert _ends(child)


def test_nonsense_on_the_socket_ends_that_line_only(backend: Path, tmp_path: Path) -> None:
    """Nonsense on the socket closes only that connection, and the run continues."""
    script = tmp_path / "nonsense.py"
    script.write_text(
        "import contextlib, ctypes, os, socket, struct, sys\n"
        "for kind in range(8):\n"
        "    for words in (0, 3, 4, 40):\n"
        "        line = socket.socket(socket.AF_UNIX)\n"
        "        line.connect(os.environ['LD_PRELOAD'].rpartition('/')[0] + '/socket')\n"
        "        hello = struct.pack('<IHH6Q', 56, 1, 0, 2, 0, 0, 0, 7, 4096)\n"
        "        body = struct.pack(f'<{words}Q', *range(1 << 62, (1 << 62) + words))\n"
        "        line.sendall(hello + struct.pack('<IHH', 8 + 8 * words, kind, 35) + body)\n"
        "        with contextlib.suppress(OSError):  # hung up already\n"
        "            line.sendall(struct.pack('<IHH', 0xFFFFFFFF, 3, 900))\n"
        "        with contextlib.suppress(OSError):  # hung up with bytes that nobody read\n"
        "            while line.recv(4096):\n"
        "                pass\n"
        "        line.close()\n"
        "lib = ctypes.CDLL(sys.argv[1])\n"
        "where, count = ctypes.c_void_p(), ctypes.c_uint32()\n"
        "code = lib.QnnInterface_getProviders(ctypes.byref(where), ctypes.byref(count))\n"
        "sys.exit(code)\n"
    )
    found = seen(tmp_path, "--", sys.executable, script, backend)
    assert [one["name"] for one in found["libraries"]] == ["TEST_BACKEND"]


def test_the_saver_of_the_vendor_is_watched_from_ctypes(tmp_path: Path) -> None:
    """The vendor's Saver library, called through ctypes, is watched, with leaks and a failure."""
    folder = package_folder(["libQnnSaver.so"])
    if folder is None:
        pytest.skip("onnxruntime-qnn with libQnnSaver.so is not installed")
    words = ("--fail", "contextCreate#2=1002", "--")
    script, library = HERE / "drive_saver.py", folder / "libQnnSaver.so"
    here = Path.cwd()
    os.chdir(tmp_path)  # the Saver records its calls in files of the current folder
    try:
        found = seen(tmp_path, *words, sys.executable, script, library)
    finally:
        os.chdir(here)
    assert found["libraries"][0]["name"] == "SAVER_QTI_AISW"
    assert (found["exit_code"], found["peak"]["contexts"]) == (0, 2)
    assert [one["code"] for one in found["failed_calls"] if one["injected"]] == [1002]
    assert [one["kind"] for one in found["freed_after_backend"]] == ["context"]


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the HTP library is not here")
@pytest.mark.parametrize(
    ("rule", "contexts", "left_with"),
    [("contextCreate#7=1002", 1, 1), ("contextCreate=1002", 0, 1)],
)
def test_onnxruntime_is_watched_with_the_real_library(
    tmp_path: Path, rule: str, contexts: int, left_with: int
) -> None:
    """ONNX Runtime with the real library is watched; after a failure the CPU takes over."""
    found = seen(tmp_path, "--fail", rule, "--", sys.executable, EXAMPLE)
    assert (found["exit_code"], found["left_with"], found["unreleased"]) == (0, left_with, [])
    assert found["unmatched"] == ([rule] if contexts else [])
    assert [one["function"] for one in found["lost"]] == ["QnnContext_create"] * (not contexts)
    assert found["libraries"][0]["name"] == "HTP_QTI_AISW"
    assert found["peak"]["contexts"] == contexts
    assert ("QnnGraph_execute" in found["functions"]) == bool(contexts)
