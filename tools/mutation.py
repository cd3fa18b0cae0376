"""Damaged files for readers: ways to damage any file, and the trial that none may break.

A reader may answer or refuse with one plain line. It may not hang, crash or raise anything else.
The same seed makes the same mutants, whatever the machine.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

HANG_S = 20
NUMBERS = (
    *(0, 1, 2, 3, 4, 7, 8, 12, 16, 63, 64, 127, 128, 255, 256, 4096, 2**16 - 1, 2**16),
    *(2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1, 2**32, 2**40, 2**60, 2**60 + 1, 2**63, 2**64 - 1),
)
TEXTS = ("", "x", "y", "h", "\x00", "\x1b[31m", "\ud800", "é" * 300, "../w", "1e999", "<script>")

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
Answer = tuple[str, str]  # how it ended, and why it failed
T = TypeVar("T")


@dataclass(frozen=True)
class Mutant:
    """A damaged file, who reads it and how it came about."""

    reader: str
    index: int
    kind: str
    content: bytes


def stream(seed: int, index: int) -> random.Random:
    """The random numbers of one mutant, independent of all others."""
    return random.Random(f"{seed}/{index}")  # noqa: S311  wanted: the same again


# Ways to damage any file.


def flip_bits(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Flip one to eight bits."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Set a run of bytes to 0, 255 or a random value."""
    at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 4, 8, 64))
    value = rng.choice((0, 255, rng.randrange(256)))
    return data[:at] + bytes([value]) * len(data[at : at + length]) + data[at + length :]


def truncate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Keep a beginning, or rarely an end."""
    at = rng.randrange(len(data))
    return data[at:] if rng.random() < 0.2 else data[:at]


def delete(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Remove a stretch."""
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 40) :]


def duplicate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Repeat a stretch in place, now and then very often."""
    at = rng.randrange(len(data))
    part = data[at : at + rng.randint(1, 60)]
    return data[:at] + part * rng.choice((2, 2, 3, 50, 1000)) + data[at + len(part) :]


def extend(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Append zeros, noise or another file."""
    return data + rng.choice((bytes(rng.randint(1, 512)), rng.randbytes(64), rng.choice(others)))


def splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Join the beginning of one file with the end of another, at the same place or anywhere."""
    other, at = rng.choice(others), rng.randrange(len(data))
    return data[:at] + other[at if rng.random() < 0.5 else rng.randrange(len(other)) :]


def swap_ranges(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Swap two neighbouring stretches."""
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def bump_integer(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a little-endian integer by a little."""
    return _change_integer(rng, data, lambda old: old + rng.choice((-64, -4, -1, 1, 2, 4, 64)))


def overwrite_integer(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Set a little-endian integer to something extreme."""
    return _change_integer(rng, data, lambda _: rng.choice((*NUMBERS, len(data), len(data) - 1)))


def _change_integer(rng: random.Random, data: bytes, change: Callable[[int], int]) -> bytes:
    width = rng.choice((1, 2, 4, 4, 8))
    at = rng.randrange(max(len(data) - width, 1))
    if rng.random() < 0.7:  # most integers of a binary format are aligned
        at = at // width * width
    value = change(int.from_bytes(data[at : at + width], "little")) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


ANY: tuple[Mutation, ...] = (
    *(flip_bits, set_bytes, truncate, delete, duplicate, extend, splice, swap_ranges),
    *(bump_integer, bump_integer, overwrite_integer, overwrite_integer),
)


def in_head(mutation: Mutation, size: int) -> Mutation:
    """The same damage, nine times of ten within the first bytes, where headers are."""

    @wraps(mutation)
    def damage(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        if rng.random() < 0.1:
            return mutation(rng, data, others)
        return mutation(rng, data[:size], others) + data[size:]

    return damage


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder and key of a value made of lists and dictionaries."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def change_value(rng: random.Random, document: Any, odd: Sequence[Any]) -> None:
    """Replace, remove, repeat, move or nudge one value of a JSON document."""
    known = list(places(document))
    if not known:
        return
    holder, key = rng.choice(known)
    source, other = rng.choice(known)
    action, value = rng.randrange(6), holder[key]
    if action == 0:
        holder[key] = rng.choice(odd)
    elif action == 1:
        holder[key] = copy.deepcopy(source[other])
    elif action == 2:
        del holder[key]
    elif action == 3 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif isinstance(value, int):
        holder[key] = value + rng.choice((-256, -64, -1, 1, 64, 256))
    elif isinstance(value, str):  # another text of the same document
        holder[key] = rng.choice([h[k] for h, k in known if isinstance(h[k], str)])


# The trial.


class Hang(BaseException):
    """The watchdog rang; not an Exception, so that nobody can swallow it."""


def with_alarm(action: Callable[[], T]) -> T:
    """Run an action that the watchdog may interrupt."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    # Code that never returns to Python cannot be rung; this ends the program with a trace.
    faulthandler.dump_traceback_later(6 * HANG_S, exit=True)
    try:
        return action()
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer_of(action: Callable[[], Answer]) -> Answer:
    """How reading one mutant ended; FAILED for a hang or an exception nobody meant."""
    try:
        return with_alarm(action)
    except Hang:
        return "FAILED", f"hang: no answer within {HANG_S} s"
    except Exception as exc:  # the very thing these programs look for
        return "FAILED", f"{type(exc).__name__}: {exc}"[:300]


def refusal(exc: Exception, outcome: str = "refused", longest: int = 2000) -> Answer:
    """A refusal is a good end when its text is one plain line."""
    text = str(exc)
    if not text.isprintable():
        return "FAILED", f"error text with control characters: {text[:200]!r}"
    if len(text) > longest:
        return "FAILED", f"error text of {len(text)} characters: {text[:200]!r}"
    return outcome, ""


def try_all(
    seed: int, mutants: Iterable[Mutant], read: Callable[[Mutant], Answer], keep: Path | None
) -> int:
    """Try all mutants, print failures and a summary; give the number of failures."""
    counts: Counter[tuple[str, str]] = Counter()
    started, slowest = time.perf_counter(), (0.0, "none")
    for mutant in mutants:
        before = time.perf_counter()
        outcome, why = answer_of(partial(read, mutant))
        name = f"{mutant.reader} mutant {seed}/{mutant.index} ({mutant.kind})"
        slowest = max(slowest, (time.perf_counter() - before, name))
        counts[f"{mutant.reader} {mutant.kind}", outcome] += 1
        if outcome == "FAILED":
            print(f"{name}: {why}", flush=True)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{seed}-{mutant.index}.{mutant.reader}").write_bytes(mutant.content)
    _summarise(counts, slowest, time.perf_counter() - started)
    return sum(number for (_, outcome), number in counts.items() if outcome == "FAILED")


def _summarise(
    counts: Counter[tuple[str, str]], slowest: tuple[float, str], seconds: float
) -> None:
    for kind in sorted({kind for kind, _ in counts}):
        mine = sorted((outcome, n) for (k, outcome), n in counts.items() if k == kind)
        print(f"{kind}: {', '.join(f'{number} {outcome}' for outcome, number in mine)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    failed = sum(number for (_, outcome), number in counts.items() if outcome == "FAILED")
    print(
        f"{counts.total()} mutants, {failed} failed, {counts.total() / seconds:,.0f} a second; "
        f"slowest {slowest[0]:.2f} s: {slowest[1]}; largest memory {peak} MiB"
    )


def options(description: str | None, *, binaries: bool = False) -> argparse.ArgumentParser:
    """The options that every mutation program has."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the mutants that failed")
    if binaries:
        parser.add_argument(
            "--binary", type=Path, nargs="*", help="sound binaries to damage instead"
        )
    return parser
