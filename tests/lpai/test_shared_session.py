"""With one session, graph or context in several threads, each caller gets its own results."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnmem.errors import QnnError
from qnnmem.lpai.runtime.heap import Heap, TcmPool
from qnnmem.lpai.runtime.queue import ExecutionQueue
from qnnmem.qnn.enums import MemType

THREADS = 4
RUNS = 250
FREED = 6039


@pytest.fixture(autouse=True)
def often_switched() -> Iterator[None]:
    """Make the interpreter switch threads as often as possible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def in_threads(work: Callable[[int], None], count: int = THREADS) -> list[str]:
    """Run the work in several threads, numbered from 1, and return what they raise."""
    start = threading.Barrier(count)
    raised: list[str] = []

    def guarded(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as exc:  # an error in a thread would otherwise be lost
            raised.append(repr(exc))

    threads = [threading.Thread(target=guarded, args=(k + 1,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def doubling(bench: Any, **options: Any) -> Any:
    """Return a compiled y = 2 x."""
    nodes = [bench.node("Mul", ["x", "w"], ["y"])]
    proto = bench.model(nodes, {"x": [64]}, ["y"], {"w": np.full(64, 2, np.float32)})
    return bench.compile(proto, **options)


def counting(bench: Any) -> Any:
    """Return a compiled running sum: y is the sum of all x so far."""
    nodes = [bench.node("Add", ["h", "x"], ["n"]), bench.node("Identity", ["n"], ["y"])]
    proto = bench.model(nodes, {"x": [4], "h": [4]}, ["n", "y"], {})
    return bench.compile(proto, states=(("h", "n"),))


def test_threads_that_share_a_session_get_their_own_results(bench: Any, tmp_path: Path) -> None:
    """Threads that share a session never get another thread's inputs or outputs."""
    wrong: list[str] = []
    kept: list[tuple[float, Any]] = []
    with bench.open(bench.context(doubling(bench)), tmp_path) as session:

        def work(number: int) -> None:
            for turn in range(RUNS):
                value = float(1000 * number + turn)
                found = session.run({"x": np.full(64, value, np.float32)})["y"]
                kept.append((value, found))
                if found.tolist() != [2 * value] * 64:
                    wrong.append(f"{found[0]} for {value}")

        assert in_threads(work) == []
        assert session.counters.executions == THREADS * RUNS
    assert wrong == []
    assert all(found.tolist() == [2 * value] * 64 for value, found in kept)


def test_io_in_buffers_of_the_session_is_shared_as_safely(bench: Any, tmp_path: Path) -> None:
    """With IO outside scratch, threads that share a session still get their own results."""
    from qnnmem.planner import Io

    wrong: list[str] = []
    with bench.open(bench.context(doubling(bench, io=Io.OUTSIDE)), tmp_path) as session:

        def work(number: int) -> None:
            for turn in range(RUNS):
                value = float(1000 * number + turn)
                found = session.run({"x": np.full(64, value, np.float32)})["y"]
                if found.tolist() != [2 * value] * 64:
                    wrong.append(f"{found[0]} for {value}")

        assert in_threads(work) == []
    assert wrong == []


def test_state_goes_through_all_threads_in_one_order(bench: Any, tmp_path: Path) -> None:
    """Runs from several threads update the state one after another, so all sums differ."""
    sums: list[float] = []
    with bench.open(bench.context(counting(bench)), tmp_path) as session:

        def work(_: int) -> None:
            for _turn in range(RUNS):
                sums.append(float(session.run({"x": np.ones(4, np.float32)})["y"][0]))

        assert in_threads(work) == []
    assert sorted(sums) == [float(k + 1) for k in range(THREADS * RUNS)]


def test_a_snapshot_is_of_a_moment_between_two_runs(bench: Any, tmp_path: Path) -> None:
    """Snapshots, resets and runs from several threads never see a half-written state."""
    torn: list[str] = []
    with bench.open(bench.context(counting(bench)), tmp_path) as session:

        def work(number: int) -> None:
            for turn in range(RUNS // 2):
                if number == 1:
                    state = np.frombuffer(session.snapshot()[0], np.float32)[:4]
                    if len(set(state.tolist())) != 1:
                        torn.append(str(state))
                elif number == 2 and turn % 10 == 0:
                    session.reset()
                else:
                    found = session.run({"x": np.ones(4, np.float32)})["y"]
                    if len(set(found.tolist())) != 1:
                        torn.append(str(found))

        assert in_threads(work) == []
        assert session.findings == ()
    assert torn == []


def test_a_session_and_its_queue_do_not_wait_for_each_other(bench: Any, tmp_path: Path) -> None:
    """Runs and queued executions of one graph do not deadlock."""
    codes: list[int] = []
    wrong: list[str] = []
    with bench.open(bench.context(doubling(bench)), tmp_path) as session:

        def work(number: int) -> None:
            for turn in range(RUNS // 2):
                if number == 1:
                    session.graph.execute_async(notify=codes.append)
                    continue
                value = float(1000 * number + turn)
                found = session.run({"x": np.full(64, value, np.float32)})["y"]
                if found.tolist() != [2 * value] * 64:
                    wrong.append(f"{found[0]} for {value}")

        assert in_threads(work) == []
    assert wrong == []
    assert codes == [0] * (RUNS // 2)


def test_closing_while_others_run_is_refused_to_them_not_wrong(bench: Any, tmp_path: Path) -> None:
    """Closing a session during runs gives right results before and code 6039 after."""
    for _ in range(10):
        wrong: list[str] = []
        refused: list[int] = []
        session = bench.open(bench.context(doubling(bench)), tmp_path)

        def work(
            number: int, session: Any = session, wrong: list[str] = wrong, refused: Any = refused
        ) -> None:
            for turn in range(50):
                if number in (1, 2):
                    if turn == 5:
                        session.close()
                    continue
                value = float(1000 * number + turn)
                try:
                    found = session.run({"x": np.full(64, value, np.float32)})["y"]
                except QnnError as exc:
                    refused.append(exc.code)
                    return
                if found.tolist() != [2 * value] * 64:
                    wrong.append(f"{found[0]} for {value}")

        assert in_threads(work) == []
        assert wrong == []
        assert set(refused) <= {FREED}


def test_work_that_asks_for_work_goes_first(bench: Any, tmp_path: Path) -> None:
    """An execution queued during another one runs without a deadlock."""
    with bench.open(bench.context(doubling(bench)), tmp_path) as session:
        session.graph.execute_async()  # starts the worker
        session.run({"x": np.ones(64, np.float32)})
        codes: list[int] = []

        def nested() -> int:
            session.graph.execute_async(notify=codes.append)
            return int(session.graph.execute())

        assert session.graph.undisturbed(nested) == 0
    assert codes == [0]


def test_a_context_cannot_be_freed_by_what_it_executes(bench: Any, tmp_path: Path) -> None:
    """Freeing a context from inside its own execution fails with 1005."""
    with bench.open(bench.context(doubling(bench)), tmp_path) as session:
        with pytest.raises(QnnError) as caught:
            session.graph.undisturbed(session.context.free)
        assert caught.value.code == 1005
        assert session.run({"x": np.ones(64, np.float32)})["y"].tolist() == [2.0] * 64


def test_scratch_that_is_freed_during_an_execution_fails_it(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scratch freed during an execution makes that execution fail with 6039."""
    with bench.open(bench.context(doubling(bench)), tmp_path) as session:
        session.run({"x": np.ones(64, np.float32)})
        run = session.graph._execution.run

        def freed_meanwhile(*given: Any) -> Any:
            outcome = run(*given)
            session._buffers[0].free()
            return outcome

        monkeypatch.setattr(session.graph._execution, "run", freed_meanwhile)
        with pytest.raises(QnnError) as caught:
            session.run({"x": np.ones(64, np.float32)})
        assert caught.value.code == FREED


def test_threads_that_retrieve_a_graph_get_the_same_one(bench: Any, tmp_path: Path) -> None:
    """Threads that retrieve one graph get the same object."""
    with bench.open(bench.context(doubling(bench)), tmp_path) as session:
        context = session.context
        context._graphs.clear()
        found: list[Any] = []
        assert in_threads(lambda _: found.append(context.graph_retrieve("tiny"))) == []
        assert len(set(map(id, found))) == 1
        context._graphs["tiny"] = session.graph


def test_an_execution_is_served_or_refused_when_the_queue_closes(bench: Any) -> None:
    """When the queue closes, each execution is either run or refused."""
    from qnnmem.lpai.runtime.backend import Backend

    for _ in range(30):
        queue = ExecutionQueue(Backend.create(), 2)
        served: list[int] = []
        taken: list[int] = []
        refused: list[int] = []

        def work(
            number: int,
            queue: ExecutionQueue = queue,
            served: Any = served,
            taken: Any = taken,
            refused: Any = refused,
        ) -> None:
            if number == 1:
                queue.refuse()
                queue.close()
                return
            for turn in range(5):
                try:
                    queue.submit(lambda: served.append(1))
                except QnnError as exc:
                    refused.append(exc.code)
                    return
                taken.append(turn)

        assert in_threads(work) == []
        assert len(served) == len(taken)
        assert set(refused) <= {FREED}


def test_a_pause_after_the_end_began_holds_nobody_back(bench: Any, tmp_path: Path) -> None:
    """`pause` after the free has begun has no effect, so the free does not hang."""
    session = bench.open(bench.context(doubling(bench)), tmp_path)
    session.context.queue.refuse()
    session.graph.pause()
    assert session.graph._resumed.is_set()
    session.close()


def test_no_thread_gets_more_than_the_pool_allows() -> None:
    """The TCM pool's limit on buffers holds across threads."""
    from qnnmem.errors import TcmFatal

    pool = TcmPool(lambda _level, _text: None, 1 << 20, 8)
    refused: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            try:
                pool.allocate(64)
            except TcmFatal:
                refused.append(number)

    assert in_threads(work) == []
    assert len(pool.buffers) == 8
    assert len(refused) == THREADS * 20 - 8


def test_threads_that_allocate_from_one_heap_share_no_byte() -> None:
    """Buffers that several threads allocate from one heap never overlap."""
    heap = Heap(MemType.DDR)

    def work(number: int) -> None:
        for turn in range(50):
            buffer = heap.allocate(64 * number)
            if turn % 2:
                buffer.free()

    assert in_threads(work) == []
    spans = sorted((b.heap_address, b.heap_address + b.size) for b in heap.live)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
