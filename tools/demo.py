"""The main job end to end: fetch a small real model, plan it, and ask the questions that follow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import models

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Runs each command of the story and shows it; stops at the first that fails."""
    model = fetch_model()
    steps = []
    if model is not None:
        plan = ["plan", str(model.relative_to(ROOT)), "--shape", "input=64x576"]
        states = ["--state", "h=hn", "--state", "c=cn"]
        steps = [
            ("How much memory does a voice activity detector need?", plan, 0),
            ("The same in 8 bits, with its state kept", [*plan, *states, "--bits", "8"], 0),
        ]
    kws, kept = "examples/keyword_spotting.csv", "which Qualcomm's own compiler also reached"
    steps += [
        (f"A published LPAI keyword spotter: 16,000 bytes, {kept}", ["plan", kws], 0),
        ("Would it fit 15,000 bytes? What is in the way?", ["plan", kws, "--capacity", "15000"], 1),
    ]
    return next((1 for story, command, code in steps if not tell(story, command, code)), 0)


def fetch_model() -> Path | None:
    """The demo model, or None with a sentence when it cannot be had."""
    entry = next(entry for entry in models.read_entries() if entry.demo)
    try:
        return models.fetch(entry, models.CACHE)
    except models.FetchError as exc:
        print(f"The real model cannot be had ({exc}); going on with the examples.\n")
        return None


def tell(story: str, command: list[str], code: int) -> bool:
    """Shows and runs one command; whether it left with the expected exit code."""
    print(f"# {story}\n$ qnnmem {' '.join(command)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "qnnmem", *command], cwd=ROOT, check=False)  # noqa: S603 - our own program
    print(flush=True)
    return done.returncode == code


if __name__ == "__main__":
    sys.exit(main())
