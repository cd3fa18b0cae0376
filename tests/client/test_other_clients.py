"""Programs in other styles than the example: each is clean, and each mistake is found."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from client_mistakes import run
from seeds import share

from qnnmem.lpai.profiles import profile
from qnnmem.programs import process_memory
from qnnmem.programs.check import calls_graph
from qnnmem.programs.check.client_run import ClientOptions, check_client
from qnnmem.programs.check.client_session import ClientProcess, ClientSession
from qnnmem.programs.socket_server import Message
from qnnmem.programs.stacks import Symbols
from qnnmem.results.programs import Frame

PROGRAMS = Path(__file__).parent / "programs"
# By program: the mistake, the rule, the marked line of the call and of another place.
MISTAKES = {
    "sample_app.cpp": [
        ("io-plain-malloc", "R3", "execute", ""),
        ("pool-past-end", "R4", "setConfig", ""),
        ("binary-freed", "R10", "setConfig", "alignedFree"),
        ("shallow-copy", "C4", "execute", "systemFree"),
        ("shallow-late", "C4", "execute", "lateFree"),
        ("profile-leaked", "C8", "profileCreate", ""),
        ("backend-first", "L1", "backendFirst", "contextCreate"),
        ("after-close", "C2", "afterClose", ""),
        ("tensor-unknown", "R9", "execute", ""),
        ("tensor-renumbered", "R9", "execute", ""),
        ("tensor-flat", "R9", "execute", ""),
    ],
    "raii.cpp": [
        ("scratch-grows", "R7", "execute", "grow"),
        ("binary-grows", "R10", "setConfig", "grow"),
        ("buffer-out-of-scope", "R9", "async", ""),
        ("async-stack", "C5", "asyncStack", ""),
        ("context-twice", "R16", "contextFree", "firstFree"),
        ("state-written", "X6", "execute", ""),
        ("turn-missing", "X8", "execute", "execute"),
        ("scratch-replaced", "R7", "setConfig", "flight"),
        ("freed-in-flight", "R16", "contextFree", "flight"),
        ("one-output", "R9", "second", "flight"),
        ("context-released", "L1", "backendFree", "contextCreate"),
    ],
    "sloppy.c": [
        ("pool-unmapped", "R7", "execute", "munmap"),
        ("io-unmapped", "C4", "execute", "munmapIo"),
        ("output-early", "R9", "usedEarly", "early"),
        ("small-early", "R9", "usedEarly", "early"),
        ("past-end", "X2", "pastEnd", ""),
        ("before-start", "X2", "freeGot", ""),
        ("before-page", "X2", "beforePage", ""),
        ("handler-executes", "C9", "handler", ""),
        ("frame-returned", "C5", "execute", ""),
        ("thread-ended", "C5", "execute", ""),
        ("input-freed", "R9", "execute", "freeInput"),
        ("pool-protected", "R4", "execute", ""),
        ("pool-closed", "R7", "execute", "closed"),
        ("pool-moved", "R7", "execute", "moved"),
        ("output-protected", "R9", "execute", ""),
        ("output-replaced", "R9", "execute", ""),
        ("dimension-changed", "R9", "execute", ""),
        ("dimensions-freed", "R9", "execute", "freeDimensions"),
        ("arena-grown", "R8", "execute", "realloc"),
        ("arena-past-end", "R4", "set", ""),
        ("state-shared", "X5", "set", ""),
        ("scratch-alloca", "C5", "set", ""),
        ("child-executes", "C1", "child", ""),
        ("closed-early", "C2", "dlclose", ""),
        ("execute-ignored", "C3", "execute", ""),
        ("static-past-end", "R4", "execute", ""),
        ("used-after", "R16", "execute", "contextFree"),
        ("fault-again", "C7", "fault", ""),
        ("fault-exit", "C7", "fault", ""),
        ("fault-once-more", "C7", "fault", ""),
    ],
    "pipeline.c": [
        ("pool-moved", "R7", "execute", "moved"),
        ("file-shorter", "R8", "execute", ""),
        ("log-first", "C8", "logFirst", "logCreate"),
        ("no-place", "C4", "noPlace", ""),
    ],
    "first_day.cpp": [
        ("plain-vector", "R3", "execute", ""),
        ("new-array", "R3", "execute", ""),
        ("slot-after", "C4", "execute", ""),
        ("slot-before", "C4", "execute", ""),
        ("thread-variable", "C5", "execute", ""),
        ("thread-stack", "C5", "execute", ""),
        ("signal-shared", "R18", "sharedSignal", "flight"),
        ("signal-freed", "L4", "signalFree", "flight"),
        ("callback-frees", "R16", "callbackFrees", ""),
    ],
}


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program, its binary and the marked lines of its source."""

    path: Path
    binary: Path
    lines: dict[str, int]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    """Return all programs, compiled once."""
    compilers = {".c": shutil.which("gcc"), ".cpp": shutil.which("g++")}
    if None in compilers.values():
        pytest.skip("there is no gcc and g++")
    folder = tmp_path_factory.mktemp("programs")
    binary = folder / "two.bin"
    binary.write_bytes(_two_graphs())
    made = {}
    for name in MISTAKES:
        source = PROGRAMS / name
        target = folder / source.stem
        command = [str(compilers[source.suffix]), "-g", "-O1", str(source), "-o", str(target)]
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)
        made[name] = Program(target, binary, _marks(source))
    return made


