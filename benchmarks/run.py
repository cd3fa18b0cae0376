"""Measure the planner and write benchmarks/results/planner.md.

    python benchmarks/run.py            everything, some minutes
    python benchmarks/run.py --quick    a few rows of each table, nothing written

Other planners are measured in the same run, in sequence on the same instance, so that the ratios do
not depend on the machine's load: this project's own single greedy pass (largest first, first fit,
as in simple runtimes), and minimalloc if a program of that name is on the PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import shapes

from qnnmem import __version__, load
from qnnmem.planner import Buffer, Infeasible, Plan, Problem, plan_problem
from qnnmem.planner.greedy import neighbours, orders, place
from qnnmem.planner.instance import arrange
from qnnmem.planner.packing import is_compiled
from qnnmem.units import Bytes

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results" / "planner.md"
CAPACITY = Bytes(1 << 20)


def main() -> int:
    """Run every table and write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few instances; write no page")
    quick = parser.parse_args().quick
    if not is_compiled():  # the compile must not be measured
        parser.error("the search cannot be built: there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        sets = unpack(Path(folder))
        tables = (at_capacity, minimised, real_models, large, other_shapes)
        parts = [f"{introduction()}\n"]
        for table in tables:
            text = "\n".join(table(sets, quick))
            print(f"{text}\n", flush=True)
            parts.append(f"{text}\n")
    if not quick:
        PAGE.write_text("\n".join(parts), encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(HERE.parent)}")
    return 0


def unpack(folder: Path) -> dict[str, list[Path]]:
    """Extract the archived instances; return their files by set."""
    sets = {}
    for archive in sorted((HERE / "data").glob("*.tar.xz")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        name = archive.name.removesuffix(".tar.xz")
        sets[name] = sorted((folder / name).glob("*.csv"))
    return sets


def introduction() -> str:
    """Return the introduction: what was measured, and on which machine."""
    return (
        "# Benchmarks\n\nWritten by `make bench`. Seconds depend on the machine, bytes do "
        "not; compare only numbers of the same table. Ratio is the peak divided by the most "
        "bytes alive at one step, which no plan can go below.\n\nMeasured with qnnmem "
        f"{__version__}, Python {platform.python_version()}, {platform.machine()}, after the "
        "compiled code was loaded."
    )


def problem_of(path: Path, capacity: Bytes | None = None) -> Problem:
    """Return the buffers of a CSV file as a problem."""
    rows = load(path).buffers
    return Problem(tuple(Buffer(b.name, b.size, b.live, b.align) for b in rows), capacity)


def solve(problem: Problem, seconds: float) -> tuple[Plan, float, bool]:
    """Return the best plan, its time in seconds, and whether it is within the capacity."""
    started = time.perf_counter()
    found = plan_problem(problem, seconds)
    spent = time.perf_counter() - started
    if isinstance(found, Infeasible):
        return found.best, spent, False
    return found, spent, True


def simple_greedy(problem: Problem) -> int:
    """Return the peak of one greedy pass, largest first."""
    instance = arrange(problem)
    order = next(iter(orders(instance)))
    return instance.peak_bytes(place(instance, neighbours(instance), order, False))


def minimalloc_seconds(path: Path) -> float | None:
    """Return minimalloc's seconds for an instance at its capacity; None if it is not installed."""
    program = shutil.which("minimalloc")
    if program is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".csv") as out:
        command = [program, f"--input={path}", f"--output={out.name}", f"--capacity={CAPACITY}"]
        started = time.perf_counter()
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603
        return time.perf_counter() - started


def at_capacity(sets: dict[str, list[Path]], quick: bool) -> Iterator[str]:
    """Yield the table of the challenging set as a yes/no question."""
    yield "## Challenging instances at their capacity of 1,048,576 bytes\n"
    yield "| instance | buffers | one greedy pass | fits | qnnmem s | minimalloc s | times faster |"
    yield "|---|--:|--:|---|--:|--:|--:|"
    ours = theirs = 0.0
    for path in sets["minimalloc_challenging"][: 2 if quick else None]:
        plan, spent, fits = solve(problem_of(path, CAPACITY), 60)
        other = minimalloc_seconds(path)
        ours, theirs = ours + spent, theirs + (other or 0)
        ratio = simple_greedy(problem_of(path)) / CAPACITY
        yield (
            f"| {path.name[0]} | {len(plan.problem.buffers)} | {ratio:.3f} "
            f"| {'yes' if fits else 'no'} | {spent:.3f} | {_or_dash(other, '.2f')} "
            f"| {_or_dash(None if other is None else other / spent, '.0f')} |"
        )
    faster = theirs / ours if theirs else None
    total = _or_dash(theirs or None, ".1f")
    yield f"| all | | | | {ours:.2f} | {total} | {_or_dash(faster, '.0f')} |"


def minimised(sets: dict[str, list[Path]], quick: bool) -> Iterator[str]:
    """Yield the table of the challenging set, minimised."""
    limit = 2.0 if quick else 10.0
    yield f"## Challenging instances, as low as possible in {limit:.0f} s\n"
    yield "| instance | bound | peak | ratio | proven minimal | s |"
    yield "|---|--:|--:|--:|---|--:|"
    ratios = []
    for path in sets["minimalloc_challenging"][: 2 if quick else None]:
        plan, spent, _ = solve(problem_of(path), limit)
        ratios.append(plan.peak / plan.lower_bound)
        yield _row(path.name[0], plan, spent)
    yield f"| mean | | | {statistics.mean(ratios):.4f} | | |"


def real_models(sets: dict[str, list[Path]], quick: bool) -> Iterator[str]:
    """Yield the table of lifetimes of real models."""
    found = [solve(problem_of(p), 10) for p in sets["real_models"][: 8 if quick else None]]
    times = [1000 * spent for _, spent, _ in found]
    greedy = [simple_greedy(plan.problem) / plan.lower_bound for plan, _, _ in found]
    yield "## Real models\n"
    yield (
        f"{len(found)} public topologies of {min(len(p.problem.buffers) for p, _, _ in found)} to "
        f"{max(len(p.problem.buffers) for p, _, _ in found)} buffers, alignment 64: "
        f"{sum(plan.optimal for plan, _, _ in found)} proven minimal, "
        f"median {statistics.median(times):.1f} ms, longest {max(times):.0f} ms. One greedy pass "
        f"reaches the minimum on {sum(r == 1 for r in greedy)}, and needs {max(greedy):.2f} times "
        "as much at worst."
    )


def large(sets: dict[str, list[Path]], quick: bool) -> Iterator[str]:
    """Yield the table of thousands to a hundred thousand buffers."""
    names = ("idealloc_iree", "idealloc_somas", "idealloc_iopddl", "iopddl_first_strategy")
    yield "## Large instances, 30 s\n"
    yield "| instance | buffers | ratio | proven minimal | s |"
    yield "|---|--:|--:|---|--:|"
    files = [path for name in names for path in sets[name]]
    problems = [(path.stem, problem_of(path)) for path in files[: 3 if quick else None]]
    for kind in () if quick else ("short", "chain"):
        problems.append((f"{kind}, 100,000", shapes.make(kind, 100_000, 0)))
    for name, problem in problems:
        plan, spent, _ = solve(problem, 30)
        ratio = plan.peak / plan.lower_bound
        yield f"| {name} | {len(problem.buffers):,} | {ratio:.5f} | {_yes(plan)} | {spent:.2f} |"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    yield f"\nPeak memory of the process so far: {memory:.2f} GiB."


def other_shapes(sets: dict[str, list[Path]], quick: bool) -> Iterator[str]:
    """Yield the table of generated instances, with shapes that the planner was not tuned on."""
    del sets
    limit = 2.0 if quick else 10.0
    yield f"## Other shapes, {limit:.0f} s\n"
    yield (
        "Made by `benchmarks/shapes.py`. `cut` has a plan at ratio 1 by construction; `mixed` has "
        "alignments from 1 to 1024, which put the true minimum above the bound.\n"
    )
    yield "| kind | buffers | peak | ratio | proven minimal | s |"
    yield "|---|--:|--:|--:|---|--:|"
    for kind in shapes.KINDS:
        for count in (100,) if quick else (100, 300, 1000, 3000):
            plan, spent, _ = solve(shapes.make(kind, count, 7), limit)
            yield _row(f"{kind} | {count:,}", plan, spent, bound=False)


def _row(name: str, plan: Plan, spent: float, *, bound: bool = True) -> str:
    ratio = plan.peak / max(plan.lower_bound, 1)
    middle = f"{plan.lower_bound:,} | " if bound else ""
    return f"| {name} | {middle}{plan.peak:,} | {ratio:.4f} | {_yes(plan)} | {spent:.2f} |"


def _yes(plan: Plan) -> str:
    return "yes" if plan.optimal else "no"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
