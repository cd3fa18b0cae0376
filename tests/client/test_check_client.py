"""Programs under the contract, with each mistake of `tests/client_mistakes.py`."""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import published_schemas
import pytest
from client_mistakes import MISTAKES, build, lines, one_graph, problems, run
from command_line import exit_code, sentence, verb
from hostile_client import attack
from killed_client import problems as killed_problems
from seeds import seeds

from qnnmem import lpai
from qnnmem.contract.rules import PROGRAM, rules
from qnnmem.errors import LoadError, UsageError
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime import context as runtime_context
from qnnmem.programs import process_memory, stacks
from qnnmem.programs.check.calls_context import ClientSystem
from qnnmem.programs.check.client_run import ClientOptions, _excuse, check_client
from qnnmem.programs.check.client_session import (
    ClientSession,
    ExecutionLimits,
    Handle,
    limited_memory,
)
from qnnmem.programs.check.findings import Suppression, read_suppressions
from qnnmem.programs.functions import NAMES
from qnnmem.programs.launch import SHIM, build_objects
from qnnmem.programs.process_memory import SHARED_BYTES, ProcessMemory, Unreadable
from qnnmem.results.programs import Frame
from qnnmem.results.schema import load_schema

ROOT = Path(__file__).resolve().parents[2]
# One mistake of each kind: freed, misaligned, short, changed, ignored, leaked, in flight.
# The other programs cover the mistakes that are left out here.
TRIED = (
    *("scratch-misaligned", "scratch-block-too-small", "persistent-freed-early"),
    *("persistent-overwritten", "finalize-code-ignored"),
    *("context-leaked", "async-freed", "input-freed", "pointer-wild", "crash"),
)
check = verb("check-client")


def test_every_mistake_of_the_client_has_an_expectation() -> None:
    """Every mistake of the example client has an expectation, and every expectation a mistake."""
    source = (ROOT / "examples" / "lpai_client.c").read_text("utf-8")
    assert [name for name in MISTAKES if f'makes("{name}")' not in source] == []
    assert {one.line for one in MISTAKES.values()} - {""} <= lines().keys()
    assert len(MISTAKES) >= 25


@pytest.mark.parametrize("name", TRIED)
def test_a_mistake_is_found_with_its_rule_and_its_line(
    client: Path, binary: Path, name: str
) -> None:
    """A mistake is found with its rule, the line of the call and the line that freed the memory."""
    assert list(problems(run(client, binary, name), MISTAKES[name])) == []


