"""Kills workers of the HTP library that a command started, at random moments, and looks after them.

    python tools/kill_worker.py --rounds 200 --seed 0

Each round asks for something and, while that is under way, ends the worker, the process of its
library, the command in between or the client itself, cuts the pipe in the middle of a file, or
stops the worker so that it hangs. Then: one sentence or an outcome, the next request is served, and
in the end no process and no file is left on either side. Needs the library.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from qnnmem.errors import WorkerError
from qnnmem.htp.far import wire
from qnnmem.htp.library import find_library
from qnnmem.htp.worker import Worker

BINARY = Path(__file__).parents[1] / "examples" / "small_htp.bin"
KINDS = ("worker", "library", "command", "cut", "client", "hang")
WEIGHTS = (30, 25, 15, 15, 13, 2)
LATEST_S = 0.5
CLIENT = (
    "import sys\n"
    "from qnnmem.htp.worker import Worker\n"
    "worker = Worker()\n"
    "worker.ask('versions', {})\n"
    "print('ready', flush=True)\n"
    "worker.ask('wait', {})\n"
)


def require(holds: object, what: object) -> None:
    """End with what is wrong."""
    if not holds:
        raise SystemExit(f"wrong: {what}")


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def marked(mark: str) -> list[int]:
    """Processes whose command line holds a word."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def strike(kind: str, pid: int) -> None:
    """Do what was drawn to the command of a worker: a shell, with the worker below it."""
    if kind == "cut":  # all at once, as a network does
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return
    below = children(pid)
    target = {"command": [pid], "worker": below, "hang": below}.get(kind)
    if target is None:
        target = [deep for one in below for deep in children(one)]
    for one in target[:1]:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP if kind == "hang" else signal.SIGKILL)


def ask(kind: str, worker: Worker, draw: random.Random, folder: Path) -> str:
    """One request that is disturbed; what came of it."""
    delay, size = draw.uniform(0, LATEST_S), draw.choice((0, 1 << 20, 48 << 20))
    model = folder / "sent.bin"
    model.write_bytes(BINARY.read_bytes() + draw.randbytes(size))
    sends = kind == "cut" or draw.random() < 0.5

    def disturb() -> None:
        if not sends:  # else at once, in the middle of the file
            time.sleep(delay)
        while (pid := worker.pid) is None:
            time.sleep(0.01)
        time.sleep(delay / 8)
        strike(kind, pid)

    thread = threading.Thread(target=disturb)
    thread.start()
    load = {"binaries": [str(model)], "soc": 57}
    try:
        outcome = worker.ask(*(("load", load) if sends else ("wait", {})), time_limit_s=1.5)
    except WorkerError as exc:
        require("\n" not in str(exc), exc)
        return "lost"
    finally:
        thread.join()
    return outcome.kind


def kill_client(draw: random.Random) -> str:
    """A whole client that is killed; its worker must go by itself."""
    client = subprocess.Popen(  # noqa: S603  a program of this file
        [sys.executable, "-c", CLIENT], stdout=subprocess.PIPE
    )
    if client.stdout is None:
        raise OSError("no pipe")
    client.stdout.readline()
    time.sleep(draw.uniform(0, LATEST_S))
    client.kill()
    client.wait()
    client.stdout.close()
    return "client killed"


def wait_until_gone(mark: str, spare: set[int]) -> list[int]:
    """Processes that are left after a few seconds."""
    until = time.monotonic() + 20
    while (left := [pid for pid in marked(mark) if pid not in spare]) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def main() -> int:
    """Count what came of each kind; 1 when anything is left or a request fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, seen = random.Random(given.seed), Counter[tuple[str, str]]()  # noqa: S311  no secret
    wire.SILENCE_S = 3.0
    with tempfile.TemporaryDirectory(prefix="kill-worker-") as top:
        near, far = Path(top, "near"), Path(top, "far")
        near.mkdir()
        far.mkdir()
        line = f"{sys.executable} -m qnnmem htp-worker --cache {far} --cache-size 64M; exit"
        os.environ["QNNMEM_HTP_WORKER"] = shlex.join(["env", f"TMPDIR={far}", "sh", "-c", line])
        os.environ["TMPDIR"] = tempfile.tempdir = str(near)
        library = find_library()
        with Worker(library=library) as worker:
            for number in range(given.rounds):
                (kind,) = draw.choices(KINDS, WEIGHTS)
                came = kill_client(draw) if kind == "client" else ask(kind, worker, draw, Path(top))
                seen[kind, came] += 1
                require(worker.ask("versions", {}).is_done, (number, kind))
        left = wait_until_gone(str(far), set())
        require(not left, left)
        time.sleep(11)  # what a killed process left is removed by the next, when it is that old
        with Worker(library=library) as worker:
            require(worker.ask("versions", {}).is_done, "the last request")
        kept = [p.name for p in (far / "htp-worker").iterdir() if p.name.startswith(".")]
        require(not kept, kept)
        require(not list(near.iterdir()), list(near.iterdir()))
        temporary = [p.name for p in far.iterdir() if p.name != "htp-worker"]
        require(not temporary, temporary)
    for (kind, what), count in sorted(seen.items()):
        print(f"{kind:<10} {what:<14} {count}")
    print(f"{given.rounds} rounds, nothing left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
