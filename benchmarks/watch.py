"""Measure what watching adds to a call of QNN, and write the page.

    python benchmarks/watch.py            needs a C compiler and the package onnxruntime-qnn
    python benchmarks/watch.py --quick    writes no page

A small program in C, or in Python with ctypes, calls one function of libQnnSaver.so repeatedly,
with and without the observer. Each run reports its fastest of seven turns; the table shows medians
of three runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from qnnmem.installation import package_folder
from qnnmem.programs.functions import NUMBERS
from qnnmem.version import __version__

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results" / "watch.md"
# Caller, function, kind of watching, and its options.
CASES = (
    ("C", "QnnBackend_getBuildId", "only counted", ()),
    ("ctypes", "QnnBackend_getBuildId", "only counted", ()),
    ("C", "QnnLog_setLogLevel", "told afterwards", ()),
    (
        "C",
        "QnnBackend_getBuildId",
        "asked first",
        ("--fail", "backendGetBuildId#999999999=1002"),
    ),
)
ROUNDS = 3
# The loop of watch.c in Python.
SCRIPT = """
import sys, time
from ctypes import *
lists, n, out = POINTER(c_void_p)(), c_uint32(), c_char_p()
CDLL(sys.argv[1]).QnnInterface_getProviders(byref(lists), byref(n))
call = CFUNCTYPE(c_uint64, c_void_p)(cast(lists[0] + 40, POINTER(c_void_p))[int(sys.argv[2])])
def turn(times):
    begun = time.perf_counter_ns()
    for _ in range(times):
        call(byref(out))
    return (time.perf_counter_ns() - begun) / times
print(min(turn(int(sys.argv[3])) for _ in range(7)))
"""


def main() -> int:
    """Build, measure and write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="nothing written")
    given = parser.parse_args()
    folder = package_folder(["libQnnSaver.so"])
    compiler = shutil.which("cc")
    if folder is None or compiler is None:
        parser.error("needs a C compiler and the package onnxruntime-qnn")
    with tempfile.TemporaryDirectory() as name:
        program = Path(name, "watch")
        words = [compiler, "-O2", str(HERE / "watch.c"), "-o", str(program), "-ldl"]
        subprocess.run(words, check=True)  # noqa: S603  # a compiler
        library = folder / "libQnnSaver.so"
        rows = [row(program, library, *case) for case in CASES]
        clock = once([str(program), str(library), str(NUMBERS[CASES[0][1]]), "50000"], Path(name))[
            1
        ]
    text = "\n".join([*page(rows), *summary(rows, clock)])
    print(text)
    if not given.quick:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(HERE.parent)}")
    return 0


def row(
    program: Path, library: Path, caller: str, function: str, how: str, options: tuple[str, ...]
) -> tuple[str, str, float, float]:
    """Return caller and function, kind of watching, and nanoseconds without and with it."""
    times = "50000" if how == "only counted" else "1000"
    own = [str(program)] if caller == "C" else [sys.executable, "-c", SCRIPT]
    words = [*own, str(library), str(NUMBERS[function]), times]
    watched = [sys.executable, "-m", "qnnmem", "watch", *options, "-o", "trace.jsonl", "--force"]
    pairs = []
    for _ in range(ROUNDS):  # alternately
        both = (words, [*watched, "--", *words])
        pairs.append([once(one, program.parent)[0] for one in both])
    bare, seen = (statistics.median(side) for side in zip(*pairs, strict=True))
    return f"{function} from {caller}", how, bare, seen


def once(words: list[str], folder: Path) -> list[float]:
    """Return the numbers in the first line of the program's output."""
    done = subprocess.run(  # noqa: S603  # programs of this project
        words, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.stdout == "":
        raise SystemExit(f"{words} ended with {done.returncode}: {done.stderr[-300:]}")
    return [float(word) for word in done.stdout.split("\n")[0].split()]


def page(rows: list[tuple[str, str, float, float]]) -> list[str]:
    """Return the numbers in Markdown."""
    lines = [
        "# Benchmarks of watching",
        "",
        "Written by `python benchmarks/watch.py`: a program calls one function of the "
        "vendor's libQnnSaver.so in a loop, with and without `qnnmem watch`. These calls do "
        "almost nothing, so their ratios are the worst case; the cost of watching is the "
        "difference.",
        "",
        f"Measured with qnnmem {__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f}.",
        "",
        "| call | watched how | bare, ns | watched, ns | added, ns | ratio |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for called, how, bare, seen in rows:
        lines.append(
            f"| {called} | {how} | {bare:,.0f} | {seen:,.0f} | {seen - bare:,.0f} | "
            f"{seen / bare:.2f} |"
        )
    return lines


def summary(rows: list[tuple[str, str, float, float]], clock: float) -> list[str]:
    """Return sentences that compare the numbers with the goal of 1.2 times a plain call."""
    (_, _, c_bare, c_seen), (_, _, python_bare, python_seen) = rows[:2]
    added = c_seen - c_bare
    return [
        "",
        f"A call that is only counted takes {added:,.0f} ns longer. Called from C, where this "
        f"function alone takes {c_bare:,.0f} ns, that is {c_seen / c_bare:,.0f} times as "
        f"long; called through Python's ctypes, where a call takes {python_bare / 1000:,.1f} "
        f"us, {python_seen / python_bare:.2f} times. Calls of {added / 0.2 / 1000:,.2f} us "
        "and more meet the goal of 1.2; shorter calls miss it. Of functions that are only "
        "counted and take less than 2 us, one call in 16 is timed and represents the other "
        f"15. Longer calls are all timed, which takes two clock readings ({2 * clock:,.0f} ns "
        f"here, {2 * clock / 20:.0f} % of 2 us).",
        "",
        "Calls that are told afterwards (they create, free, finalize or execute) also take "
        "the time of a message to another process and, on a busy machine, of waiting for a "
        "processor.",
    ]


if __name__ == "__main__":
    sys.exit(main())
