"""Kills the example client at random moments; its checker must survive and leak nothing.

The runs differ in how they execute: in one thread, in three, or through the queue. After each run
the checker has the same threads, descriptors, children and temporary files as before.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from client_mistakes import one_graph

from qnnmem.lpai.profiles import profile
from qnnmem.programs.check.client_run import ClientOptions, check_client
from qnnmem.results.programs import ClientResult

WAYS = ((), ("async",), ("threads=3",), ("threads=3", "async"), ("memory-not-deregistered",))
_SLOWEST_S = 1.0  # until the kill
_SETTLE_S = 60.0


def children() -> list[int]:
    """Return the child processes that are not collected."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for one in lists for pid in one.read_text("ascii").split()]


def held(folder: Path) -> Counter[str]:
    """Return the counts of everything that a checker could leak."""
    return Counter(
        threads=threading.active_count(),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        children=len(children()),
        files=len(list(folder.iterdir())),
    )


def kill_later(name: str, delay_s: float) -> threading.Thread:
    """Kill the client some time after its start."""

    def work() -> None:
        end = time.monotonic() + 600
        while time.monotonic() < end:
            for pid in children():
                if _name(pid) == name:
                    time.sleep(delay_s)
                    os.kill(pid, signal.SIGKILL)
                    return
            time.sleep(0.001)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except OSError:
        return ""


def one_run(program: Path, binary: Path, way: tuple[str, ...], delay_s: float) -> ClientResult:
    """Return the report on a client that would run for long but is killed."""
    killer = kill_later(program.name, delay_s)
    command = (str(program), str(binary), "runs=100000000", *way)
    report = check_client(ClientOptions(command, profile(), time_limit_s=600))
    killer.join()
    return report


def problems(count: int, seed: int, folder: Path, program: Path) -> Iterator[str]:
    """Yield what is leaked or not reported."""
    chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
    binary = folder / "counter.bin"
    binary.write_bytes(one_graph())
    temporary = folder / "temporary"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    one_run(program, binary, (), 0.5)  # opens what stays open for the whole process
    before = held(temporary)
    for number in range(count):
        way, delay_s = chance.choice(WAYS), chance.random() ** 2 * _SLOWEST_S
        report = one_run(program, binary, way, delay_s)
        where = f"run {number} ({' '.join(way) or 'plain'}, after {delay_s:.3f} s)"
        if report.ended_by != "SIGKILL" or report.timed_out:
            yield f"{where}: ended by {report.ended_by or report.exit_code}"
        end = time.monotonic() + _SETTLE_S
        while (left := held(temporary) - before) and time.monotonic() < end:
            time.sleep(0.01)
        if left:
            yield f"{where}: left behind {dict(left)}"
