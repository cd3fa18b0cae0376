"""Kills `qnnmem watch`, or the program that it watches, at random moments, and looks after them.

    python tools/kill_watch.py --rounds 50 --seed 0

Each round watches a program that makes and frees contexts without end, on one thread, and ends one
of the sides. Then: the other side has ended, too, a killed program is reported, and in the end no
process and no socket is left. Needs a C compiler.
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
from collections import Counter
from contextlib import suppress
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "tests" / "watch"
LATEST_S = 0.5
WAIT_S = 60.0


def require(holds: object, what: object) -> None:
    """End with what is wrong."""
    if not holds:
        raise SystemExit(f"wrong: {what}")


def build(folder: Path) -> tuple[Path, Path]:
    """The program and its library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    require(compiler, "there is no C compiler")
    program, library = folder / "program", folder / "libQnnTest.so"
    for source, target, flags in (
        ("program.c", program, ()),
        ("backend.c", library, ("-shared", "-fPIC")),
    ):
        command = [str(compiler), "-g", *flags, str(SOURCES / source), "-o", str(target)]
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)  # noqa: S603  # a compiler
    return program, library


def marked(mark: str) -> list[int]:
    """Processes whose command line holds a word."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def gone(mark: str) -> bool:
    """Whether all of them end."""
    end = time.monotonic() + WAIT_S
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.02)
    return not marked(mark)


def running(parent: int, program: Path) -> list[int]:
    """The program, where it runs already: not the compiler before it."""
    found = []
    with suppress(OSError):
        for one in Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split():
            if Path(f"/proc/{one}/cmdline").read_bytes().startswith(bytes(program)):
                found.append(int(one))
    return found


def one_round(draw: random.Random, program: Path, library: Path, scratch: Path) -> str:
    """Start, wait a moment, kill; what was killed and how it ended."""
    killed = draw.choice(("program", "watcher"))
    words = [sys.executable, "-m", "qnnmem", "watch", "--", str(program), str(library), "loop"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    parent = subprocess.Popen(  # noqa: S603  # our own program
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    early = draw.random() < 0.2
    end = time.monotonic() + WAIT_S
    while not early and not running(parent.pid, program) and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(draw.uniform(0, LATEST_S))
    below = running(parent.pid, program)
    if killed == "program" and not below:
        killed = "watcher"  # nothing is started yet
    what = killed if below else f"{killed} before the program began"
    with suppress(ProcessLookupError):
        os.kill(below[0] if killed == "program" else parent.pid, signal.SIGKILL)
    try:
        said = parent.communicate(timeout=WAIT_S)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        parent.kill()
        raise SystemExit(f"wrong: after the {killed} was killed, the watcher hangs") from None
    require(gone(str(program)), f"after the {killed} was killed, a process is left")
    if killed == "program":
        require(parent.returncode in (1, 2, 137), f"exit code {parent.returncode}: {said[-500:]}")
        require("SIGKILL" in said or "cannot tell" in said or "compiler" in said, said[-500:])
    return what


def main() -> int:
    """Reads the arguments; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)  # noqa: S311  # to be repeated, not to be secret
    with tempfile.TemporaryDirectory() as name:
        program, library = build(Path(name))
        scratch = Path(name, "scratch")
        scratch.mkdir()
        seen = Counter(one_round(draw, program, library, scratch) for _ in range(given.rounds))
        # Whoever is killed leaves a folder; the next run that starts later removes it.
        time.sleep(11)
        last = [sys.executable, "-m", "qnnmem", "watch", "--", "true"]
        subprocess.run(  # noqa: S603  # our own program
            last, env={**os.environ, "TMPDIR": str(scratch)}, capture_output=True, check=False
        )
        left = [str(one) for one in scratch.rglob("socket")]
        require(not left, f"sockets are left: {left}")
    print(f"{given.rounds} rounds, seed {given.seed}: {dict(seen)}; nothing was left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