@pytest.mark.parametrize("words", [(), ("async",), ("threads=3",)], ids=str)
def test_a_client_without_mistakes_is_clean_and_computes_the_same(
    client: Path, binary: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A correct client has no findings and computes the same result as the runtime in Python."""
    import numpy

    data = numpy.arange(25, dtype=numpy.int32)
    (tmp_path / "x.raw").write_bytes(data.tobytes())
    given = ("runs=5", f"input={tmp_path / 'x.raw'}", f"output={tmp_path / 'y.raw'}")
    report = run(client, binary, *given, *words)
    times = 15 if "threads=3" in words else 5
    with lpai.open(binary) as session:
        wanted = [session.run({"x": data.reshape(1, 25)})["y"] for _ in range(times)][-1]
    assert report.findings == ()
    assert (tmp_path / "y.raw").read_bytes() == wanted.tobytes()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_large_buffer_is_copied_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """A large buffer is copied completely or not at all, with or without the quick system call."""
    import numpy

    if not at_once:
        monkeypatch.setattr(process_memory, "_function", lambda _: None)
    there = mmap.mmap(-1, 3 * mmap.PAGESIZE * 16)
    there.write(bytes(range(256)) * (len(there) // 256))
    view = numpy.frombuffer(there, numpy.uint8)
    start = view.__array_interface__["data"][0]
    memory, here = ProcessMemory(os.getpid()), numpy.zeros(len(there), numpy.uint8)
    quick = process_memory.QuickCopies(os.getpid())
    moved = quick.read(here, start), quick.write(here, start)
    assert moved == ((len(there),) * 2 if at_once else (0, 0))
    here[:] = 0
    memory.fill(here, start)
    assert (here == view).all()
    memory.store(here[::-1].copy(), start)
    assert (here[::-1] == view).all()
    for wrong in (0, 1 << 20, 1 << 60):
        with pytest.raises(Unreadable):
            memory.fill(here, wrong)
        with pytest.raises(Unreadable):
            memory.store(here, wrong)
    quick.close()
    memory.close()


def test_a_number_that_another_process_may_have_is_not_used() -> None:
    """After a process ends, quick copies refuse its pid, which another process may reuse."""
    import numpy

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    quick = process_memory.QuickCopies(child.pid)
    child.communicate(b"\n")
    quick._pid = os.getpid()  # as if another process had the pid by now
    data = numpy.ones(1 << 16, numpy.uint8)
    other = numpy.zeros(1 << 16, numpy.uint8)
    address = other.__array_interface__["data"][0]
    assert (quick.write(data, address), quick.read(data, address)) == (0, 0)
    assert not other.any()
    quick.close()


def test_the_command_says_which_rule_and_where(client: Path, binary: Path, tmp_path: Path) -> None:
    """`check-client` exits with 1, names rule and line, writes JSON and accepts suppressions."""
    target = tmp_path / "found.json"
    done = check("-o", target, "--", client, binary, "input-misaligned")
    assert exit_code(done) == 1
    found = json.loads(target.read_text("utf-8"))
    jsonschema.validate(found, load_schema("qnnmem.check-client/1"))
    assert [one["rule"] for one in found["findings"]] == ["R3"]
    assert found["findings"][0]["place"].endswith(f"lpai_client.c:{lines()['execute']}")
    moments = found["timeline"]
    assert [one["what"] for one in moments[:2]] == [
        "QnnContext_createFromBinary",
        "QnnGraph_setConfig",
    ]
    assert [one["contexts"] for one in moments] == [1] * len(moments)  # the client stopped
    assert moments[-1]["registered_bytes"] > moments[0]["registered_bytes"] > 0
    known = tmp_path / "known.txt"
    known.write_text("# meant\nR3 QnnGraph_execute lpai_client.c\n", "utf-8")
    done = check("--suppress", known, "--", client, binary, "input-misaligned")
    assert exit_code(done) == 3
    assert "1 known finding ignored" in done.output


def test_findings_are_for_build_servers_too(client: Path, binary: Path, tmp_path: Path) -> None:
    """SARIF output states both places and obeys its schema; JUnit output has a failure."""
    target = tmp_path / "found.sarif"
    check("--format", "sarif", "-o", target, "--", client, binary, "scratch-freed-early")
    log = published_schemas.check_sarif(target.read_text("utf-8"))
    result = log["runs"][0]["results"][0]
    where = [one["physicalLocation"] for one in (*result["locations"], *result["relatedLocations"])]
    assert [one["region"]["startLine"] for one in where] == [lines()["execute"], lines()["free"]]
    target = tmp_path / "found.xml"
    check("--format", "junit", "-o", target, "--", client, binary, "graph-unknown")
    suite = published_schemas.check_junit(target.read_text("utf-8"))
    assert [one.get("type") for one in suite.iter("failure")] == ["R12"]


def test_a_device_would_go_on(client: Path, binary: Path) -> None:
    """With --continue-on-error the faulty call returns 0, and the program runs to its end."""
    done = check("--continue-on-error", "--", client, binary, "input-misaligned")
    assert exit_code(done) == 1
    assert "exit code 0" in done.output


def test_numbers_and_cures_are_of_what_was_given(client: Path, binary: Path) -> None:
    """A finding about a size names the tensor's fields; one about an address its remainder."""
    short = check("--", client, binary, "output-too-small").output
    assert "getProperty" not in short
    assert "the tensor's dimensions and data type" in short
    odd = check("--", client, binary, "input-misaligned").output
    assert "numbers    expected a multiple of 64, given " in odd


def test_a_clean_program_keeps_its_exit_code_and_that_is_said(client: Path, binary: Path) -> None:
    """If a clean program exits with 1, the last line says that the code is the program's own."""
    done = check("--", "sh", "-c", f"{client} {binary}; exit 1")
    assert exit_code(done) == 1
    assert done.output.splitlines()[-1] == "exit code 1 is the program's own, not a finding"
    assert "program's own" not in check("--", client, binary).output


def test_who_gives_up_where_more_input_is_asked_for_is_told(client: Path, tmp_path: Path) -> None:
    """A client that treats code 6038 as a failure breaks C10 and gets no finding for its leaks."""
    binary = tmp_path / "window.bin"
    binary.write_bytes(one_graph("window"))
    report = run(client, binary)
    assert [one.rule for one in report.findings] == ["C10"]
    assert report.findings[0].place.endswith(f":{lines()['execute']}")
    assert report.exit_code == 3


def test_what_is_left_behind_is_told_at_the_call_that_met_it(
    client: Path, binary: Path, tmp_path: Path
) -> None:
    """Each format reports a leaked context at the freeing call and names the line that made it."""
    at = lines()
    met, made = f"lpai_client.c:{at['backendFree']}", f"lpai_client.c:{at['contextCreate']}"
    words = ("--", client, binary, "context-leaked")
    done = check(*words)
    assert f"[L1] QnnBackend_free at examples/{met}: the context made at" in done.output
    target = tmp_path / "found.json"
    check("-o", target, *words)
    (one,) = json.loads(target.read_text("utf-8"))["findings"]
    assert one["place"].endswith(met)
    assert (one["other"]["what"], one["other"]["place"].endswith(made)) == ("made at", True)
    target = tmp_path / "found.sarif"
    check("-o", target, *words)
    (result,) = json.loads(target.read_text("utf-8"))["runs"][0]["results"]
    where = [one["physicalLocation"] for one in (*result["locations"], *result["relatedLocations"])]
    starts = [one["region"]["startLine"] for one in where]
    assert starts == [at["backendFree"], at["contextCreate"]]
    known = tmp_path / "known.txt"
    for line in (met, made):
        known.write_text(f"L1 QnnBackend_free {line}\n", "utf-8")
        assert exit_code(check("--suppress", known, *words)) == 0


def test_what_is_never_freed_is_told_where_it_was_made(
    client: Path, binary: Path, tmp_path: Path
) -> None:
    """A backend that is never freed is reported at exit, with the line that made the backend."""
    made = f"made at examples/lpai_client.c:{lines()['backendCreate']}"
    words = ("--", client, binary, "backend-leaked")
    done = check(*words)
    assert f"[L1] exit, {made}: the backend {made} was never freed" in done.output
    assert "called at" not in done.output
    target = tmp_path / "found.sarif"
    check("-o", target, *words)
    result = json.loads(target.read_text("utf-8"))["runs"][0]["results"][0]
    assert result["locations"][0]["message"]["text"] == "exit, made at"


@pytest.mark.parametrize("kind", ["script", "gdb", "jemalloc", "asan", "tsan"])
def test_other_ways_to_start_a_client(
    client: Path, binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A script, a debugger, another heap or a sanitizer gives one finding with both lines."""
    command = [str(client)]
    if kind == "script":
        command = [str(tmp_path / "start.sh")]
        Path(command[0]).write_text(f'#!/bin/sh\n{client} "$@"\n', "utf-8")
        Path(command[0]).chmod(0o755)
    elif kind == "gdb":
        if shutil.which("gdb") is None:
            pytest.skip("there is no gdb")
        command = ["gdb", "--batch", "-ex", "run", "--args", *command]
    elif kind == "jemalloc":
        found = sorted(Path("/usr/lib").glob("*/libjemalloc.so.2"))
        if not found:
            pytest.skip("there is no jemalloc")
        monkeypatch.setenv("LD_PRELOAD", str(found[0]))
    else:
        flag = {"asan": "address", "tsan": "thread"}[kind]
        try:
            command = [str(build(tmp_path / kind, "gcc", (f"-fsanitize={flag}",)))]
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(f"gcc has no {kind} here")
    words = (*command, str(binary), "scratch-freed-early")
    report = check_client(ClientOptions(words, profile(), time_limit_s=600))
    assert list(problems(report, MISTAKES["scratch-freed-early"])) == []
    assert len(report.findings) == 1


@pytest.mark.parametrize("code", [0, 1, 9])
def test_a_program_that_never_calls_qnn_is_no_clean_client(code: int) -> None:
    """A program that never calls QNN exits with 2, whatever its own exit code; 1 means findings."""
    done = check("--", sys.executable, "-c", f"raise SystemExit({code})")
    assert exit_code(done) == 2
    assert f"never called QNN (exit code {code})" in done.output


def test_who_ends_amid_a_release_is_excused_too(tmp_path: Path) -> None:
    """A process that dies during a release loses its handles without a finding."""
    session = ClientSession(profile(), stacks.Symbols(str(tmp_path)), print)
    system = ClientSystem(lpai.SystemContext.create())
    system.system.free()
    session.handles.add(1, Handle("system context", system, SimpleNamespace(pid=7)))  # type: ignore[arg-type]
    _excuse(session, {7})
    assert len(session.handles) == 0


def test_a_line_of_source_is_readable(tmp_path: Path) -> None:
    """Source lines have spaces for tabs; a frame of a language runtime gives way to its caller."""
    source = tmp_path / "pool.s"
    source.write_text("\tCALL\tAX\n", "utf-8")
    assert stacks.with_source(Frame("f", str(source), 1, "", 0)).source == "CALL AX"
    inner = Frame("dealloc", "/rustc/0123/library/alloc/src/alloc.rs", 115, "/a", 0)
    outer = Frame("drop", "client.rs", 18, "/a", 0)
    assert stacks.of_program((inner, outer), "/a") is outer


def test_what_cannot_be_run_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing, static, musl or 32-bit program and a missing compiler each give one sentence."""
    assert "does not exist" in sentence(check("--", tmp_path / "nothing"))
    (tmp_path / "here").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "here").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert "is not in a folder of PATH; write ./here" in sentence(check("--", "here"))
    static = tmp_path / "static"
    static.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57))
    static.chmod(0o755)
    assert "statically linked" in sentence(check("--", static))
    static.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57) + b"/lib/ld-musl-x86_64.so.1")
    assert "musl" in sentence(check("--", static))
    static.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(57))
    assert "32-bit" in sentence(check("--", static))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UsageError, match="C compiler"):
        build_objects(tmp_path, SHIM)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="Linux"):
        build_objects(tmp_path, SHIM)


