"""Measurements for the doctor's benchmark: commands side by side, and answers against the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROUNDS = 3

# Runs the whole doctor with a chosen engine; the command has no option for the engine.
WITH_ENGINE = """
import sys
from pathlib import Path
from qnnmem.doctor.diagnose import diagnose
from qnnmem.results.incident import to_json
from qnnmem.doctor.kb.knowledge import with_own
from qnnmem.doctor.logs.source import find_streams
engine, base, log = sys.argv[1:]
for one in diagnose(find_streams([log]), with_own([Path(base)]), engine=engine).incidents():
    print(to_json(one))
"""


class Spent(NamedTuple):
    """Cost of a command; CPU time includes its children."""

    cpu: float
    wall: float
    rss_mb: float
    code: int


class Bench:
    """Runs commands with their own cache folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Compiled modules are cached, as in an installed package.
        kept = {"XDG_CACHE_HOME": "cache", "PYTHONPYCACHEPREFIX": "compiled"}
        self._env = {**os.environ, **{name: str(folder / kind) for name, kind in kept.items()}}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(self, command: Sequence[str | Path], answer: Path | None = None) -> Spent:
        """Run a command; its standard output goes to a file or is discarded."""
        with Path(answer or os.devnull).open("wb") as out:
            started = time.perf_counter()
            child = subprocess.Popen(  # noqa: S603 - commands of this project
                [*map(str, command)], stdout=out, stderr=subprocess.PIPE, env=self._env
            )
            assert child.stderr is not None  # noqa: S101 - for the type checker
            said = child.stderr.read()
            # subprocess itself does not report the cost of one child.
            _, status, usage = os.wait4(child.pid, 0)
            wall = time.perf_counter() - started
            child.returncode = os.waitstatus_to_exitcode(status)
            child.stderr.close()
        if child.returncode not in (0, 1, 3) or (child.returncode and b"Traceback" in said):
            raise SystemExit(f"{command[0]} ended with {child.returncode}: {said.decode()[-800:]}")
        scale = 1 << 10 if sys.platform != "darwin" else 1 << 20
        cpu = usage.ru_utime + usage.ru_stime
        return Spent(cpu, wall, usage.ru_maxrss / scale, child.returncode)

    def race(
        self, commands: Mapping[str, Sequence[str | Path]], rounds: int = ROUNDS
    ) -> dict[str, Spent]:
        """Run all commands alternately; return the cheapest run (CPU time) of each."""
        best: dict[str, Spent] = {}
        for _ in range(rounds):
            for name, command in commands.items():
                spent = self.run(command)
                best[name] = min(best.get(name, spent), spent)
        return best

    def log(self, name: str, *options: object) -> Path:
        """Write a log with the generator in a separate process; return its path.

        A child starts as a copy of its parent, so this process must stay small while the peak
        memory of children is measured.
        """
        path = self.folder / name
        command = [sys.executable, HERE / "doctor_log.py", path, *options]
        subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        return path

    def check(self, log: Path, answer: Path) -> dict[str, int]:
        """Return the comparison of an answer with the truth, from a separate process."""
        command = [sys.executable, __file__, str(log), str(answer)]
        done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        found: dict[str, int] = json.loads(done.stdout)
        return found


def compare(truth: dict[str, Any], answer: dict[str, Any]) -> dict[str, int]:
    """Return how many failures the answer finds, misses and wrongly reports."""
    wanted = {(row["entry"], row["pid"], row["lines"][0]): row for row in truth["chains"]}
    right = lines = extra = 0
    for incident in answer["incidents"]:
        key = (incident["entry"], incident["process"], incident["first_line"])
        row = wanted.pop(key, None)
        if row is None:
            extra += 1
            continue
        right += incident["last_line"] == row["lines"][-1]
        lines += sum(item["count"] for item in incident["evidence"])
    return {
        "failures": len(truth["chains"]),
        "right": right,
        "missed": len(wanted),
        "extra": extra,
        "lines": sum(len(row["lines"]) for row in truth["chains"]),
        "lines_found": lines,
        "look_alikes": truth["look_alikes"],
    }


def main() -> int:
    """Compare an answer with the truth of its log; return the exit code."""
    log, answer = sys.argv[1:]
    truth = json.loads(Path(f"{log}.truth.json").read_bytes())
    print(json.dumps(compare(truth, json.loads(Path(answer).read_bytes()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
