"""Make each system call of each command fail once, and check the outcome.

    python tools/fail_calls.py                   every call of every command: an hour
    python tools/fail_calls.py watch check       only these commands
    python tools/fail_calls.py --most 25         25 calls of each command, evenly spread

A command runs in a fork with all modules loaded. The preloaded fail_calls.c counts its calls of
open, socket, fork, mmap, write, unlink and so on, and makes the Nth fail. The command must then
give its usual answer, or one sentence and an exit code other than success. These count as faults: a
traceback or exit code 70, success with another answer, a hang, an incomplete file or a file left in
the temporary folder, a process left over.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes  # noqa: TID251  # for the counter in fail_calls.c
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from fuzz_case import crowd

TOP = Path(__file__).resolve().parents[1]
_PRELOADED = "QNNMEM_FAIL_CALLS"
_MOST_S = 600.0  # seconds; a busy machine takes many times longer than an idle machine
_ANSWER_S = 300.0  # seconds for a server to answer
_LEFT_S = 60.0  # seconds for processes to end after the command
_SUBREAPER = 36
_NOT_JUDGED = re.compile(r"(?m)^[^\n]*\bcould not be judged: [^\n]*\n?")


@dataclass(frozen=True, slots=True)
class Command:
    """Command to run, and a function that talks to it meanwhile."""

    words: tuple[str, ...]
    talk: Callable[[Run], None] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Running command: its process, its folder, and the pipe to its standard input."""

    pid: int
    folder: Path
    into: int  # standard input of the command

    @property
    def said(self) -> str:
        """Text on standard error so far."""
        return (self.folder / "stderr").read_text("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of a command: exit code, output, files and leftover processes."""

    code: int
    out: str
    said: str
    files: dict[str, bytes]
    left: tuple[str, ...]
    calls: int
    failed: str  # name of the failed call; empty if the command made too few calls


class FailingCalls:
    """Runs commands in forks of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._library = ctypes.CDLL(os.environ[_PRELOADED])
        self._library.fail_calls_arm.argtypes = [ctypes.c_long]
        self._library.fail_calls_seen.restype = ctypes.c_long
        self._library.fail_calls_name.restype = ctypes.c_char_p
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)

    def run(self, command: Command, fail_at: int) -> Ended:
        """Run a command whose Nth call fails; for 0, no call fails."""
        self._number += 1
        folder = self._folder / f"run{self._number}"
        (folder / "tmp").mkdir(parents=True)
        for name in ("stdout", "stderr"):
            (folder / name).touch()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            self._child(command, folder, reader, fail_at)
        os.close(reader)
        try:
            if command.talk is not None:
                with contextlib.suppress(OSError):
                    command.talk(Run(pid, folder, writer))
        finally:
            os.close(writer)
        code = _waited(pid)
        self._library.fail_calls_disarm()
        left = [f"process {one}" for one in _left_processes()]
        left += (f"temporary {path.name}" for path in (folder / "tmp").iterdir())
        ended = Ended(
            code,
            (folder / "stdout").read_text("utf-8", "replace"),
            (folder / "stderr").read_text("utf-8", "replace"),
            dict(map(_content, filter(Path.is_file, folder.glob("out/*")))),
            tuple(left),
            self._library.fail_calls_seen(),
            self._library.fail_calls_name().decode(),
        )
        shutil.rmtree(folder, ignore_errors=True)
        return ended

    def _child(self, command: Command, folder: Path, reader: int, fail_at: int) -> None:
        code = 99
        try:
            os.setpgid(0, 0)
            os.dup2(reader, 0)
            for number, name in ((1, "stdout"), (2, "stderr")):
                made = os.open(folder / name, os.O_WRONLY | os.O_APPEND)
                os.dup2(made, number)
                os.close(made)
            os.chdir(folder)
            os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
            sys.argv = [
                "qnnmem",
                *(word.replace("{out}", str(folder / "out")) for word in command.words),
            ]
            code = _main(lambda: self._library.fail_calls_arm(fail_at))
        finally:
            os._exit(code)


def _content(path: Path) -> tuple[str, bytes]:
    """Return name and content of a file; varying parts of a text are replaced."""
    data = path.read_bytes()
    is_text = path.suffix in (".md", ".json")
    return path.name, _plain(data.decode("utf-8", "replace")).encode() if is_text else data


def _main(arm: Callable[[], None]) -> int:
    import threading

    from qnnmem import cli
    from qnnmem.lpai.runtime import context as runtime_context

    runtime_context._known.clear()
    arm()
    try:
        cli.main()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # exit code of the interpreter
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    return code


def _waited(pid: int) -> int:
    end = time.monotonic() + _MOST_S * crowd()
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -99


def _left_processes() -> list[int]:
    """Kill the remaining processes of the command; return them."""
    end = time.monotonic() + _LEFT_S * crowd()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii")
        found = [int(one) for one in text.split()]
        if not found or time.monotonic() > end:
            break
        time.sleep(0.02)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return found


def faults(usual: Ended, found: Ended) -> Iterator[str]:
    """Yield the faults of a command with a failed call."""
    if found.code == -99:
        yield "it hangs"
    elif found.code < 0:
        yield f"it is ended by signal {-found.code}"
    if "Traceback" in found.said or found.code in (70, 99):
        yield f"exit code {found.code}, a traceback: {found.said.strip().splitlines()[-1:]}"
    elif found.code == usual.code:
        if not _is_same(found.out, usual.out):
            yield f"exit code {found.code} with another answer: {found.out[:200]!r}"
        if found.files != usual.files:
            yield f"exit code {found.code} with other files: {sorted(found.files)}"
    elif not found.said.strip() and not found.out.strip() and "write" not in found.failed:
        yield f"exit code {found.code} without a message"
    elif found.code == 0:
        yield "exit code 0 with the failed call, but not without it"
    if any(usual.files.get(name) != data for name, data in found.files.items()):
        yield "a file that is incomplete or unexpected"
    yield from (f"left: {one}" for one in found.left)


def _is_same(found: str, usual: str) -> bool:
    """Return True for the usual answer; a worker may also report an error or close the pipe."""
    is_worker = "qnnmem-htp-worker" in usual
    said_error = "WorkerRefusal" in found or usual.startswith(found)
    return _plain(found) == _plain(usual) or (is_worker and said_error)


def _plain(text: str) -> str:
    """Return an answer without the parts that differ between runs.

    Lines about remedies that could not be judged are also removed: if a child fails, `fix` reports
    that and continues with the other remedies, which is correct.
    """
    text = _NOT_JUDGED.sub("", text)
    text = re.sub(r"/\S*/run\d+/", "", text)
    return re.sub(r"\d[\d,.]*", "0", " ".join(text.split("\nfunction ")[0].split()))


# --- The commands ---------------------------------------------------------------------------------


def commands(folder: Path) -> dict[str, Command]:
    """Return each command by name, with its own files."""
    client, watched, backend = folder / "client", folder / "program", folder / "libQnnTest.so"
    watch = TOP / "tests" / "watch"
    for target, source, *flags in (
        (client, TOP / "examples" / "lpai_client.c"),
        (watched, watch / "program.c"),
        (backend, watch / "backend.c", "-shared", "-fPIC"),
    ):
        words = ["cc", "-g", "-O1", str(source), "-o", str(target), *flags, "-ldl", "-lpthread"]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)  # noqa: S603
    model = folder / "image.onnx"
    maker = [sys.executable, str(TOP / "examples" / "make_models.py"), str(model)]
    subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    (folder / "qnnmem.toml").write_text(
        'models = ["small.csv"]\nbudget = { scratch = "16K" }\n', encoding="utf-8"
    )
    shutil.copy(TOP / "examples" / "keyword_spotting.csv", folder / "small.csv")
    binary = TOP / "examples" / "small_lpai.bin"
    fix = ("fix", str(model), "--dim", "batch=1", "-o", "{out}", "--cache", str(folder / "kept"))
    return {
        "check-client": Command(("check-client", "--", str(client), str(binary))),
        "watch": Command(("watch", "--", str(watched), str(backend))),
        "check": Command(("check", "--config", str(folder / "qnnmem.toml"))),
        "fix": Command(fix),
        "serve": Command(("serve", "--port", "0", "--no-browser", "--data", "data"), _browse),
        "htp-worker": Command(("htp-worker", "--cache", "cache"), _send_file),
    }


def _browse(run: Run) -> None:
    """Open the page, upload a list of buffers, and stop the workbench."""
    end = time.monotonic() + _ANSWER_S * crowd()
    text = (TOP / "examples" / "keyword_spotting.csv").read_bytes()
    headers = {"Content-Type": "application/octet-stream"}
    try:
        while not (found := re.search(r"http://\S+/", run.said)):
            if time.monotonic() > end or not _is_there(run.pid):
                return
            time.sleep(0.02)
        for path, body in (("", None), ("api/state", None), ("api/files?name=small.csv", text)):
            asked = urllib.request.Request(found[0] + path, body, headers if body else {})  # noqa: S310
            with contextlib.suppress(OSError, HTTPException):
                urllib.request.urlopen(asked, timeout=20).read()  # noqa: S310
    finally:
        with contextlib.suppress(OSError):
            os.kill(run.pid, signal.SIGTERM)


def _is_there(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _send_file(run: Run) -> None:
    """Send a hello message and a file as a client would, and disconnect."""
    import hashlib
    import io

    from qnnmem.htp.remote import messages
    from qnnmem.version import __version__
    from qnnmem.wire import write_frame

    data = b"a model" * 100
    file = messages.FileName(hashlib.sha256(data).hexdigest(), len(data))
    hello = messages.hello_frame(messages.Hello(messages.PROTOCOL, __version__))
    said = io.BytesIO()
    write_frame(said, messages.Have([file]))
    write_frame(said, messages.SendFile(file))
    write_frame(said, messages.FilePart(), data)
    os.write(run.into, messages.CLIENT_LINE + hello + said.getvalue())
    end = time.monotonic() + _ANSWER_S * crowd()
    while not re.search(b"Stored|WorkerRefusal", (run.folder / "stdout").read_bytes()):
        if time.monotonic() > end or not _is_there(run.pid):
            return
        time.sleep(0.02)


def tried(names: list[str], most: int, folder: Path) -> tuple[int, list[str]]:
    """Return the number of failed calls tried, and the faults."""
    engine, points, wrong = FailingCalls(folder / "runs"), 0, []
    known = commands(folder)
    for name in names or known:
        for _ in range(2):  # the first run imports and fills caches
            usual = engine.run(known[name], 0)
        if usual.code or usual.left or "Traceback" in usual.said:
            wrong.append(f"{name} without a failure: {usual.code} {usual.left} {usual.said}")
            print(wrong[-1], flush=True)
            continue
        step = 1 if not most else max(1.0, usual.calls / most)
        chosen = sorted({int(1 + at * step) for at in range(int(usual.calls / step))})
        for number in chosen:
            found = engine.run(known[name], number)
            points += bool(found.failed)
            found_faults = list(faults(usual, found))
            wrong += (f"{name}, call {number} ({found.failed}): {one}" for one in found_faults)
            if found_faults:
                print(*wrong[-len(found_faults) :], sep="\n", flush=True)
        print(
            f"{name}: {len(chosen):,} of {usual.calls:,} calls, exit code {usual.code}", flush=True
        )
    return points, wrong


def _warm() -> None:
    """Import the modules that the commands need, so that forks share them."""
    import importlib

    for name in ("onnx", "onnxruntime", "numpy.random", "uvicorn", "starlette.applications"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for path in sorted((TOP / "src" / "qnnmem").rglob("*.py")):
        words = path.relative_to(TOP / "src").with_suffix("").parts
        if words[-1] not in ("__main__", "pytest_plugin") and "compiled" not in words:
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(words).removesuffix(".__init__"))


def main() -> int:
    """Read the arguments and run; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commands", nargs="*")
    parser.add_argument(
        "--most", type=int, default=0, help=("calls to try for each command; 0: all")
    )
    given = parser.parse_args()
    if _PRELOADED not in os.environ:
        with tempfile.TemporaryDirectory(prefix="fail-calls-") as name:
            library = Path(name, "fail_calls.so")
            source = Path(__file__).with_suffix(".c")
            words = ["cc", "-O2", "-fPIC", "-shared", "-w", str(source), "-o", str(library), "-ldl"]
            subprocess.run(words, check=True)  # noqa: S603
            settings = {_PRELOADED: str(library), "LD_PRELOAD": str(library)}
            settings |= {"XDG_CACHE_HOME": str(Path(name, "cache")), "OPENBLAS_NUM_THREADS": "1"}
            again = [sys.executable, __file__, *sys.argv[1:]]
            return subprocess.run(again, env=os.environ | settings, check=False).returncode  # noqa: S603
    _warm()
    folder = Path(os.environ[_PRELOADED]).parent
    points, wrong = tried(given.commands, given.most, folder)
    print(f"{points:,} calls failed, {len(wrong):,} faults")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
