"""Lost workers: the command finishes their work itself."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, sentence, verb

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.fleet import cluster_executor, diagnose_with
from qnnmem.doctor.fleet import read as fleet_read
from qnnmem.doctor.fleet.executors import DaskWorkers
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.source import Stream
from qnnmem.errors import UsageError

LINE = b"E QnnDsp: graph requires estimated allocation of 4194304 KB, limit is 3670016 KB\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of twenty ranges."""
    path = tmp_path / "device.log"
    path.write_bytes((LINE + b"all is well and nothing has to be said about it\n" * 2000) * 20)
    return path


class NeverReady(Executor):
    """Accepts every task and finishes only the first few."""

    _max_workers = 2

    def __init__(self, finished: int) -> None:
        self.asked, self._finished = 0, finished

    def submit(self, fn: Any, /, *args: Any, **_more: Any) -> Future[Any]:
        """Return a future, finished only for the first few tasks."""
        self.asked += 1
        future: Future[Any] = Future()
        if self.asked <= self._finished:
            future.set_result(fn(*args))
        return future


@pytest.mark.parametrize("finished", [0, 7])
def test_tasks_that_never_finish_are_done_here(
    log: Path, knowledge: Knowledge, say: Any, monkeypatch: pytest.MonkeyPatch, finished: int
) -> None:
    """Tasks that never finish are done locally, after one wait for all tasks together."""
    monkeypatch.setattr(fleet_read, "_STUCK_S", 0.05)
    monkeypatch.setattr(fleet_read, "_LOOK_S", 0.01)
    asked = iter(range(15))  # more waits raise an error
    monkeypatch.setattr(fleet_read, "answers", lambda _: next(asked) >= 0)
    streams = [Stream((str(log),))]
    executor = NeverReady(finished)
    found = diagnose_with(streams, knowledge, executor, range_bytes=100_000)
    assert say(found) == say(diagnose(streams, knowledge))
    assert executor.asked > 15


class Silent:
    """A client whose scheduler is gone."""

    status = "connecting"

    def get_executor(self, **_settings: Any) -> Executor:
        """Return unreachable workers."""
        return NeverReady(0)

    def close(self, timeout: float) -> None:
        """Raise a timeout."""
        raise TimeoutError


def test_a_cluster_without_an_answer_is_given_up(
    log: Path, knowledge: Knowledge, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster without a connection is given up earlier than a slow task."""
    monkeypatch.setattr(fleet_read, "_LOST_S", 0.05)
    monkeypatch.setattr(fleet_read, "_LOOK_S", 0.01)
    streams = [Stream((str(log),))]
    with DaskWorkers(Silent()) as executor:
        assert executor.cores() == 0
        found = diagnose_with(streams, knowledge, executor, range_bytes=100_000)
        assert say(found) == say(diagnose(streams, knowledge))


def test_an_executor_that_raises_anything_is_given_up(
    log: Path, knowledge: Knowledge, say: Any
) -> None:
    """An executor that raises any error is given up, and the log is read locally."""

    class Broken(NeverReady):
        def submit(self, fn: Any, /, *_args: Any, **_more: Any) -> Future[Any]:
            raise OSError("stream is closed")

    streams = [Stream((str(log),))]
    assert say(diagnose_with(streams, knowledge, Broken(0))) == say(diagnose(streams, knowledge))


def test_a_pipe_is_read_here(knowledge: Knowledge, tmp_path: Path) -> None:
    """A pipe is read locally, since its bytes come once and workers cannot open its name."""
    os.mkfifo(tmp_path / "pipe")
    ends = os.open(tmp_path / "pipe", os.O_RDWR), os.open(tmp_path / "pipe", os.O_WRONLY)
    os.write(ends[1], LINE)
    executor = NeverReady(9)
    name = f"/dev/fd/{ends[0]}" if sys.platform == "linux" else str(tmp_path / "pipe")
    assert fleet_read._only_here(name)
    assert fleet_read._only_here("-")
    assert not fleet_read._only_here(str(tmp_path / "gone"))
    assert not fleet_read._only_here("s3://bucket/x")
    for end in ends:
        os.close(end)
    assert executor.asked == 0


@pytest.mark.filterwarnings("ignore")  # warnings of other packages
def test_a_killed_scheduler_changes_nothing(
    log: Path,
    knowledge: Knowledge,
    say: Any,
    cluster: tuple[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the scheduler of a real cluster is killed, the JSON stays the same."""
    address, processes = cluster
    monkeypatch.setattr(fleet_read, "_LOST_S", 0.5)
    monkeypatch.setattr(fleet_read, "_LOOK_S", 0.1)
    streams = [Stream((str(log),))]
    take, taken = fleet_read._LogJoiner.take, 0

    def counted(self: Any, *args: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == 3:
            processes[0].send_signal(signal.SIGKILL)
            processes[0].wait(300)
        take(self, *args)

    with cluster_executor(address) as executor:
        monkeypatch.setattr(fleet_read._LogJoiner, "take", counted)
        found = diagnose_with(streams, knowledge, executor, range_bytes=50_000)
    monkeypatch.undo()
    assert taken > 20
    assert say(found) == say(diagnose(streams, knowledge))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tls://127.0.0.1:1", "TLS"),
        ("foo://x", "unknown address scheme"),
        ("nowhere", "missing port"),
        ("tcp://[", "invalid address"),
        (" ", "takes the address"),
        ("", "takes the address"),
    ],
)
def test_an_address_that_is_none_is_one_sentence(address: str, why: str, log: Path) -> None:
    """An invalid cluster address gives exit code 2 and one sentence."""
    pytest.importorskip("distributed")
    done = verb("doctor")(log, "--cluster", address)
    assert exit_code(done) == 2
    assert why in sentence(done)


def test_an_address_where_nobody_answers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a cluster is refused after a timeout."""
    pytest.importorskip("distributed")
    monkeypatch.setattr("qnnmem.doctor.fleet.executors._CONNECT_S", 0.2)
    with pytest.raises(UsageError, match=r"no Dask cluster answers at tcp://127\.0\.0\.1:1"):
        cluster_executor("tcp://127.0.0.1:1")
