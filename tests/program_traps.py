"""Runs hostile programs of prepared binaries and watches which files they open.

Run it as `python tests/program_traps.py --count 2000 --seed 0 --trace trace.txt`. ¶ Each binary is
loaded and executed in its own process, as `qnnmem net-run` does it, in a folder with the files that
the programs name. A run must end with a result or a QNN failure, and open none of these files. With
`--trace FILE`, strace records every opened file; any file but the binary is a failure. The exit
code is 1 if a run failed.
"""

from __future__ import annotations

import argparse
import ctypes  # noqa: TID251  Python has no module for inotify
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "tools"))  # the folder of the small files

from hostile_programs import CANARY, hostile_binaries
from patience import patient
from small_files import onnx_seeds

from qnnmem.child import limit_memory
from qnnmem.contract.rules import every_rule
from qnnmem.errors import LoadError, QnnMemError
from qnnmem.lpai import PrepareOptions, prepare
from qnnmem.lpai.binary import pack
from qnnmem.lpai.net_run.device import Device, DeviceSettings
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.lpai.profiles import profile
from qnnmem.qnn.codes import codes

Answer = tuple[str, str]  # the end of a run, and the reason if it failed
_HANG_S = 20
_LONGEST = 2000
_MEMORY = 8 << 30
_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")
_NAME, _TRAPS = "hostile.bin", "program-traps-"
_OPENED = re.compile(r'(\d+) +openat2?\([^,]*, "([^"]*)".*(?: = \d+|unfinished \.\.\.>)$')


def prepared_binaries(folder: Path) -> list[bytes]:
    """Return valid binaries with programs: with a branch, quantized, stateful."""
    found = []
    for number, model in enumerate(onnx_seeds()):
        path = folder / f"seed{number}.onnx"
        path.write_bytes(model)
        made = prepare({"graph": path}, PrepareOptions(allow_float=True, time_limit_s=600.0))
        found.append(b"".join(pack(made.context)))
    return found


class OpenWatch:
    """Reports every file of some folders that any process opens, through inotify on Linux."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for folder in folders:
            if self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_OPEN) < 0:
                raise OSError(ctypes.get_errno(), f"{folder} cannot be watched")

    def opened(self) -> list[str]:
        """Return the names of files opened since the last call, without folders."""
        names: list[str] = []
        while True:
            try:
                events = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return names
            at = 0
            while at < len(events):
                _, _, _, length = _EVENT.unpack_from(events, at)
                name = events[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                names += [name.decode()] if name else []
                at += _EVENT.size + length

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)


@contextmanager
def traps() -> Iterator[tuple[Path, OpenWatch]]:
    """Yield a work folder, and a watch on the folder of the trap files."""
    with tempfile.TemporaryDirectory(prefix=_TRAPS) as name:
        place, work = Path(name, "place"), Path(name, "work")
        work.mkdir()
        (place / "sub").mkdir(parents=True)
        for file in (CANARY, f"sub/{CANARY}", "constants", f"{CANARY}.data"):
            (place / file).write_bytes(b"secret!!" * 512)
        before = Path.cwd()
        watch = OpenWatch([place, place / "sub"])
        os.chdir(place)
        try:
            yield work, watch
        finally:
            os.chdir(before)
            watch.close()


def execute(binary: Path) -> None:
    """Load a binary and execute its graphs, as net-run's child does."""
    settings = DeviceSettings(binary, binary.stat().st_size, profile())
    device = Device(settings, ApiTimes(None), lambda _level, _text: None, limited=True)
    graphs = device.create()
    for graph in graphs:
        device.allocate(graph.name, 1)
        device.retrieve(graph.name)
        device.configure(graph.name)
        device.finalize(graph.name)
        sizes = [graph.model.tensors[name].nbytes for name in graph.inputs]
        for _ in range(2):
            device.execute(graph.name, [memoryview(bytes(size)) for size in sizes])
    device.close()


