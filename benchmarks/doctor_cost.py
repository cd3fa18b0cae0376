"""Measure how the cost of hostile logs, made from the doctor's templates, grows with their size.

    python benchmarks/doctor_cost.py                  30 logs, 1 KB to 1 MB, some minutes
    python benchmarks/doctor_cost.py --largest 16M    up to 16 MB
    python benchmarks/doctor_cost.py --climb 300      random search for slower logs

For each log, the table shows the CPU time of the whole command at each size, the slope of time
against size, and the peak memory. The slope is fitted to logarithms, for sizes of 64 KB and more,
after the time for an empty log is subtracted. A slope of 1 is linear. The benchmark fails for a
slope above 1.2 or a peak above 64 MB.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from doctor_log import bytes_of
from doctor_measure import Bench

if TYPE_CHECKING:
    from qnnmem.doctor.kb.knowledge import Knowledge

STEP = 4
SLOPE, MEMORY_MB = 1.2, 64
_COMMAND = (sys.executable, "-m", "qnnmem", "doctor", "--format", "json")
_HEAD = "03-17 16:13:{:02d}.{:03d} {:5d} {:5d} E QnnDsp: "


class Words(NamedTuple):
    """Templates of the knowledge base, their fixed texts, and their anchors."""

    texts: list[str]
    runs: list[str]  # fixed texts between holes
    anchors: list[str]


@cache
def words() -> Words:
    """Return the templates, fixed texts and anchors of the built-in knowledge base."""
    from qnnmem.doctor.kb.knowledge import built_in
    from qnnmem.doctor.kb.template import parse

    known = built_in()
    runs = dict.fromkeys(run for text in known.texts for run in parse(text).runs)
    return Words(list(known.texts), list(runs), list(known.anchors))


def filled(text: str, hole: str = "1234") -> str:
    """Return a line that matches a template, with `hole` as the text of each hole."""
    text = re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\)\{[^{}]*\}", hole, text))
    return re.sub(r"\(([^()|]*)\|[^()]*\)", r"\1", text)


def half(text: str) -> str:
    """Return a line that nearly matches a template: its text before the last hole."""
    cut = text.rfind("{")
    return filled(text[:cut] if cut > 0 else text[: len(text) - 2])


def _joined(parts: list[str], between: str) -> Iterator[bytes]:
    return repeat((between.join(parts) + between).encode())


def _lines(row: Callable[[int], str]) -> Iterator[bytes]:
    return (f"{row(number)}\n".encode() for number in count())


def write(path: Path, pieces: Iterator[bytes], size: int) -> None:
    """Write a log piece by piece; a whole log in memory would count in a child's peak memory."""
    with path.open("wb") as file:
        while (left := size - file.tell()) > 0:
            file.write(next(pieces)[:left])


