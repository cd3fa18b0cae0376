"""One run of qnnmem on hostile files: its environment, and forbidden outcomes.

A case runs in a fork of this process, which has already imported all modules: this takes a few
milliseconds instead of half a second, and no case affects the next. The case has its own working
directory, home, temporary folder and cache; afterwards only its requested output may exist there.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

HANG_S = 20.0
ADDRESS_SPACE = 8 << 30
MOST_MEMORY = 1 << 30  # bytes of resident memory, with the 200 MiB of the fork
CODES = frozenset({0, 1, 2, 3})
FATAL_LIMIT = 134  # net-run's exit code for the abort of the real tool
_CACHED = re.compile(
    r"qnnmem(/[a-z]+-[0-9a-f-]+\.[a-z]+|/compiled(/[0-9a-f]{32}(/lib[a-z_]+\.so)?)?)?"
)
# Verbs with output in spite of errors: a report on unreadable files, or a folder made before a
# failure.
_TELLS = frozenset({"lint", "net-run"})
_MARK = "QNNMEM_FUZZ_CASE"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


@dataclass(frozen=True)
class Link:
    """Symbolic or hard link in place of a file."""

    target: str
    hard: bool = False


Content = bytes | Link
Reader = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """Words for the command line (or `@reader FILE`), and the files that they name."""

    target: str
    index: int
    kind: str
    words: tuple[str, ...]
    files: Mapping[str, Content]
    stdin: bytes = b""
    outputs: tuple[str, ...] = ()  # files or folders that the words request

    @property
    def how(self) -> str:
        """Kind of the case: `verb`, or `reader` for a parser alone."""
        return "reader" if self.words[0].startswith("@") else "verb"


@dataclass(frozen=True)
class End:
    """End of a case; it passed if `faults` is empty."""

    code: int | None  # None: it was killed
    seconds: float
    memory: int
    faults: tuple[str, ...] = ()
    stderr: str = ""


@dataclass
class Box:
    """Folders of one case."""

    root: Path
    before: dict[str, bytes | str] = field(default_factory=dict)

    def fill(self, case: Case, cache: Path | None) -> None:
        """Make the folders and write the files of a case."""
        for name in ("cwd", "home", "tmp", "cache"):
            (self.root / name).mkdir(parents=True)
        links = [(name, item) for name, item in case.files.items() if isinstance(item, Link)]
        for name, content in case.files.items():
            if isinstance(content, bytes):
                self._place(name).write_bytes(content)
        for name, link in links:
            with contextlib.suppress(OSError):
                make = os.link if link.hard else os.symlink
                make(
                    self.root / "cwd" / link.target if link.hard else link.target, self._place(name)
                )
        (self.root / "stdin").write_bytes(case.stdin)
        if cache is not None:
            shutil.copytree(cache, self.root / "cache", dirs_exist_ok=True)
        self.before = dict(_listing(self.root / "cwd"))

    def _place(self, name: str) -> Path:
        path = self.root / "cwd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def leftovers(self, case: Case, code: int | None) -> Iterator[str]:
        """Yield a sentence for each unexpected, missing or changed file after a case."""
        after = dict(_listing(self.root / "cwd"))
        for name in sorted(after.keys() - self.before.keys()):
            if not any(name == one or name.startswith(f"{one}/") for one in case.outputs):
                yield f"left {name!r} in the working directory"
            elif code == 2 and name in case.outputs and case.words[0] not in _TELLS:
                yield f"wrote {name!r} and gave exit code 2"
            elif name.endswith(".json") and not _is_json(after[name]):
                yield f"wrote {name!r}, which is not JSON"
        for name, content in self.before.items():
            forced = "--force" in case.words and name in case.outputs
            if after.get(name) != content and not forced:
                yield f"changed or removed {name!r}"
        for place in ("home", "tmp"):
            for name, _ in _listing(self.root / place):
                yield f"left {name!r} in the {place} folder"
        for name, _ in _listing(self.root / "cache"):
            if not _CACHED.fullmatch(name):
                yield f"left {name!r} in the cache"


def _listing(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(where, name)
            shown = str(path.relative_to(folder))
            if path.is_symlink():
                yield shown, f"link to {path.readlink()}"
            elif path.is_file():
                yield shown, path.read_bytes()
            elif path not in (folder, *folder.parents):
                yield shown, "folder"


def _is_json(content: bytes | str) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


# --- Running -------------------------------------------------------------------------------------


@dataclass
class _Running:
    case: Case
    box: Box
    pid: int
    started: float
    killed: bool = False


@dataclass(frozen=True)
class Runner:
    """Runs cases, `jobs` at a time, in folders below `root`."""

    root: Path
    readers: Mapping[str, Reader]
    jobs: int = 1
    cache: Path | None = None
    traced: bool = False  # True: show where an error comes from

    def run(self, cases: Iterable[Case]) -> Iterator[tuple[Case, End]]:
        """Yield each case with its end, in the order in which they end."""
        waiting, running, number = iter(cases), list[_Running](), 0
        while True:
            while len(running) < self.jobs and (case := next(waiting, None)) is not None:
                running.append(self._start(case, number))
                number += 1
            if not running:
                return
            for one in list(running):
                if (end := self._look(one)) is not None:
                    running.remove(one)
                    yield one.case, end
            time.sleep(0.001)

    def one(self, case: Case) -> End:
        """Run a single case and return its end."""
        return next(end for _, end in self.run([case]))

    def _start(self, case: Case, number: int) -> _Running:
        box = Box(self.root / f"{os.getpid()}-{number}")
        box.fill(case, self.cache)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _become(case, box, self.readers, self.traced)
        return _Running(case, box, pid, time.monotonic())

    def _look(self, one: _Running) -> End | None:
        pid, status, used = os.wait4(one.pid, os.WNOHANG)
        seconds = time.monotonic() - one.started
        if pid == 0:
            if seconds > HANG_S * crowd() and not one.killed:
                one.killed = True
                _kill(one.pid)
                _end_strays(str(one.box.root))
            return None
        code = None if one.killed else os.waitstatus_to_exitcode(status)
        # Read before stray processes are killed: they might still write.
        strays = _end_strays(str(one.box.root))
        memory = used.ru_maxrss << 10
        stderr = _text(one.box.root / "err")
        faults = tuple(_faults(one.case, one.box, code, memory, strays))
        shutil.rmtree(one.box.root, ignore_errors=True)
        return End(code, seconds, memory, faults, stderr)


def _become(case: Case, box: Box, readers: Mapping[str, Reader], traced: bool) -> None:
    """Run the command line in the fork, as a new process would, and exit."""
    code = 70
    try:
        os.setsid()
        _settle(box, traced)
        # Handlers registered by the case run at its end; those of the forking process do not.
        at_exit = contextlib.ExitStack()
        with at_exit, patch.object(atexit, "register", at_exit.callback):
            code = _run(case, readers)
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        os._exit(code % 256)


def _run(case: Case, readers: Mapping[str, Reader]) -> int:
    if case.how == "reader":
        return _read(readers[case.words[0]], Path(case.words[1]))
    from qnnmem.cli import main

    sys.argv = ["qnnmem", *case.words]
    main()
    return 0


def _settle(box: Box, traced: bool) -> None:
    root = box.root
    os.environ.update(
        {
            _MARK: str(root),
            "HOME": str(root / "home"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "TMPDIR": str(root / "tmp"),
            "QNNMEM_TRACEBACK": "1" if traced else "0",
        }
    )
    tempfile.tempdir = None
    os.chdir(root / "cwd")
    for number, name in ((0, "stdin"), (1, "out"), (2, "err")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        file = os.open(root / name, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=how, closefd=False)  # noqa: SIM115
        for number, mode, how in (
            (0, "r", "surrogateescape"),
            (1, "w", "backslashreplace"),
            (2, "w", "backslashreplace"),
        )
    )
    # Only soft limits, because the children of qnnmem set their own limits.
    for kind, limit in ((resource.RLIMIT_AS, ADDRESS_SPACE), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit, hard))


def _read(reader: Reader, path: Path) -> int:
    from qnnmem.cli.streams import say
    from qnnmem.errors import QnnMemError
    from qnnmem.flags import flag

    try:
        reader(path)
    except QnnMemError as exc:
        return say(exc.sentence(flag), exc.exit_code)
    except MemoryError:
        return say("not enough memory for this input", 2)
    return 0


def crowd() -> float:
    """Return the number of waiting processes per CPU, the factor by which work slows down."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def _end_strays(mark: str) -> int:
    """Kill leftover processes of a case; return their number (on Linux)."""
    wanted, found = f"{_MARK}={mark}\0".encode(), 0
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                os.kill(int(entry.parent.name), signal.SIGKILL)
                found += 1
    return found


