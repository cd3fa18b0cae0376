"""Logs of many kinds for the doctor's benchmark: generated in all styles, and real output.

Real output is the output of programs run by the benchmark, and the logs of this machine. It is
repeated, with other numbers in every copy, until a log has its size.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from doctor_log import STYLES
from doctor_measure import Bench

_LARGEST = 4 << 20  # bytes of real output that are repeated
_NUMBER = re.compile(rb"[0-9]{3,9}")
_SYSTEM = ("dpkg.log", "apt/term.log", "apt/history.log", "alternatives.log", "syslog", "messages")
_SECONDS = 120


def noises(bench: Bench, size: int, logs: list[Path]) -> dict[str, Path]:
    """Return logs of this many bytes by name, one of each kind; the given logs come last."""
    made = {
        f"{style}, made up": bench.log(
            f"{style}-{size}.log", "--size", size, "--density", 0, "--style", style
        )
        for style in STYLES
    }
    for name, output in _REAL.items():
        sample = output()[:_LARGEST]
        if sample.count(b"\n") > 50:  # otherwise the program or the log does not exist here
            made[name] = _repeated(bench.folder / f"{name.split()[0]}-{size}.log", sample, size)
    return {**made, **{path.name: path for path in logs}}


def _repeated(path: Path, sample: bytes, size: int) -> Path:
    draw = random.Random(1)  # noqa: S311 - repeatable on purpose

    def other(number: re.Match[bytes]) -> bytes:
        return b"%0*d" % (len(number[0]), draw.randrange(1, 10 ** len(number[0])))

    with path.open("wb") as file:
        while file.tell() < size:
            file.write(_NUMBER.sub(other, sample).rstrip(b"\n") + b"\n")
    return path


def _said(*command: str) -> bytes:
    """Return the output of a program on both streams; empty if it is not installed."""
    if shutil.which(command[0]) is None:
        return b""
    done = subprocess.run(  # noqa: S603 - commands of this file
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_SECONDS, check=False
    )
    return done.stdout


def _build() -> bytes:
    """Return the most verbose output of a compiler, with warnings about standard headers."""
    from qnnmem.doctor import logs

    source = Path(logs.__file__).with_name("texts.c")
    loud = ("-v", "-H", "-Wall", "-Wextra", "-Wconversion", "-Wsystem-headers", "-Wpadded")
    return _said("cc", *loud, "-O2", "-fPIC", "-c", str(source), "-o", "/dev/null")


def _traced() -> bytes:
    """Return Python's trace of many imports."""
    return _said(
        sys.executable, "-vv", "-c", "import asyncio, email, http.server, unittest, xml.dom"
    )


def _packages() -> bytes:
    """Return pip's output about the installed packages."""
    return _said(sys.executable, "-m", "pip", "-vvv", "list") + _said(
        sys.executable, "-m", "pip", "inspect"
    )


def _machine() -> bytes:
    """Return the system's logs."""
    return b"".join(_read(Path("/var/log", name)) for name in _SYSTEM) + _said("dmesg")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


_REAL: dict[str, Callable[[], bytes]] = {
    "build log of a compiler": _build,
    "imports traced by Python": _traced,
    "list of packages by pip": _packages,
    "machine's own logs": _machine,
}
