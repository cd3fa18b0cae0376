"""Ask workers that answer wrongly, each in another way, and see that nothing but a sentence comes.

    python tools/hostile_far_ends.py [--count 500] [--seed 0]

Every case is a conversation of an honest far end in which fields, frames or bytes were changed.
Counted as a failure: another exception than one of ours, a sentence of several lines, a file that
stays, more than 15 s, more than 256 MiB of memory, a thread that is left, a case that asks nobody.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

TOP = Path(__file__).parents[1]
sys.path[:0] = [str(TOP / "src"), str(TOP / "tests")]

from hostile_far_end import command, mutated, snapshot  # noqa: E402

from qnnmem.errors import FreeDimensions, QnnMemError  # noqa: E402
from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model  # noqa: E402
from qnnmem.htp.far.connection import Connection  # noqa: E402
from qnnmem.htp.library import Library  # noqa: E402
from qnnmem.htp.worker import Worker  # noqa: E402
from qnnmem.htp.worker import far as near  # noqa: E402
from qnnmem.targets.socs import find_soc  # noqa: E402

MOST_S = 15.0
MOST_MEMORY = 256 << 20


def outcome(seed: int, folder: Path, model: Path, binary: bytes) -> str:
    """Give in a word what became of a case; one with a `!` is a failure."""
    library = Library("2.7.0", "1", Path("/far"), command(mutated(binary, seed)))
    soc, options = find_soc("SM8650"), CompileOptions(dims={"N": 1}, time_limit_s=2.0)
    try:
        with Worker(library=library) as worker:
            found = compile_model(model, soc, options, output=folder / "a.bin", worker=worker)
    except FreeDimensions as exc:
        return f"! nobody was asked: {exc}"
    except QnnMemError as exc:
        text = str(exc)
        return type(exc).__name__ if text and "\n" not in text else f"! {text!r}"
    except Exception as exc:  # what the trial is for
        return f"! {type(exc).__name__}: {exc}"
    (folder / "a.bin").unlink(missing_ok=True)
    return "failure" if isinstance(found, CompileFailure) else "compiled"


def main() -> int:
    """Run all cases; 1 where one of them did harm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    # Waits that are meant for networks, so short that many cases can be tried.
    near._LATE_S = 1.0
    near.connect = lambda command: Connection(command, start_s=3.0, silence_s=2.0)  # type: ignore[attr-defined]  # what it imports
    model = TOP / "examples" / "small.onnx"
    binary = next(iter(sorted(TOP.glob("examples/*.bin")))).read_bytes()
    found: Counter[str] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.joinpath("canary").write_text("mine")
        before = snapshot(folder)
        for seed in range(given.seed, given.seed + given.count):
            started = time.monotonic()
            word = outcome(seed, folder, model, binary)
            seconds = time.monotonic() - started
            if snapshot(folder) != before:
                word = "! left files"
            elif seconds > MOST_S:
                word = f"! took {seconds:.0f} s"
            elif threading.active_count() > 1:
                word = f"! {threading.active_count() - 1} threads left"
            if word.startswith("!"):
                bad += 1
                print(f"seed {seed}: {word}")
            found[word if not word.startswith("!") else "harm"] += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"{given.count} cases: {dict(found)}; at most {peak >> 20} MiB")
    return 1 if bad or peak > MOST_MEMORY else 0


if __name__ == "__main__":
    sys.exit(main())