def test_a_client_whose_checker_is_killed_does_not_hang(
    client: Path, binary: Path, tmp_path: Path
) -> None:
    """A client ends when its checker is killed, and the next run removes the socket folder."""
    command = [sys.executable, "-m", "qnnmem", "check-client", "--", str(client), str(binary)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, "runs=100000000"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        mine: list[int] = []
        while not mine and parent.poll() is None:
            time.sleep(0.01)
            there = [int(one) for one in children.read_text("utf-8").split()]
            mine = [one for one in there if _program(one) == client.name]
        assert mine
        held = os.pidfd_open(mine[0])
        os.kill(parent.pid, signal.SIGKILL)
    assert select.select([held], [], [], 600)[0]  # the client ends
    os.close(held)


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except OSError:
        return ""


def test_a_client_that_is_killed_leaves_nothing_behind(client: Path, tmp_path: Path) -> None:
    """A killed client leaves no queue thread, no descriptor and no file in the checker."""
    try:
        assert list(killed_problems(len(seeds(3)), 5, tmp_path, client)) == []
    finally:
        tempfile.tempdir = None


def test_an_execution_has_limits_as_in_net_run(client: Path, binary: Path) -> None:
    """An execution over its time limit ends the program with finding B1."""
    command = (str(client), str(binary), "runs=100000000")
    late = ExecutionLimits(time_s=1e-5)
    report = check_client(ClientOptions(command, profile(), time_limit_s=600, limits=late))
    assert report.timed_out
    assert [one.rule for one in report.findings] == ["B1"]
    assert "an execution did not finish within 1e-05 s" in report.findings[0].sentence


def test_memory_is_limited_while_a_program_runs() -> None:
    """The memory limit applies only while a program runs."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limited_memory(1 << 50):
        assert resource.getrlimit(resource.RLIMIT_AS)[0] == min(
            n for n in (1 << 50, *before) if n != resource.RLIM_INFINITY
        )
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_program_in_a_binary_is_rehearsed(client: Path, tmp_path: Path) -> None:
    """A binary with an invalid program is refused with B1 and 5005 before this process runs it."""
    from qnnmem.lpai.binary import pack
    from qnnmem.lpai.selftest.models import context

    graph = replace(context().graphs[0], program=b"no program")
    path = tmp_path / "broken.bin"
    path.write_bytes(b"".join(pack(replace(context(), graphs=(graph,)))))
    found = [(one.rule, one.code) for one in run(client, path).findings]
    assert found == [("B1", 5005)]


def test_messages_of_a_hostile_client_end_a_connection_at_worst() -> None:
    """A hostile message at most closes its connection, and the next client is still served."""
    assert attack(len(seeds(200)), 0) == []


@pytest.mark.parametrize("line", ["R" * 501, "R3 " + "*a" * 21, "L1\n" * 10_001])
def test_a_suppression_that_takes_long_is_refused(line: str, tmp_path: Path) -> None:
    """Suppressions that are too long, too complex or too many are refused."""
    path = tmp_path / "known.txt"
    path.write_text(line, "utf-8")
    with pytest.raises(LoadError, match="more than"):
        read_suppressions(path)


def _refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make threads with this name fail to start, as on an exhausted machine."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if name in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_a_client_is_not_left_waiting_where_no_thread_can_be_had(
    client: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no thread can start, the client ends by itself and is not called clean."""
    _refuse_threads(monkeypatch, "_serve")
    report = run(client, binary)
    assert not report.timed_out
    assert report.exit_code == 3
    assert any("no thread or memory left" in one.what for one in report.not_checked)


def test_a_report_is_made_where_no_thread_can_be_had_to_clean_up(
    client: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no thread can clean up after a crash, the report is still complete."""
    _refuse_threads(monkeypatch, "abandon")
    assert list(problems(run(client, binary, "crash"), MISTAKES["crash"])) == []


def test_without_a_thread_to_begin_with_that_is_said(
    client: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server thread cannot start, `check-client` says so in one sentence."""
    _refuse_threads(monkeypatch, "socket server")
    assert "another thread" in sentence(check("--", client, binary))


def test_no_program_is_blamed_for_what_this_machine_lacks(
    client: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lack of file descriptors is finding H1 of the host, not finding C4 of the program."""

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    start = subprocess.Popen

    def popen(command: list[str], **given: Any) -> Any:
        return (start if command[0] == str(client) else none_left)(command, **given)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(runtime_context, "_known", {})  # forget earlier rehearsals
    found = {one.rule for one in run(client, binary).findings}
    assert "H1" in found
    assert "C4" not in found


def test_a_suppression_names_a_rule_that_there_is(tmp_path: Path) -> None:
    """A suppression with an unknown rule is refused, because it would have no effect."""
    path = tmp_path / "known.txt"
    path.write_text("L1\nC? dlclose\n", "utf-8")
    assert read_suppressions(path) == (Suppression("L1"), Suppression("C?", "dlclose"))
    path.write_text("Z9\n", "utf-8")
    with pytest.raises(LoadError, match="is not a rule"):
        read_suppressions(path)


def test_the_shim_is_small_and_knows_every_function() -> None:
    """The shim has under 700 lines, and Python has its 80 function names and its memory size."""
    source = (ROOT / "src" / "qnnmem" / "programs" / "shim.c").read_text("utf-8")
    assert len(source.splitlines()) < 700
    assert len(NAMES) == 72 + 8
    assert (
        SHARED_BYTES
        == 24 + 16 * 1024 + 16 + 24 * 256 + 24 * (1 << 17) + 8 * (2 + 128) + 16 + 24 * 512
    )


def test_the_page_has_every_rule_about_programs() -> None:
    """The reference page has the title and the cure of each rule about programs."""
    page = (ROOT / "docs/reference/commands/check-client.md").read_text("utf-8")
    for rule in rules(PROGRAM).values():
        assert f"### {rule.id}" in page
        assert rule.title in page
        assert rule.cure in page
