"""A small knowledge base, an executor without workers, a cluster, and a diagnosis as bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qnnmem.doctor.diagnose import Diagnosis
from qnnmem.doctor.kb.entry import Condition, Entry, Line, When
from qnnmem.doctor.kb.knowledge import Knowledge, pack, unpack
from qnnmem.doctor.logs import scanner
from qnnmem.results.incident import to_json


@pytest.fixture(autouse=True, scope="module")
def cut_short_logs() -> Iterator[None]:
    """Cut even logs of a few lines, so that the difficult places are near a cut."""
    before, scanner.SHORT_LOG = scanner.SHORT_LOG, 0
    yield
    scanner.SHORT_LOG = before


Say = Callable[[Diagnosis], bytes]

LINES = (
    Line("estimate", "graph requires estimated allocation of {needed:KB} KB, limit is {limit:KB}"),
    Line("map-failed", "failed to map {length:bytes} bytes on domain {domain:int} (gross|net) use"),
    Line("prepare-failed", "Failed in graph preparation with {code:code}", call="graph"),
    Line("context-failed", "Could not create context from binary with err {code:code}", "context"),
    Line("skel-retry", "skel not found in {path}, trying the next one", opens=False),
    Line("kernel-map", "adsprpc: mapping refused, {free:KB} kB free"),
    Line("device-model", "[ro.product.model]: [{device:text}]", opens=False),
    Line("backend-build", "Backend build version: {version}", opens=False),
)
ENTRIES = (
    Entry("over-limit", "Over the limit", "mem_graph_limit", "graph", (When(("estimate",)),)),
    Entry(
        "big-map",
        "A mapping too many",
        "mem_dsp_va",
        "context",
        (When(("map-failed",), (Condition("", "length", ">=", (1000,)),)),),
        stage_from_call=True,
    ),
    Entry(
        "mapped-out",
        "The kernel refuses",
        "mem_map_layer",
        "context",
        (When(("map-failed",), needs=(("kernel-map",),)),),
        over=("big-map",),
    ),
    Entry(
        "often",
        "Fails often",
        "mem_unknown",
        "context",
        (When(("context-failed",), (Condition("", "count", ">=", (3,)),)),),
        verdict="memory",
        confidence="low",
    ),
    Entry(
        "retry",
        "Looks in several places",
        "benign_noise",
        "init",
        (When(("skel-retry",), unless=("context-failed",)),),
    ),
)


@pytest.fixture(scope="session")
def knowledge() -> Knowledge:
    """Return a base of eight lines and five entries with every kind of condition."""
    return Knowledge(unpack(msgspec.json.encode(pack(LINES, ENTRIES))))


@pytest.fixture(scope="session")
def say() -> Say:
    """Return a function that gives a diagnosis as bytes, without its duration."""

    def said(diagnosis: Diagnosis) -> bytes:
        with_all = {
            "incidents": [to_json(one) for one in diagnosis.incidents()],
            "noise": diagnosis.noise,
            "verdicts": sorted(diagnosis.verdicts.items()),
            "facts": diagnosis.facts,
            "notes": diagnosis.notes,
            "lines": diagnosis.lines,
            "bytes": diagnosis.bytes,
            "exit": diagnosis.exit_code,
        }
        diagnosis.close()
        return json.dumps(with_all, indent=1).encode()

    return said


class Here(Executor):
    """Runs calls in this thread, last one first, and loses the calls with the given numbers."""

    def __init__(self, lost: frozenset[int] = frozenset(), width: int = 4) -> None:
        self._max_workers = width
        self._lost, self._count = lost, 0
        self._held: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future; its result runs all submitted calls, latest first."""
        held = self._held
        number, self._count = self._count, self._count + 1
        lost = number in self._lost

        class Lazy(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                while held and not self.done():
                    future, call, rest = held.pop()
                    future.set_result(call(*rest))
                if lost:
                    raise BrokenProcessPool("killed")
                return super().result(0)

        future = Lazy()
        held.append((future, fn, args))
        return future


@pytest.fixture(scope="session")
def here() -> type[Here]:
    """Return an executor without workers, for tests of order and of lost calls."""
    return Here


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Start a scheduler and two workers as processes; return their address and handles."""
    pytest.importorskip("distributed")
    address = tmp_path / "scheduler.json"
    start = [sys.executable, "-W", "ignore", "-m", "distributed.cli.dask_scheduler"]
    quiet: dict[str, Any] = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": tmp_path,
    }
    started = [
        subprocess.Popen(
            [*start, "--port", "0", "--no-dashboard", "--scheduler-file", str(address)], **quiet
        )
    ]
    worker = [sys.executable, "-W", "ignore", "-m", "distributed.cli.dask_worker"]
    for _ in range(2):
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        command = [*worker, "--scheduler-file", str(address), *options]
        started.append(subprocess.Popen(command, **quiet))
    try:
        for _ in range(300):
            if address.exists() and address.stat().st_size:
                break
            time.sleep(0.1)
        yield json.loads(address.read_text())["address"], started
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
