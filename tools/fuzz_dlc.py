"""Damages DLC files and has qnnmem plan them; each is read in a child process of its own.

    python tools/fuzz_dlc.py --cases 5000 --seed 0

The files of `tests/loader/dlc` are cut, have bytes changed, moved or doubled; half of the damage
leaves the archive whole, whose checksums the vendor's reader does not look at. A case is good when
the file is planned or refused in one sentence, within the time limit of the reader, and nothing is
left behind: no file and no process. The same seed makes the same cases. Exit code 1 when one
failed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "tests" / "loader" / "dlc"
_LONGEST = 1500  # of a sentence
_QUOTED = re.compile(r"'[^']*'|\d[\d,.]*")


def damaged(data: bytes, dice: random.Random, *, in_place: bool) -> bytes:
    """Bytes with one to a few dozen faults; `in_place` moves none, so that the archive holds."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5, 30))):
        if not made:
            break
        at = dice.randrange(len(made))
        some = dice.randrange(1, 65)
        way = dice.randrange(4 if in_place else 7)
        if way == 0:
            made[at] = dice.randrange(256)
        elif way == 1:
            made[at] ^= 1 << dice.randrange(8)
        elif way == 2:
            at = min(at, max(0, len(made) - 4))
            made[at : at + 4] = dice.choice((b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"))
        elif way == 3:
            there = dice.randrange(len(made))
            some = min(some, len(made) - max(at, there))
            made[at : at + some] = made[there : there + some]
        elif way == 4:
            made[at:at] = made[at : at + some]
        elif way == 5:
            del made[at : at + some]
        elif dice.random() < 0.2:
            del made[at:]
    return bytes(made)


def tried(path: Path) -> tuple[str, str]:
    """What became of a file, and what is wrong with that."""
    from qnnmem.errors import QnnMemError
    from qnnmem.loader import load
    from qnnmem.planner import plan_model

    try:
        plan_model(load(path), time_limit=0.5)
    except QnnMemError as exc:
        said = str(exc)
        wrong = "not one sentence" if "\n" in said or len(said) > _LONGEST else ""
        return _QUOTED.sub("…", said.replace(str(path), "FILE"))[:110], wrong
    except Exception as exc:  # the one thing that must not happen
        return f"{type(exc).__name__}: {exc}"[:110], "an error that is none of ours"
    return "planned", ""


def children() -> int:
    """Processes that this one has not seen the end of."""
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return len(listed.read_text().split()) if listed.exists() else 0


def main() -> int:
    """Run the cases and say what came of them."""
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    words.add_argument("--cases", type=int, default=5000)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--first", type=int, default=0)
    given = words.parse_args()
    sources = [path.read_bytes() for path in sorted(FILES.glob("*.dlc"))]
    ends: Counter[str] = Counter()
    failed, slowest = 0, (0.0, 0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        path = Path(folder, "net.dlc")
        for case in range(given.first, given.first + given.cases):
            dice = random.Random(f"{given.seed} {case}")  # noqa: S311  reproducible, not secret
            source = dice.choice(sources)
            path.write_bytes(damaged(source, dice, in_place=case % 2 == 1))
            started = time.monotonic()
            end, wrong = tried(path)
            slowest = max(slowest, (time.monotonic() - started, case))
            path.unlink()
            left = os.listdir(folder)  # noqa: PTH208  names are enough
            if left or children():
                wrong = f"left behind: {left or 'a process'}"
            ends[end] += 1
            if wrong:
                failed += 1
                print(f"case {case}: {wrong}: {end}", flush=True)
            if case % 500 == 499:
                print(f"{case + 1 - given.first} cases, {failed} failed", flush=True)
    for end, count in ends.most_common(40):
        print(f"{count:6}  {end}")
    end = f"slowest {slowest[0]:.1f} s (case {slowest[1]})"
    print(f"{given.cases} cases, seed {given.seed}: {failed} failed, {end}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