def _head(number: int, pid: int, tid: int = 7) -> str:
    return _HEAD.format(number // 1000 % 60, number % 1000, pid, tid)


_ISSUE = "Failed to create context from binary. Error: Code "


def _of_length(length: int) -> Callable[[int], str]:
    halves = " ".join(half(text) for text in words().texts)
    return lambda n: (halves[n * 97 % 9000 :] + halves)[: length - 1]


def _split(n: int) -> str:
    text = filled(words().texts[n // 2 % len(words().texts)]) + " " * 64
    cut = len(text) // 2
    return _head(n // 2, 5) + (text[cut:] if n % 2 else "p" * 64 + text[:cut])


def _of(many: list[str]) -> Callable[[int], str]:
    return lambda n: many[n % len(many)]


def logs() -> dict[str, Callable[[], Iterator[bytes]]]:
    """Return endless hostile logs, by name."""
    w = words()
    full, halves = [filled(text) for text in w.texts], [half(text) for text in w.texts]
    holed = [text for text in w.texts if "{" in text]
    free = [text for text in w.texts if text.count("{*}") > 1]
    short = sorted(w.anchors, key=len)
    huge = [filled(text, "9" * 5000) for text in holed]
    rows: dict[str, Callable[[int], str]] = {
        "error failed": lambda _: "error failed",
        "every template": _of(full),
        "every template, half": _of(halves),
        "every anchor": _of(w.anchors),
        "shortest anchors": _of(short[:8]),
        "many pids": lambda n: f"E/a({n % 10**9:9d}): " + full[n % len(full)],
        "many pids, dated": lambda n: _head(n, n % 99_999) + full[n % len(full)],
        "many pids, kernel between": lambda n: (
            "[  1.000001] " + full[n % 97] if n % 9 == 0 else _head(n, n % 99_999) + full[n % 91]
        ),
        "one pid always, many others": lambda n: _head(n, 5 if n % 5 == 0 else n) + full[n % 89],
        "unknown failures": lambda n: f"E/x({n % 10**9}): qnn graph failure no {n:x} {n * 7:x}",
        "split messages": _split,
        "half messages that may go on": lambda n: _head(n, 5) + "p" * 64 + halves[n % len(halves)],
        "lines of 4095": _of_length(4095),
        "lines of 4096": _of_length(4096),
        "lines of 4097": _of_length(4097),
        "heads of blanks": lambda n: "03-17 16:13:01.123  5-5 a" + " " * 400 + short[n % 40],
        "levels of all kinds": lambda n: f"<I>[INFO] {short[n % 9]} <E {halves[n % len(halves)]}",
        "colours": lambda n: "\x1b[31;1m".join(halves[n % len(halves)].split(" ")),
        "nested brackets": lambda n: "[" * 60 + halves[n % len(halves)] + "{" * 60 + "(" * 60,
    }
    made: dict[str, Callable[[], Iterator[bytes]]] = {
        name: partial(_lines, row) for name, row in rows.items()
    }
    lines: dict[str, tuple[list[str], str]] = {
        "one line: one half message": ([_ISSUE], ""),
        "one line: every template": (full, " "),
        "one line: every half": (halves, " "),
        "one line: every anchor": (w.anchors, ""),
        "one line: shortest anchors": (short[:8], ""),
        "one line: templates of many holes": ([half(text) for text in free], " "),
        "one line: holes of huge numbers": (huge, " "),
        "one line: holes of 119 characters": ([filled(text, "y" * 119) for text in free], "z"),
        "one line: NUL between": (halves, "\0"),
        "one line: CR between": (full, "\r"),
        "one line: blanks between": (halves, " " * 300),
    }
    for name, (parts, between) in lines.items():
        made[name] = partial(_joined, parts, between)
    return made


def climb(rounds: int, size: int, seed: int) -> Iterator[tuple[float, str]]:
    """Yield the cost per byte (in µs) and the text of ever slower logs, changed at random."""
    from qnnmem.doctor.kb.knowledge import built_in

    rng, knowledge, w = random.Random(seed), built_in(), words()  # noqa: S311 - repeatable
    glue = ["\n", "\n" + _head(1, 5), " ", "", "\0", "\r", " " * 40, "1" * 30, "0x", "x" * 119]
    pieces = [*w.runs, *map(half, w.texts), *map(filled, w.texts)]
    engine = rng.choice(("plain", "hyperscan"))

    def change(mix: list[str]) -> list[str]:
        new = list(mix)
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randint(0, 2)] = [rng.choice(rng.choice((pieces, glue)))]
        return new or [rng.choice(pieces)]

    best, worst = [rng.choice(pieces), "\n"], 0.0
    for _ in range(rounds):
        mix = change(best)
        cost = cost_of(_joined(mix, ""), size, knowledge, engine)
        if cost > worst:
            best, worst = mix, cost
            yield cost * 1e6 / size, f"{engine} {''.join(mix)!r}"


def cost_of(pieces: Iterator[bytes], size: int, knowledge: Knowledge, engine: str) -> float:
    """Return the seconds of CPU time that diagnosing a log takes in this process."""
    from qnnmem.doctor.diagnose import diagnose
    from qnnmem.doctor.logs.source import Stream

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mix.log"
        write(path, pieces, size)
        started = time.process_time()
        found = diagnose([Stream((str(path),))], knowledge, engine=engine)
        spent = time.process_time() - started
        found.close()
    return spent


def slope(times: dict[int, float], empty: float) -> float:
    """Return the slope of log(time) against log(size), fitted to sizes of 64 KB and more."""
    points = [
        (math.log(size), math.log(max(spent - empty, 0.01)))
        for size, spent in times.items()
        if size >= 64 << 10
    ]
    if len(points) < 2:
        return 0.0
    x0, y0 = (math.fsum(values) / len(points) for values in zip(*points, strict=True))
    along = math.fsum((x - x0) * (y - y0) for x, y in points)
    return along / math.fsum((x - x0) * (x - x0) for x, _ in points)


def measure(largest: int, only: str) -> bool:
    """Print the table of costs; return True if every log is within the limits."""
    sizes = [1 << 10]
    while sizes[-1] * STEP <= largest:
        sizes.append(sizes[-1] * STEP)
    good = True
    print(f"| Log | {' | '.join(f'{size >> 10:,} KB' for size in sizes)} | Slope | Memory |")
    print("|---" * (len(sizes) + 3) + "|")
    with tempfile.TemporaryDirectory() as folder:
        bench, path = Bench(Path(folder)), Path(folder) / "hostile.log"
        path.write_bytes(b"\n")
        bench.run([*_COMMAND, path])
        empty = min(bench.run([*_COMMAND, path]).cpu for _ in range(3))
        for name, make in logs().items():
            if only not in name:
                continue
            times, memory = {}, 0.0
            for size in sizes:
                write(path, make(), size)
                spent = bench.run([*_COMMAND, path])
                times[size], memory = spent.cpu, max(memory, spent.rss_mb)
            grows = slope(times, empty)
            good = good and grows <= SLOPE and memory <= MEMORY_MB
            row = " | ".join(f"{spent:.2f} s" for spent in times.values())
            print(f"| {name} | {row} | {grows:.2f} | {memory:.0f} MB |", flush=True)
    return good


def main() -> int:
    """Measure, or search for slower logs; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--largest", type=bytes_of, default=1 << 20)
    parser.add_argument(
        "--only", default="", help=("measure only logs with this text in their names")
    )
    parser.add_argument(
        "--climb", type=int, default=0, help=("rounds of the random search for slower logs")
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.climb:
        for cost, mix in climb(given.climb, 64 << 10, given.seed):
            print(f"{cost:8.3f} us a byte  {mix[:300]}", flush=True)
        return 0
    return 0 if measure(given.largest, given.only) else 1


if __name__ == "__main__":
    sys.exit(main())
