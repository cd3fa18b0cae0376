"""Run qnnmem on hostile files, through every reader.

    python tools/fuzz.py --cases 20000 --seed 0 --jobs 2
    python tools/fuzz.py --target logs --target notes
    python tools/fuzz.py --repeat .cache/fuzz/logs-0-17

A case is a verb with its options on a damaged file, or only a parser where a verb would start a
process (`reader` in the table). It passes if the exit code is documented, no traceback is printed,
it ends within 20 s and 1 GiB, prints no control characters, and leaves no file except its complete
output. Every unchanged file of the corpus is tried first, then the requested number of damaged
files. The same seed makes the same cases. A failing case is shrunk by simple steps and stored with
the command to repeat it. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a fork does not copy threads

from fuzz_case import Case, End, Link, Runner, family
from fuzz_targets import READERS, TARGETS, Target

EXAMPLE_LOG = Path(__file__).parents[1] / "examples" / "graph_limit.log"
_SHRINKING = 60  # runs to make a failing case smaller


def cases(targets: Sequence[Target], first: int, count: int, seed: int) -> Iterator[Case]:
    """Yield the cases of a seed, with targets interleaved by their weights."""
    heaviest = max(target.weight for target in targets)
    turns = [
        target
        for step in range(heaviest)
        for target in targets
        # Spread evenly: a target with half the weight gets every second turn.
        if (step + 1) * target.weight // heaviest > step * target.weight // heaviest
    ]
    for index in range(first, first + count):
        yield turns[index % len(turns)].case(seed, index)


@dataclass
class Tally:
    """Outcome of the cases of one target."""

    codes: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    slowest: float = 0.0
    memory: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, end: End) -> None:
        """Count the end of one case."""
        self.codes["hang" if end.code is None else str(end.code)] += 1
        self.failed += bool(end.faults)
        self.kinds.update([family(end.faults)] if end.faults else [])
        self.slowest, self.memory = max(self.slowest, end.seconds), max(self.memory, end.memory)


def warm_up() -> None:
    """Import modules that every fork would otherwise import."""
    from importlib import import_module

    from qnnmem.cli.verbs import Verbs
    from qnnmem.planner.packing import is_compiled

    list(Verbs().values())  # looking a verb up imports it
    for name in ("numpy", "onnx.checker", "onnx.helper", "onnx.numpy_helper", "onnxruntime"):
        import_module(name)
    for name in (
        "qnnmem.doctor.diagnose",
        "qnnmem.report.doctor",
        "qnnmem.loader.onnx.passes.build",
    ):
        import_module(name)
    is_compiled()  # builds the search once
    gc.collect()
    gc.freeze()  # forks would copy every page that a collection touches


def run(
    targets: Sequence[Target], todo: Iterable[Case], runner: Runner, keep: Path, seed: int
) -> dict[tuple[str, str], Tally]:
    """Run all cases; print and store failures as they occur."""
    tallies: dict[tuple[str, str], Tally] = {
        (target.name, how): Tally() for target in targets for how in ("verb", "reader")
    }
    failed: dict[tuple[str, str], list[tuple[Case, End]]] = {}
    for case, end in runner.run(todo):
        tallies[case.target, case.how].add(end)
        if end.faults:
            name = f"{case.target}-{seed}-{case.index}"
            print(f"{name} ({case.kind}): {'; '.join(end.faults)}", flush=True)
            failed.setdefault((case.target, family(end.faults)), []).append((case, end))
    for several in failed.values():
        for case, end in several[:3]:  # three cases of one kind are enough to find the cause
            small = shrink(case, end, runner) if case is several[0][0] else case
            save(keep / f"{case.target}-{seed}-{case.index}", small, end, runner)
    return tallies


# --- What failed ---------------------------------------------------------------------------------


def shrink(case: Case, end: End, runner: Runner) -> Case:
    """Return the case with parts of its file removed, as long as the failure stays the same."""
    if end.code is None:  # each try would take twenty seconds
        return case
    name = next(iter(case.files))
    content, tries = case.files[name], 0
    if not isinstance(content, bytes) or case.stdin:
        return case
    small, step = case, max(len(content) // 2, 1)
    while step and tries < _SHRINKING:
        at, before = 0, len(content)
        while at < len(content) and tries < _SHRINKING:
            shorter = content[:at] + content[at + step :]
            trial = replace(small, files={**small.files, name: shorter})
            tries += 1
            if family(runner.one(trial).faults) == family(end.faults):
                small, content = trial, shorter
            else:
                at += step
        step = step // 2 if len(content) == before else min(step, len(content) // 2)
    return small


def save(folder: Path, case: Case, end: End, runner: Runner) -> None:
    """Store a case so that it can be repeated, with the traceback of its failure."""
    files = folder / "files"
    files.mkdir(parents=True, exist_ok=True)
    for name, content in case.files.items():
        if isinstance(content, bytes):
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            (files / name).write_bytes(content)
    links = {n: [c.target, c.hard] for n, c in case.files.items() if isinstance(c, Link)}
    rest = {"target": case.target, "index": case.index, "kind": case.kind, "words": case.words}
    rest |= {"outputs": case.outputs, "links": links, "main": next(iter(case.files))}
    (folder / "case.json").write_text(json.dumps(rest, indent=1) + "\n", "ascii")
    if case.stdin:
        (folder / "stdin").write_bytes(case.stdin)
    trace = "" if end.code is None else replace(runner, traced=True).one(case).stderr
    command = f"cd {shlex.quote(str(files))} && qnnmem {shlex.join(case.words)}"
    why = "\n".join((*end.faults, "", command, "", trace))
    (folder / "why.txt").write_text(why, "utf-8", "backslashreplace")


def load(folder: Path) -> Case:
    """Return a stored case."""
    rest = json.loads((folder / "case.json").read_text("ascii"))
    files = folder / "files"
    found = {str(p.relative_to(files)): p.read_bytes() for p in files.rglob("*") if p.is_file()}
    main = rest["main"]
    stdin = folder / "stdin"
    return Case(
        rest["target"],
        rest["index"],
        rest["kind"],
        tuple(rest["words"]),
        {main: found.pop(main), **found, **{n: Link(*link) for n, link in rest["links"].items()}},
        stdin.read_bytes() if stdin.exists() else b"",
        tuple(rest["outputs"]),
    )


# --- The program ---------------------------------------------------------------------------------


def summary(tallies: dict[tuple[str, str], Tally]) -> Iterator[str]:
    """Yield the table, and one line about all cases."""
    yield "target           how     cases failed  slowest   memory  exit codes"
    total = Tally()
    for (name, how), one in tallies.items():
        if one.codes:
            codes = ", ".join(f"{code}: {n}" for code, n in sorted(one.codes.items()))
            yield (
                f"{name:16} {how:6} {one.codes.total():6} {one.failed:6} {one.slowest:6.1f} s "
                f"{one.memory >> 20:4} MiB  {codes}"
            )
        total.codes += one.codes
        total.kinds += one.kinds
        total.failed += one.failed
        total.slowest, total.memory = (
            max(total.slowest, one.slowest),
            max(total.memory, one.memory),
        )
    yield from (f"{count} x {kind}" for kind, count in total.kinds.most_common())
    yield (
        f"{total.codes.total()} cases, {total.failed} failed; exit code 70: {total.codes['70']}, "
        f"hangs: {total.codes['hang']}; slowest {total.slowest:.1f} s, "
        f"largest memory {total.memory >> 20} MiB"
    )


def options() -> argparse.ArgumentParser:
    """Return the parser of the program's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="damaged files to try")
    parser.add_argument("--first", type=int, default=0, help=("number of the first damaged file"))
    parser.add_argument("--seed", type=int, default=0)
    names = [target.name for target in TARGETS]
    parser.add_argument(
        "--target", action="append", choices=names, help=("only this target; can be repeated")
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help=("number of cases run at the same time")
    )
    parser.add_argument(
        "--keep", type=Path, default=Path(".cache/fuzz"), help=("folder for failed cases")
    )
    parser.add_argument("--no-corpus", action="store_true", help="damaged files only")
    parser.add_argument(
        "--short", action="store_true", help=("run each corpus file with one command only")
    )
    parser.add_argument("--repeat", type=Path, help="run one stored case")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run; return the exit code."""
    given = options().parse_args(arguments)
    targets = [one for one in TARGETS if not given.target or one.name in given.target]
    warm_up()
    # Not a TemporaryDirectory: forks would also remove it when they exit.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  mkdtemp's
    folder = Path(tempfile.mkdtemp(prefix="fuzz", dir=memory))
    try:
        runner = Runner(folder, READERS, given.jobs, warm_cache(folder))
        if given.repeat:
            end = replace(runner, traced=True).one(load(given.repeat))
            print(end.stderr, *(end.faults or ["good"]), sep="\n")
            return bool(end.faults)
        known = [] if given.no_corpus else [one.corpus(not given.short) for one in targets]
        damaged = cases(targets, given.first, given.cases, given.seed)
        tallies = run(targets, chain(*known, damaged), runner, given.keep, given.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(summary(tallies)), flush=True)
    return 1 if any(one.failed for one in tallies.values()) else 0


def warm_cache(folder: Path) -> Path:
    """Return a cache folder with one run of the doctor and the search; each case gets a copy."""
    from qnnmem.doctor.logs.compiled_search import TEXTS
    from qnnmem.errors import UsageError
    from qnnmem.native_parts import made_objects

    cache = folder / "warm"
    cache.mkdir()
    os.environ["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, "-m", "qnnmem", "doctor", str(EXAMPLE_LOG)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603  it has a failure
    with suppress(UsageError):  # there is no compiler
        made_objects(TEXTS)
    return cache


if __name__ == "__main__":
    sys.exit(main())
