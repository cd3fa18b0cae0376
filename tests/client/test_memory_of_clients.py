"""Memory of a client that changes during a check, by accident or on purpose."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from qnnmem.programs import process_memory, stacks
from qnnmem.programs.check import buffers
from qnnmem.programs.check.buffers import ClientBuffers, TooMuchMemory
from qnnmem.programs.check.flights import HOLD_S, Flight, Flights
from qnnmem.programs.process_memory import Gone, Mapping, ProcessMemory, Unreadable
from qnnmem.programs.stacks import Symbols

PAGE = mmap.PAGESIZE
UNMAPPED = 2  # the client's code for unmapped memory
_WAIT_S = 60.0  # generous: the event is immediate on any machine

# Prints the address of a buffer, executes itself again, and finally prints the buffer's sum.
BECOMES_ITSELF = """
#include <stdio.h>
#include <unistd.h>
static char buffer[1 << 16] = {7};
int main(int argc, char **argv) {
    unsigned i, sum = 0;
    printf("%p\\n", (void *)buffer);
    fflush(stdout);
    getchar();
    if (argc == 1) return execl(argv[0], argv[0], "again", (char *)NULL);
    for (i = 0; i < sizeof buffer; i++) sum += (unsigned char)buffer[i];
    printf("%u\\n", sum);
    return 0;
}
"""


@pytest.fixture
def pages() -> tuple[mmap.mmap, int]:
    """Return memory of this process and its address; this process is the client."""
    made = mmap.mmap(-1, 8 * PAGE)
    return made, numpy.frombuffer(made, numpy.uint8).__array_interface__["data"][0]


def test_what_was_freed_takes_no_room(
    pages: tuple[mmap.mmap, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freed buffers do not count against the memory limit, so a long run may use many buffers."""
    monkeypatch.setattr(buffers, "_MOST_BYTES", 3 * PAGE)
    start = pages[1]
    memory = ProcessMemory(os.getpid())
    mine = ClientBuffers(memory)
    for at in (0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0):
        assert not mine.take(start + at * PAGE, PAGE).freed
        mine.free(start + at * PAGE, PAGE, UNMAPPED, ())
    for at in range(3):
        mine.take(start + at * PAGE, PAGE)
    with pytest.raises(TooMuchMemory):
        mine.take(start + 4 * PAGE, PAGE)
    memory.close()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_what_follows_a_program_is_not_written_to(tmp_path: Path) -> None:
    """After a program replaces itself with exec, nothing is written to its old addresses."""
    (tmp_path / "program.c").write_text(BECOMES_ITSELF, "utf-8")
    words = ("gcc", "-no-pie", str(tmp_path / "program.c"), "-o", str(tmp_path / "program"))
    subprocess.run(words, check=True)
    with subprocess.Popen(
        [str(tmp_path / "program")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        address = int(child.stdout.readline(), 16)
        memory = ProcessMemory(child.pid)
        there = numpy.ones(max(1 << 16, process_memory.WORTH_IT), numpy.uint8)
        memory.fill(there, address)
        assert there.sum() == 7
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert int(child.stdout.readline(), 16) == address
        for move in (memory.fill, memory.store):
            with pytest.raises(Unreadable):
                move(there, address)
        child.stdin.close()
        assert child.stdout.readline() == b"7\n"
        memory.close()


def test_a_process_that_ends_has_unmapped_nothing() -> None:
    """A process that was killed has not unmapped its buffers."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"runs\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"runs\n"
        memory = ProcessMemory(child.pid)
        start = next(one.start for one in memory.mappings() if one.readable and one.writable)
        mine = ClientBuffers(memory)
        buffer = mine.take(start, 100)
        child.kill()
        child.wait()
        mine.refresh(buffer)
        assert not buffer.freed
        with pytest.raises(Gone):
            mine.take(start, 200)
        memory.close()


def test_a_pipe_in_the_place_of_a_library_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe in place of a mapped library does not block the symbol lookup."""
    os.mkfifo(tmp_path / "library.so")

    class Mapped(ProcessMemory):
        def __init__(self) -> None:
            pass

        def mappings(self) -> list[Mapping]:
            return [Mapping(0x1000, 0x2000, True, False, 0, str(tmp_path / "library.so"))]

    found: list[object] = []
    look = threading.Thread(
        target=lambda: found.append(Symbols("nowhere").trace(Mapped(), [0x1011])), daemon=True
    )
    look.start()
    look.join(_WAIT_S)
    assert found == [((str(tmp_path / "library.so"), 0x10),)]


def test_a_line_of_a_header_has_the_name_of_the_header(tmp_path: Path) -> None:
    """A line of a header has the header's name, although addr2line may name the source file."""
    compiler, tool = shutil.which("gcc"), shutil.which("addr2line")
    if compiler is None or tool is None:
        pytest.skip("there is no gcc with binutils")
    (tmp_path / "one.h").write_text("static int one(void) {\n    return 1;\n}\n", "utf-8")
    (tmp_path / "program.c").write_text('#include "one.h"\nint main(void) { return one(); }\n')
    program = tmp_path / "program.o"
    subprocess.run([compiler, "-g", "-c", tmp_path / "program.c", "-o", program], check=True)
    symbols = Symbols("nowhere")
    symbols._llvm, symbols._tool = None, tool
    (frame,) = symbols.stack(((str(program), 4),))
    assert (frame.file, frame.line) == (str(tmp_path / "one.h"), 2)


def test_lines_are_looked_up_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line lookups stop after 60 seconds in total."""
    now, looks = [0.0], []

    def run(command: list[str], *, timeout: float, **_: object) -> object:
        looks.append(timeout)
        now[0] += timeout
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(stacks, "monotonic", lambda: now[0])
    monkeypatch.setattr(subprocess, "run", run)
    symbols = Symbols("nowhere")
    symbols._tool = symbols._llvm = "addr2line"
    for at in range(100):
        (frame,) = symbols.stack(((__file__, at),))
        assert (frame.module, frame.offset, frame.line) == (__file__, at, 0)
    assert looks == [20.0, 20.0, 20.0]


def test_an_execution_is_held_while_another_call_is_answered() -> None:
    """An execution is held back while another call of its process is answered."""
    process = SimpleNamespace(pid=os.getpid(), served=0, at_work={1})
    graph: Any = SimpleNamespace(process=process)
    flights = Flights()
    done = threading.Event()

    def hold() -> None:
        flights.hold(Flight(graph, 0, False, (), (), ()))
        done.set()

    held = threading.Thread(target=hold)
    held.start()
    assert not done.wait(5 * HOLD_S)
    process.at_work.clear()
    assert done.wait(_WAIT_S)
    held.join()
