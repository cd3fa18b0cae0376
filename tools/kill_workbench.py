"""Kills a workbench again and again, and looks at what it still has.

    python tools/kill_workbench.py --times 50 --seed 0

Each time lists of buffers are dropped, and the server is ended by SIGKILL at a random moment, with
jobs under way and results being written. After a restart every result that was told must be there
once and whole, and nothing half: no file without a name, no folder of a job, no child process.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

_KIND = {"content-type": "application/octet-stream"}
_LONGEST_S = 4.0  # until the kill


def main() -> int:
    """Kill it, start it again, and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    wish = parser.parse_args()
    dice = random.Random(wish.seed)  # noqa: S311  not for secrets
    told: set[str] = set()
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        for turn in range(wish.times):
            server, port = start(Path(folder, "data"))
            faults += look(port, told, Path(folder, "data"))
            told |= dropped(server, port, dice, turn)
            server.kill()
            server.wait()
            print(f"kill {turn + 1}: {len(told)} told, {len(faults)} faults", flush=True)
        server, port = start(Path(folder, "data"))
        faults += look(port, told, Path(folder, "data"))
        server.terminate()
        code = server.wait(30)
    print(f"{wish.times} kills, {len(told)} results told, exit code {code} at the end")
    print("\n".join(faults) or "every result once, none half, nothing left behind")
    return 1 if faults or code else 0


def start(data: Path) -> tuple[subprocess.Popen[str], int]:
    """A workbench in a process of its own, and its port."""
    words = ["serve", "--port", "0", "--no-browser", "--data", str(data)]
    process = subprocess.Popen(  # noqa: S603  our own program
        [sys.executable, "-m", "qnnmem", *words], stderr=subprocess.PIPE, text=True
    )
    line = "" if process.stderr is None else process.stderr.readline()
    found = re.search(r":([0-9]+)/", line)
    if found is None:
        raise SystemExit(f"the workbench did not start: {line}")
    return process, int(found[1])


def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    """One request; 0 where nobody answers."""
    line = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        line.request(method, path, body or None, _KIND)
        came = line.getresponse()
        content = came.read()
        kind = came.getheader("content-type") or ""
        return came.status, json.loads(content) if "json" in kind else content
    except (OSError, HTTPException, ValueError):
        return 0, None
    finally:
        line.close()


def dropped(server: subprocess.Popen[str], port: int, dice: random.Random, turn: int) -> set[str]:
    """Drop files until the server is killed; the names whose results were told."""
    told: set[str] = set()
    killer = threading.Timer(dice.uniform(0.1, _LONGEST_S), server.kill)
    killer.start()
    jobs: dict[str, str] = {}
    number = 0
    while server.poll() is None:
        if len(jobs) - len(told) < 6:
            name = f"{turn}-{number}.csv"
            number += 1
            text = f"id,lower,upper,size\n{name},0,2,{number + 1}\n"
            status, came = ask(port, "POST", f"/api/files?name={name}", text.encode())
            if status == 201:
                jobs[name] = came["job"]["id"]
        status, state = ask(port, "GET", "/api/state")
        if status == 200:
            told |= {one["name"] for one in state["results"]} & set(jobs)
        time.sleep(0.01)
    killer.join()
    return told


def look(port: int, told: set[str], data: Path) -> list[str]:
    """What is wrong after a restart."""
    _, state = ask(port, "GET", "/api/state")
    # The page lists the last few hundred only.
    with closing(sqlite3.connect(data / "history.sqlite")) as base:
        names = [name for (name,) in base.execute("SELECT name FROM results")]
    faults = [f"{name} is lost" for name in told - set(names)]
    faults += [f"{name} is there twice" for name in set(names) if names.count(name) > 1]
    for one in state["results"][:40]:
        status, result = ask(port, "GET", f"/api/results/{one['id']}")
        if status != 200 or result["scratch_bytes"] < 1:
            faults.append(f"{one['name']} is not whole")
    known = {file["id"] for file in state["files"]}
    there = {path.name for path in (data / "files").iterdir()}
    faults += [f"the file {name} belongs to nothing" for name in there ^ known]
    faults += [f"{path.name} is left of a job" for path in (data / "work").iterdir()]
    return faults


if __name__ == "__main__":
    sys.exit(main())