# --- Judging -------------------------------------------------------------------------------------


def _faults(case: Case, box: Box, code: int | None, memory: int, strays: int) -> Iterator[str]:
    out, err = _text(box.root / "out"), _text(box.root / "err")
    if code is None:
        yield f"hang: no end within {HANG_S:.0f} s"
    elif code not in CODES and not (code == FATAL_LIMIT and case.words[0] == "net-run"):
        last = err.strip().splitlines()[-1:] or [""]
        yield f"exit code {code}: {last[0][:200]}"
    elif code == 2 and not (out + err).strip():
        yield "exit code 2 without a sentence"
    if "Traceback (most recent call last)" in err:
        yield "a traceback"
    if memory > MOST_MEMORY:
        yield f"memory: {memory >> 20} MiB"
    if odd := _odd(out + err):
        yield f"raw characters {odd} in the output"
    if strays and code is not None:
        yield f"{strays} processes left"
    yield from box.leftovers(case, code)


def _odd(text: str) -> str:
    odd = {c for c in set(text) if unicodedata.category(c) in _INVISIBLE} - {"\n", "\t"}
    return ", ".join(f"U+{ord(c):04X}" for c in sorted(odd)[:5])


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(64 << 20).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def family(faults: Sequence[str]) -> str:
    """Return the first fault without numbers and names, to group failures."""
    return re.sub(r"'[^']*'|\d+", "_", faults[0])[:80] if faults else ""