def _two_graphs() -> bytes:
    from qnnmem.lpai.binary import pack
    from qnnmem.lpai.selftest.models import context

    graphs = tuple(one for one in context().graphs if one.name in ("counter", "double"))
    return b"".join(pack(replace(context(), graphs=graphs)))


def _marks(source: Path) -> dict[str, int]:
    lines = enumerate(source.read_text("utf-8").splitlines(), 1)
    return {mark[1]: n for n, line in lines if (mark := re.search(r"\bat: (\w+)", line))}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_program_without_mistakes_is_clean(programs: dict[str, Program], name: str) -> None:
    """A correct program in another style has no findings."""
    program = programs[name]
    report = run(program.path, program.binary)
    assert report.findings == ()
    assert report.exit_code == 0


def test_what_shares_pages_with_state_may_be_written(programs: dict[str, Program]) -> None:
    """Other data on the pages of a traced state may be written without a finding."""
    program = programs["sloppy.c"]
    options = ClientOptions(
        (str(program.path), str(program.binary)), profile(), time_limit_s=600, trace_state=True
    )
    report = check_client(options)
    assert (report.findings, report.exit_code) == ((), 0)


def test_a_block_is_no_more_aligned_than_it_was_asked_for(programs: dict[str, Program]) -> None:
    """Under the conservative profile, a block is only as aligned as the program asked for."""
    program = programs["sloppy.c"]
    command = (str(program.path), str(program.binary), "past-end")
    strict = profile(alignment="conservative")
    report = check_client(ClientOptions(command, strict, time_limit_s=600))
    assert "R3 output" in [f"{one.rule} {one.sentence[:6]}" for one in report.findings]


def test_a_buffer_at_the_address_of_a_freed_one_is_another(programs: dict[str, Program]) -> None:
    """A new buffer at the address of a freed one gives no finding."""
    program = programs["sample_app.cpp"]
    assert run(program.path, program.binary, "input-anew").findings == ()


@pytest.mark.parametrize("way", ["guarded-between", "thread-waits"])
def test_memory_is_judged_as_it_is_during_the_execution(
    programs: dict[str, Program], way: str
) -> None:
    """Memory is judged at the time of the execution, not by its earlier state."""
    program = programs["sloppy.c"]
    report = run(program.path, program.binary, way)
    assert (report.findings, report.exit_code) == ((), 0)


def test_new_memory_at_the_address_of_an_old_stack_is_not_a_stack(
    programs: dict[str, Program],
) -> None:
    """New memory at the address of an ended thread's stack is not judged as a stack."""
    program = programs["first_day.cpp"]
    report = run(program.path, program.binary, "old-stacks")
    assert (report.findings, report.exit_code) == ((), 0)


def test_a_callback_may_execute(programs: dict[str, Program]) -> None:
    """A callback may execute a graph without waiting for its own end."""
    program = programs["first_day.cpp"]
    report = run(program.path, program.binary, "callback-executes")
    assert (report.findings, report.exit_code) == ((), 0)


@pytest.mark.parametrize("way", ["child-closes", "becomes-another", "workers"])
def test_a_process_is_not_taken_for_another(programs: dict[str, Program], way: str) -> None:
    """A forked child, an exec and equal addresses in two processes cause no confusion."""
    program = programs["sloppy.c"]
    report = run(program.path, program.binary, way)
    assert (report.findings, report.exit_code, report.failed_calls) == ((), 0, {})


def test_a_child_that_comes_back_out_of_a_callback_leaves_the_line_alone(
    programs: dict[str, Program],
) -> None:
    """A child that returns from a callback does not use the connection of its parent."""
    program = programs["sloppy.c"]
    report = run(program.path, program.binary, "child-comes-back")
    assert [one.rule for one in report.findings] == ["R12"]  # the logged call
    assert (report.exit_code, report.failed_calls) == (0, {"QnnGraph_retrieve": 1})


