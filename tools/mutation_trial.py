"""Tries mutants one after the other: none may hang, crash or go unanswered."""

from __future__ import annotations

import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

HANG_S = 20

T = TypeVar("T")


class Mutant(Protocol):
    """A damaged binary and how it came about."""

    @property
    def index(self) -> int:
        """Number within its seed."""

    @property
    def kind(self) -> str:
        """What was done to it."""

    @property
    def content(self) -> bytes:
        """The damaged bytes."""


M = TypeVar("M", bound=Mutant)
Answer = tuple[str, str]  # how it ended, and why it failed


class Hang(BaseException):
    """The watchdog rang; not an Exception, so that nobody can swallow it."""


def with_alarm(action: Callable[[], T]) -> T:
    """Run an action that the watchdog may interrupt."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        return action()
    finally:
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


def try_all(seed: int, mutants: Iterable[M], read: Callable[[M], Answer], keep: Path | None) -> int:
    """Try all mutants, print failures and a summary; give the number of failures."""
    counts: Counter[tuple[str, str]] = Counter()
    started, slowest = time.perf_counter(), (0.0, "none")
    for mutant in mutants:
        before = time.perf_counter()
        outcome, why = answer_of(partial(read, mutant))
        name = f"mutant {seed}/{mutant.index} ({mutant.kind})"
        slowest = max(slowest, (time.perf_counter() - before, name))
        counts[mutant.kind, outcome] += 1
        if outcome == "FAILED":
            print(f"{name}: {why}", flush=True)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{seed}-{mutant.index}.bin").write_bytes(mutant.content)
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
