"""Contexts in several threads at once give right results and leak nothing."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnmem import lpai
from qnnmem.lpai.binary import pack
from qnnmem.lpai.program.run import Parts

THREADS = 4
EXECUTES = 1000


def counter(bench: Any) -> Parts:
    """Return a compiled running sum whose result depends on all inputs so far."""
    nodes = [bench.node("Add", ["h", "x"], ["n"]), bench.node("Mul", ["n", "w"], ["y"])]
    weights = {"w": np.full(4, 2, np.float32)}
    proto = bench.model(nodes, {"x": [4], "h": [4]}, ["n", "y"], weights)
    parts: Parts = bench.compile(proto, states=(("h", "n"),))
    return parts


def open_files() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the count


def test_each_thread_has_its_own_context(bench: Any, tmp_path: Path) -> None:
    """Four threads with their own contexts execute 1,000 times each with right results."""
    context = bench.context(counter(bench))
    wrong: list[str] = []
    start = threading.Barrier(THREADS)
    bench.open(context, tmp_path).close()
    path = tmp_path / "tiny.bin"

    def work(step: float) -> None:
        try:
            with lpai.open(path, trusted=True) as session:
                start.wait()
                x = np.full(4, step, np.float32)
                for turn in range(1, EXECUTES + 1):
                    found = session.run({"x": x})["y"]
                    if found.tolist() != [2.0 * step * turn] * 4:
                        wrong.append(f"{found} in turn {turn}")
                wrong.extend(found.sentence for found in session.findings)
        except Exception as exc:  # an error in a thread would otherwise be lost
            wrong.append(repr(exc))

    threads = [threading.Thread(target=work, args=(float(k + 1),)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_contexts_are_rehearsed_once_for_all_threads(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that open the same new binary share one trial run."""
    tried: list[str] = []

    def runs_in_order(parts: Parts, **_how: object) -> bool:
        tried.append(parts.graph.name)
        return True

    monkeypatch.setattr("qnnmem.lpai.runtime.context.runs_in_order", runs_in_order)
    nodes = [bench.node("Exp", ["x"], ["only here"])]
    parts = bench.compile(bench.model(nodes, {"x": [3]}, ["only here"]))
    binary = b"".join(pack(bench.context(parts)))

    def work() -> None:
        lpai.Context.create_from_binary(lpai.Backend.create(), binary).free()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tried == ["tiny"]


def test_executing_leaks_nothing(bench: Any, tmp_path: Path) -> None:
    """Memory grows by less than 16 KiB over 800 executions."""
    x = {"x": np.ones(4, np.float32)}
    with bench.open(bench.context(counter(bench)), tmp_path) as session:
        for _ in range(200):
            session.run(x)
        gc.collect()
        tracemalloc.start()
        try:
            session.run(x)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(800):
                session.run(x)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert grown < 16 << 10


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files by /proc")
def test_freeing_leaves_no_file_and_no_thread(bench: Any, tmp_path: Path) -> None:
    """Contexts with queued executions leave no open file and no thread."""
    parts = counter(bench)
    bench.open(bench.context(parts), tmp_path).close()
    gc.collect()
    files, threads = open_files(), threading.active_count()
    for _ in range(5):
        codes: list[int] = []
        done = threading.Event()

        def notify(code: int, codes: list[int] = codes, done: threading.Event = done) -> None:
            codes.append(code)
            done.set()

        with bench.open(bench.context(parts), tmp_path) as session:
            session.run({"x": np.ones(4, np.float32)})
            session.graph.execute_async(notify=notify)
            assert done.wait(300)
        assert codes == [0]
        del session
    gc.collect()
    assert open_files() <= files
    assert threading.active_count() == threads