def test_processes_that_are_not_checked_are_not_called_clean(
    programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with more processes than the limit is not called clean."""
    monkeypatch.setattr(process_memory, "MOST_PROCESSES", 1)
    program = programs["sloppy.c"]
    report = run(program.path, program.binary, "child-executes")
    assert "at most 1 processes of one program" in report.not_checked[-1].what
    assert not report.passes


def test_no_notification_comes_before_its_line(
    programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notification is delivered even if the notification thread connects late."""
    process = ClientSession.process

    def late(session: ClientSession, pid: int, hello: Message) -> ClientProcess:
        if hello.words[1]:
            time.sleep(0.5)
        return process(session, pid, hello)

    monkeypatch.setattr(ClientSession, "process", late)
    report = run(programs["raii.cpp"].path, programs["raii.cpp"].binary)
    assert (report.findings, report.exit_code) == ((), 0)


def test_an_execution_whose_output_went_fails_and_that_is_said(
    programs: dict[str, Program],
) -> None:
    """An execution whose output was unmapped fails with C4, and the program still ends."""
    program = programs["sloppy.c"]
    report = run(program.path, program.binary, "output-lost")
    line = program.lines["async"]
    found = [(one.rule, one.place.rpartition("/")[2]) for one in report.findings]
    assert (found, report.exit_code) == ([("C4", f"sloppy.c:{line}")], 0)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("input-gone", "input 'x' was unmapped before the execution"),
        ("input-lost", "input 'x' was unmapped before the execution"),
        ("output-gone", "output 'y' at ADDRESS is not mapped memory"),
        ("output-locked", "output 'y' is read-only memory"),
    ],
)
def test_memory_that_goes_without_an_intercepted_call_is_named(
    programs: dict[str, Program], mistake: str, said: str
) -> None:
    """Memory that was unmapped or locked without an intercepted call is one finding, no leak."""
    program = programs["sloppy.c"]
    report = run(program.path, program.binary, mistake)
    sentences = [re.sub("0x[0-9a-f]+", "ADDRESS", one.sentence) for one in report.findings]
    assert (sentences, report.exit_code) == ([said], 1)


def test_an_execution_in_the_queue_begins_with_the_state_of_the_one_before(
    programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queued execution starts with the state of the previous one, even if results come late."""
    store = calls_graph._store

    def late(*given: Any, **named: Any) -> None:
        time.sleep(0.02)
        store(*given, **named)

    monkeypatch.setattr(calls_graph, "_store", late)
    report = run(programs["pipeline.c"].path, programs["pipeline.c"].binary)
    assert (report.findings, report.exit_code) == ((), 0)


def test_a_finding_of_the_queue_names_the_call_that_was_made(
    programs: dict[str, Program],
) -> None:
    """A finding in a queued execution names QnnGraph_executeAsync, which the program called."""
    program = programs["raii.cpp"]
    report = run(program.path, program.binary, "buffer-out-of-scope")
    assert {one.call for one in report.findings if one.rule == "R9"} == {"QnnGraph_executeAsync"}


@pytest.mark.parametrize("mistake", ["worker-fails", "no-place"])
def test_only_the_mistake_itself_is_told(programs: dict[str, Program], mistake: str) -> None:
    """After a failed call, only the mistake itself is a finding, not the leftovers."""
    program = programs["pipeline.c"]
    report = run(program.path, program.binary, mistake)
    wanted = {"worker-fails": ("R4",), "no-place": ("C4",)}[mistake]
    assert tuple(one.rule for one in report.findings) == wanted


@pytest.mark.parametrize(
    ("name", "mistake", "rule", "line", "other"),
    share([(name, *one) for name, all_of_it in MISTAKES.items() for one in all_of_it], 2),
)
def test_a_mistake_is_found(
    programs: dict[str, Program], name: str, mistake: str, rule: str, line: str, other: str
) -> None:
    """A mistake is found with its rule, the line of the call and the line that freed the memory."""
    program = programs[name]
    places = {
        (
            one.place.rpartition("/")[2],
            one.other.place.rpartition("/")[2] if other and one.other else "",
        )
        for one in run(program.path, program.binary, mistake).findings
        if one.rule == rule
    }
    second = f"{name}:{program.lines[other]}" if other else ""
    assert (f"{name}:{program.lines[line]}", second) in places


def test_a_call_without_a_line_has_that_of_what_is_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that the compiler merged gets the nearest line before its address."""
    merged = range(0x1E3C, 0x1EAD)  # clang -O1 merges this range of the example

    def looked_up(_: Symbols, __: str, path: str, offsets: list[int]) -> list[tuple[Frame, ...]]:
        return [
            (Frame("outer", "", 0, path, at),)
            if at in merged
            else (
                Frame("inner", "client.c", 305, path, at),
                Frame("outer", "client.c", 9, path, at),
            )
            for at in offsets
        ]

    monkeypatch.setattr(Symbols, "_run", looked_up)
    path = tmp_path / "client"
    path.touch()
    symbols = Symbols("/nowhere")
    symbols._tool = "addr2line"
    stack = symbols.stack(((str(path), 0x1E89),))
    assert [(one.function, one.line) for one in stack] == [("inner", 305), ("outer", 9)]