def _in_child(binary: Path, answers: int) -> None:
    """Execute, write the outcome and exit in every case.

    A child that returned would run the parent's tests and remove its folders.
    """
    try:
        outcome, why = _outcome(binary)
        os.write(answers, f"{outcome}\n{why}".encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _outcome(binary: Path) -> Answer:
    """Execute under a memory limit and classify the end."""
    try:
        limit_memory(_MEMORY)
        tempfile.tempdir = str(binary.parent)
        execute(binary)
        outcome, why = "ran", ""
    except (QnnMemError, MemoryError) as exc:
        kind = "unreadable" if isinstance(exc, LoadError) else "refused"
        outcome, why = str(getattr(exc, "code", kind)), ""
        if not str(exc).isprintable() or len(str(exc)) > _LONGEST:
            outcome, why = "FAILED", f"not one plain line: {str(exc)[:200]!r}"
    except BaseException as exc:  # the very error that this program looks for
        outcome, why = "FAILED", f"{type(exc).__name__}: {exc}"[:300]
    return outcome, why


def answer_of_child(binary: Path) -> Answer:
    """Return how a binary ended in its own process; a crash there is not a failure."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _in_child(binary, writing)
    os.close(writing)
    until = time.monotonic() + patient(_HANG_S)
    with os.fdopen(reading, "rb") as answers:
        while not (done := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < until:
            time.sleep(0.002)
        if not done:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "ended by time", ""
        said = answers.read().decode("utf-8", "replace")
    outcome, _, why = said.partition("\n")
    return (outcome, why) if outcome else ("crashed", "")


class TrapReader:
    """Executes binaries in a folder with the files that their programs name."""

    def __init__(self, folder: Path, watch: OpenWatch) -> None:
        self._file, self._watch = folder / _NAME, watch

    def read(self, binary: bytes) -> Answer:
        """Execute a binary; opening a trap file is a failure in every case."""
        self._file.write_bytes(binary)
        self._watch.opened()
        answer = answer_of_child(self._file)
        opened = self._watch.opened()
        return ("FAILED", f"opened {opened[0]!r}") if opened else answer


def warm_up(binary: bytes, folder: Path) -> None:
    """Import and read everything once, so that child processes open no such file."""
    path = folder / "sound.bin"
    path.write_bytes(binary)
    execute(path)
    codes(), every_rule()


def unexpected(trace: str) -> list[str]:
    """Return the files in strace's lines that no program may open, after the first binary.

    The first process is left out: it runs no program, but removes folders at the end.
    """
    lines = trace.splitlines()
    begins = next((at for at, line in enumerate(lines) if _NAME in line), len(lines))
    ours = lines[0].split(" ", 1)[0] if lines else ""
    found = (match for line in lines[begins:] if (match := _OPENED.match(line)))
    return sorted({m[2] for m in found if m[1] != ours and not _is_ours(m[2])})


def _is_ours(path: str) -> bool:
    """True for the binary, a trial's own files, and files that allocators and threads read."""
    if _TRAPS in path:
        return "/place" not in path
    return path.startswith(("/dev/null", "/proc/self/maps", "/sys/devices/system/cpu"))


def _traced(arguments: Sequence[str], trace: Path) -> int:
    strace = shutil.which("strace")
    if strace is None:
        raise SystemExit("strace is not installed")
    command = [strace, "-f", "-qq", "-e", "trace=openat,openat2", "-s", "500", "-o", str(trace)]
    run = [sys.executable, __file__, *arguments]
    quiet = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}  # telemetry opens its own files
    done = subprocess.run([*command, *run], check=False, env=quiet)
    others = unexpected(trace.read_text("utf-8", "replace"))
    print(f"{len(others)} other files opened: {', '.join(others[:20])}")
    return done.returncode or (1 if others else 0)


def main() -> int:
    """Read the options, run, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="binaries to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="write all opened files here, by strace")
    given = parser.parse_args()
    if given.trace is not None:
        words = [f"--count={given.count}", f"--seed={given.seed}"]
        return _traced(words, given.trace.absolute())
    with tempfile.TemporaryDirectory() as folder:
        binaries = prepared_binaries(Path(folder))
    failed = 0
    with traps() as (work, watch):
        warm_up(binaries[0], work)
        reader = TrapReader(work, watch)
        for index, binary in enumerate(hostile_binaries(given.count, given.seed, binaries)):
            outcome, why = reader.read(binary)
            if outcome == "FAILED":
                failed += 1
                print(f"binary {given.seed}/{index}: {why}", flush=True)
    print(f"{given.count} binaries, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
