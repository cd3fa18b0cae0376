"""Logs read by several workers, some of which die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.fleet import cluster_executor, diagnose_with, jobs_executor
from qnnmem.doctor.fleet import read as fleet_read
from qnnmem.doctor.fleet.executors import Processes
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.source import Stream, find_streams
from qnnmem.errors import LoadError, UsageError

HEAD = b"03-17 16:13:01.123 %5d  1235 E QnnDsp: "
LINES = (
    HEAD + b"Could not create context from binary with err 5005\n",
    HEAD + b"all is well here and nothing has to be said about it\r\n",
    HEAD + b"graph requires estimated allocation of 4194304 KB, limit is 3670016 KB\n",
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a 4 MB log in which one process after the other fails."""
    path = tmp_path_factory.mktemp("fleet") / "device.log"
    with path.open("wb") as file:
        for process in range(1, 60):
            file.write(b"".join(line % process for line in LINES) + LINES[1] % process * 800)
    return path


@pytest.mark.parametrize("make", [ThreadPoolExecutor, Processes], ids=["threads", "processes"])
def test_workers_say_what_one_reader_says(
    log: Path, knowledge: Knowledge, say: Any, make: type[Executor]
) -> None:
    """Threads and processes give the same bytes as a single reader."""
    streams = [Stream((str(log),)), Stream((str(log), str(log)))]
    expected = say(diagnose(streams, knowledge))
    with make(2) as executor:  # type: ignore[call-arg]
        assert say(diagnose_with(streams, knowledge, executor, range_bytes=700_001)) == expected
    assert json.loads(expected)["incidents"]


def test_a_killed_process_changes_nothing(log: Path, knowledge: Knowledge, say: Any) -> None:
    """A pool with a killed worker is replaced, and its tasks are repeated."""
    streams = [Stream((str(log),))]
    expected = say(diagnose(streams, knowledge))
    with Processes(2) as executor:
        os.kill(executor.submit(os.getpid).result(), signal.SIGKILL)
        assert say(diagnose_with(streams, knowledge, executor, range_bytes=300_000)) == expected


def test_an_executor_that_is_gone_changes_nothing(
    log: Path, knowledge: Knowledge, say: Any
) -> None:
    """If the executor is shut down, the log is read locally."""
    streams = [Stream((str(log),))]
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    assert say(diagnose_with(streams, knowledge, executor)) == say(diagnose(streams, knowledge))


def test_an_unreadable_log_is_named(tmp_path: Path, knowledge: Knowledge) -> None:
    """An unreadable log is reported with the name as it was given."""
    name = os.path.relpath(tmp_path / "absent.log")
    with Processes(1) as executor, pytest.raises(LoadError) as caught:
        diagnose_with([Stream((name,))], knowledge, executor)
    assert str(caught.value).startswith(f"{name}: no such file")


def test_few_tasks_wait_at_a_time(log: Path, knowledge: Knowledge, here: Any) -> None:
    """At most two ranges per worker are pending."""
    executor, most = here(width=3), 0
    submit = executor.submit

    def counted(*args: Any) -> Any:
        nonlocal most
        most = max(most, len(executor._held))
        return submit(*args)

    executor.submit = counted
    diagnose_with([Stream((str(log),))], knowledge, executor, range_bytes=50_000).close()
    assert most < 6


def test_jobs_are_threads_or_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large logs use processes, and so does a machine without hyperscan; 0 jobs are refused."""
    with jobs_executor(2, 1 << 32) as executor:
        assert isinstance(executor, Processes)
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    with jobs_executor(2) as executor:
        assert isinstance(executor, Processes)
    with pytest.raises(UsageError, match="must be at least 1"):
        jobs_executor(0)


def test_urls_are_read_in_ranges(log: Path, knowledge: Knowledge, say: Any, tmp_path: Path) -> None:
    """A remote file is read in ranges and gives the same incidents as a local file."""
    pytest.importorskip("fsspec")
    import gzip

    (tmp_path / "device.log").write_bytes(log.read_bytes())
    (tmp_path / "other.gz").write_bytes(gzip.compress(log.read_bytes()))
    # A memory:// file would be one object with one position for all readers.
    streams = find_streams([f"file://{tmp_path}/"])
    assert len(streams) == 2
    expected = say(diagnose(streams, knowledge))
    with ThreadPoolExecutor(2) as executor:
        assert say(diagnose_with(streams, knowledge, executor, range_bytes=999_999)) == expected
    local = json.loads(say(diagnose([Stream((str(log),))], knowledge)))
    assert json.loads(expected)["lines"] == 2 * local["lines"]
    assert len(json.loads(expected)["incidents"]) == 2 * len(local["incidents"])


@pytest.mark.filterwarnings("ignore")  # warnings of other packages
def test_a_killed_dask_worker_changes_nothing(
    log: Path,
    knowledge: Knowledge,
    say: Any,
    cluster: tuple[str, list[subprocess.Popen[bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If one of two workers of a real cluster is killed, the JSON stays the same."""
    address, (_, *workers) = cluster
    streams = [Stream((str(log),))]
    expected = say(diagnose(streams, knowledge))
    take, taken = fleet_read._LogJoiner.take, 0

    def counted(self: Any, *args: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == 5:
            workers[0].send_signal(signal.SIGKILL)
        take(self, *args)

    monkeypatch.setattr(fleet_read._LogJoiner, "take", counted)
    executor: Any = cluster_executor(address)
    try:
        executor._client.wait_for_workers(2, timeout=300)
        found = diagnose_with(streams, knowledge, executor, range_bytes=100_000)
        assert say(found) == expected
        assert taken > 20
        assert workers[0].wait(300) == -signal.SIGKILL
    finally:
        executor.shutdown(wait=False)


def test_nobody_waits_for_workers_after_an_interrupt() -> None:
    """After Ctrl-C, pending tasks are dropped; the workers ignore SIGINT."""
    executor = Processes(1)
    worker = executor.submit(os.getpid).result()
    os.kill(worker, signal.SIGINT)
    assert executor.submit(os.getpid).result() == worker
    late = executor.submit(time.sleep, 3600)
    with pytest.raises(KeyboardInterrupt), executor:
        raise KeyboardInterrupt
    assert isinstance(late.exception(), BrokenExecutor)


@pytest.mark.parametrize("way", [["-"], ["--follow", "-"]])
def test_a_closed_standard_input_is_said(way: list[str]) -> None:
    """A closed standard input gives exit code 2 and one sentence."""
    command = [sys.executable, "-m", "qnnmem", "doctor", *way]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "qnnmem: -: standard input is closed\n"
