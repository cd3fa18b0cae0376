"""Compare an execution by a checked C program with an execution in process.

    python benchmarks/client.py            inputs and outputs of 100 bytes and of 256 KiB
    python benchmarks/client.py --quick    writes no page
    python benchmarks/client.py --profile  also prints a profile to standard error

Both sides execute the same graph with buffers of the caller, in alternation. The in-process side
calls only `graph.execute`. The benchmark measures wall time and CPU time; both include the client's
process. On a busy machine, wall time depends on other processes. The time of the client's start
does not count: a long run minus a short run gives the client's time.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qnnmem.version import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

PAGE = ROOT / "benchmarks" / "results" / "client.md"
SIZES = {"100 B": 25, "256 KiB": 65_536}  # elements of four bytes
GOALS = {"100 B": 2.0, "256 KiB": 1.5}
SHORT, LONG, TURNS = 50, 1050, 7
Cost = tuple[float, float]  # seconds of wall time, and of CPU time


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
            turns = [(in_process(binary), *client(program, binary)) for _ in range(TURNS)]
            rows += (row(label, clock, turns) for clock in (0, 1))
            if given.profile:
                profiled(program, binary)
    text = "\n".join(page(rows))
    print(text)
    if not given.quick:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(ROOT)}")
    return 0


def row(label: str, clock: int, turns: list[tuple[Cost, Cost, Cost]]) -> str:
    """Return one line of the table, from the fastest run of each kind."""
    bare, short, long = (min(one[clock] for one in runs) * 1e6 for runs in zip(*turns, strict=True))
    there = (long - short) / (LONG - SHORT)
    which, goal = ("wall", "processors")[clock], GOALS[label]
    return f"| {label} | {which} | {bare:,.0f} | {there:,.0f} | {there / bare:.2f} | {goal:.1f} |"


def page(rows: list[str]) -> list[str]:
    """Return the page in Markdown."""
    return [
        "# Benchmarks of checking a client",
        "",
        "Written by `python benchmarks/client.py`. It compares `QnnGraph_execute` in a C "
        "program under `qnnmem check-client` with `graph.execute` called in process. Both "
        "execute the same graph (one addition) with buffers of the caller, in alternation. "
        "The time that checking adds does not depend on the graph, so larger graphs have a "
        "ratio nearer to 1. If the machine has more load than cores, wall time includes "
        "waiting for a core; then compare the CPU time of both processes (clock "
        "`processors`).",
        "",
        f"Measured with qnnmem {__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f}; the fastest of {TURNS} rounds of "
        f"{LONG - SHORT:,} executions.",
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


def in_process(binary: Path) -> Cost:
    """Return the cost of one in-process execution in Python."""
    from qnnmem import lpai

    with lpai.open(binary) as session:
        graph, inputs, outputs = session.graph, session._inputs, session._outputs
        for _ in range(SHORT):
            graph.execute(inputs, outputs)
        before = spent()
        for _ in range(LONG - SHORT):
            graph.execute(inputs, outputs)
        wall, processors = since(before)
        return wall / (LONG - SHORT), processors / (LONG - SHORT)


def spent() -> Cost:
    """Return wall time, and the CPU time of this process and its ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)


def since(before: Cost) -> Cost:
    """Return the wall time and CPU time spent since `before`."""
    now = spent()
    return now[0] - before[0], now[1] - before[1]


def client(program: Path, binary: Path) -> tuple[Cost, Cost]:
    """Return the costs of a short and of a long run of the client."""
    from client_mistakes import run

    times = []
    for count in (SHORT, LONG):
        before = spent()
        report: Any = run(program, binary, f"runs={count}")
        times.append(since(before))
        if report.findings or report.exit_code:
            raise SystemExit(f"the client failed: {report.findings}")
    return times[0], times[1]


def profiled(program: Path, binary: Path) -> None:
    """Print a profile of the thread that serves the client."""
    import cProfile
    import pstats
    import threading

    from client_mistakes import run

    profile = cProfile.Profile()
    before = threading.Thread.run

    def counted(self: threading.Thread) -> None:
        if "_serve" in self.name:
            profile.runcall(before, self)
        else:
            before(self)

    threading.Thread.run = counted  # type: ignore[method-assign]
    try:
        run(program, binary, f"runs={LONG}")
    finally:
        threading.Thread.run = before  # type: ignore[method-assign]
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    sys.exit(main())
