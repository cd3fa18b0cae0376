"""Kills `qnnmem fix` repeatedly and checks the files that remain.

Run it as `python tests/kill_fix.py --kills 100 --seed 7`. ¶ SIGKILL arrives at a random moment, or
just before a file is written, named or set aside. After each kill, no file in the output folder is
half written. An undisturbed run then gives the same bytes as without kills, needs no --force, and
leaves no temporary file.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAKER = Path(__file__).resolve().parent.parent / "examples" / "make_models.py"
STEPS = ("_fill", "put_in_place", "_make_name")  # steps of qnnmem.atomic_file for three files
_FILES = 3
_IN_A_ROW = 5  # kills before one undisturbed run
_LONG_AGO = 60.0  # seconds: old enough to count as abandoned


@dataclass(frozen=True, slots=True)
class KillCount:
    """The number of killed runs, of runs that ended before the kill, and the faults."""

    killed: int
    ended_before: int
    faults: tuple[str, ...]


class FixKiller:
    """Fixes one model in forks of this process, which has all modules loaded."""

    def __init__(self, model: Path, words: Sequence[str], folder: Path) -> None:
        self._model, self._words, self._folder = model, tuple(words), folder
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        begin = time.monotonic()
        calm = self._case("calm")
        if not _ended(self._start(calm)):
            raise RuntimeError("the run that nobody disturbs fails")
        self._seconds = time.monotonic() - begin
        self._wanted = _files(calm / "out")

    def kill(self, kills: int, seed: int) -> KillCount:
        """Kill this many runs; after every few, an undisturbed run must give the same files."""
        chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
        faults: list[str] = []
        killed = 0
        for number in range(kills):
            if number % _IN_A_ROW == 0:
                case = self._case(f"case{number}")
            killed += self._one_kill(case, number, chance)
            faults += (f"kill {number}: {fault}" for fault in self._half(case))
            if number % _IN_A_ROW == _IN_A_ROW - 1 or number == kills - 1:
                faults += (f"after kill {number}: {fault}" for fault in self._in_peace(case))
        return KillCount(killed, kills - killed, tuple(faults))

    def _one_kill(self, case: Path, number: int, chance: random.Random) -> bool:
        """Kill one run; return False if it ended before the kill."""
        self._forget(case)
        if number % 2:
            step, at = chance.choice(STEPS), chance.randrange(_FILES)
            return not _ended(self._start(case, lambda: _die_before(step, at)))
        child = self._start(case)
        time.sleep(chance.uniform(0.0, self._seconds))
        os.kill(child, signal.SIGKILL)
        return not _ended(child)

    def _half(self, case: Path) -> Iterator[str]:
        for name, data in _files(case / "out").items():
            if not name.startswith(".") and data != self._wanted.get(name):
                yield f"{name} is not whole"

    def _in_peace(self, case: Path) -> Iterator[str]:
        """Yield what is wrong after an undisturbed run."""
        self._forget(case)
        for left in self._temporary.iterdir():
            os.utime(left, (time.time() - _LONG_AGO,) * 2)
        if not _ended(self._start(case)):
            yield "the next run failed"
        found = _files(case / "out")
        for name in sorted(found.keys() | self._wanted):
            if found.get(name) != self._wanted.get(name):
                yield f"{name} differs or is left over"
        yield from (f"{path.name} is left over" for path in self._temporary.iterdir())

    def _forget(self, case: Path) -> None:
        """Remove a finished output folder; the cache keeps its search results."""
        if (case / "out" / f"{self._model.stem}.recipe.json").exists():
            shutil.rmtree(case / "out")

    def _case(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder

    def _start(self, case: Path, first: Callable[[], None] | None = None) -> int:
        """Fork a process that fixes the model with relative paths; return its process id."""
        child = os.fork()
        if child:
            return child
        try:
            os.chdir(case)
            tempfile.tempdir = str(self._temporary)
            sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            if first is not None:
                first()
            model = os.path.relpath(self._model)
            os._exit(_run("fix", model, *self._words, "-o", "out", "--cache", "cache"))
        finally:
            os._exit(99)


def _run(*words: str) -> int:
    from qnnmem.cli.verbs import qnnmem

    return int(qnnmem.main(list(words), standalone_mode=False) or 0)


def _die_before(step: str, at: int) -> None:
    """Make this process kill itself before a step, at the file with this number."""
    from qnnmem import atomic_file

    taken = iter(range(1 << 30))
    real = getattr(atomic_file, step)

    def taking(*words: Any, **named: Any) -> Any:
        if next(taken) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*words, **named)

    setattr(atomic_file, step, taking)


def _ended(child: int) -> bool:
    """True if a fork ended with exit code 0."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _files(folder: Path) -> dict[str, bytes]:
    if not folder.exists():
        return {}
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def load_modules() -> None:
    """Import the modules that a fix needs, so that forks start fast."""
    import onnx  # noqa: F401

    import qnnmem.cli.fix
    import qnnmem.fix.lpai
    import qnnmem.report.fix
    import qnnmem.verbs.fix_many  # noqa: F401


def main() -> int:
    """Kill runs, print the faults and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="default: image.onnx of the examples")
    parser.add_argument("words", nargs="*", help="options of the fix, behind --")
    chosen = parser.parse_args()
    load_modules()
    with tempfile.TemporaryDirectory() as name:
        model, words = chosen.model, chosen.words
        if model is None:
            model, words = Path(name, "image.onnx"), ["--dim", "batch=1", *words]
            command = [sys.executable, str(MAKER), str(model)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = FixKiller(model.absolute(), words, Path(name)).kill(chosen.kills, chosen.seed)
    print(f"{found.killed} killed, {found.ended_before} had ended before")
    print(*found.faults or ("nothing was wrong",), sep="\n")
    return int(bool(found.faults))


if __name__ == "__main__":
    sys.exit(main())
