"""Compare an execution by a checked C program with an execution in process.

    python benchmarks/client.py            inputs and outputs of 100 bytes and of 256 KiB
    python benchmarks/client.py --quick    writes no page
    python benchmarks/client.py --profile  also prints a profile to standard error

Both sides execute the same graph with buffers of the caller. After every 50 executions by the
client, the thread that serves the client calls `graph.execute` 50 times. Both sides of such a pair
see the same load of the machine, so the median of their ratios is steady even on a busy machine.
CPU time includes the client's process.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from qnnmem import lpai
from qnnmem.programs.check import client_server
from qnnmem.version import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

PAGE = ROOT / "benchmarks" / "results" / "client.md"
SIZES = {"100 B": 25, "256 KiB": 65_536}  # elements of four bytes
GOALS = {"100 B": 1.26, "256 KiB": 1.5}
WARM_UP, WINDOW, WINDOWS = 100, 50, 100  # executions, executions in a window, windows
Cost = tuple[float, float]  # microseconds of wall time, and of CPU time


def main() -> int:
    """Measure both sizes and write a row for each clock."""
    from client_mistakes import build

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="nothing written")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder / "client", "gcc", ("-O1",))
        for label, elements in SIZES.items():
            binary = prepare(folder / f"{elements}.bin", elements)
            pairs = measure(program, binary, profiled=given.profile)
            rows += (row(label, clock, pairs) for clock in (0, 1))
    text = "\n".join(page(rows))
    print(text)
    if not given.quick:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(ROOT)}")
    return 0


def row(label: str, clock: int, pairs: list[tuple[Cost, Cost]]) -> str:
    """Return one line of the table: the fastest window of each side, and the median ratio."""
    client, bare = (min(side[clock] for side in sides) for sides in zip(*pairs, strict=True))
    ratio = median(client[clock] / bare[clock] for client, bare in pairs)
    name = ("wall", "processors")[clock]
    return f"| {label} | {name} | {bare:,.0f} | {client:,.0f} | {ratio:.2f} | {GOALS[label]:.2f} |"


def page(rows: list[str]) -> list[str]:
    """Return the page in Markdown."""
    return [
        "# Benchmarks of checking a client",
        "",
        "Written by `python benchmarks/client.py`. It compares `QnnGraph_execute` in a C "
        "program under `qnnmem check-client` with `graph.execute` called in process. Both "
        "execute the same graph (one addition) with buffers of the caller. "
        "The time that checking adds does not depend on the graph, so larger graphs have a "
        "ratio nearer to 1. The clock `processors` is the CPU time of both processes. "
        f"Windows of {WINDOW} executions alternate in one process; the ratio is the median of "
        "all pairs of windows. In process, every call checks its tensors anew; a client's "
        "tensors are checked again only if it changed them.",
        "",
        f"Measured with qnnmem {__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f}; the fastest of {WINDOWS} windows.",
        "",
        "| input and output | clock | in process, us | client, us | ratio | goal |",
        "|---|---|--:|--:|--:|--:|",
        *rows,
    ]


def prepare(target: Path, elements: int) -> Path:
    """Write an LPAI binary of one addition, with IO outside scratch; return its path."""
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.INT32, [1, elements]) for n in "xy")
    one = helper.make_tensor("one", TensorProto.INT32, [1], [1])
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "g", [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = target.with_suffix(".onnx")
    onnx.save(model, source)
    words = ["prepare", str(source), "--backend", "lpai", "--io", "outside", "-o", str(target)]
    command = [sys.executable, "-m", "qnnmem", *words]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # our own program
    return target


def measure(program: Path, binary: Path, *, profiled: bool) -> list[tuple[Cost, Cost]]:
    """Return the costs of one execution by the client and in process, for each pair of windows."""
    from client_mistakes import run

    answer, profile = client_server.answer, cProfile.Profile()
    with lpai.open(binary) as session:
        graph, inputs, outputs = session.graph, session._inputs, session._outputs
        pairs = _Pairs(lambda: graph.execute(inputs, outputs))

        def counted(call: Any) -> int:
            if call.name == "QnnGraph_execute":
                pairs.count(call.process.pid)
            return profile.runcall(answer, call) if profiled else answer(call)

        client_server.answer = counted
        try:
            report: Any = run(program, binary, f"runs={WARM_UP + (WINDOWS + 1) * WINDOW}")
        finally:
            client_server.answer = answer
    if report.findings or report.exit_code:
        raise SystemExit(f"the client failed: {report.findings}")
    if profiled:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return pairs.costs


class _Pairs:
    """Costs of windows of the client's executions, each with those of a window in process."""

    def __init__(self, execute: Callable[[], object]) -> None:
        self._execute, self._seen = execute, 0
        self._began: Cost | None = None
        self.costs: list[tuple[Cost, Cost]] = []

    def count(self, client: int) -> None:
        """Count an execution of the client process; at the end of a window, execute in process."""
        self._seen += 1
        if self._seen < WARM_UP or self._seen % WINDOW:
            return
        if self._began is not None:
            cost = _since(self._began, _clocks(client))
            self._execute()  # warm up: the client's data has evicted ours from the caches
            before = _clocks()
            for _ in range(WINDOW):
                self._execute()
            self.costs.append((cost, _since(before, _clocks())))
        self._began = _clocks(client)


def _clocks(client: int = 0) -> Cost:
    """Return wall time, and the CPU time of this thread and of a client's process."""
    tasks = Path(f"/proc/{client}/task").glob("*") if client else ()
    used = sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks)
    return time.perf_counter() * 1e6, (time.thread_time_ns() + used) / 1e3


def _since(before: Cost, now: Cost) -> Cost:
    """Return the costs of one execution of a window."""
    return (now[0] - before[0]) / WINDOW, (now[1] - before[1]) / WINDOW


if __name__ == "__main__":
    sys.exit(main())
