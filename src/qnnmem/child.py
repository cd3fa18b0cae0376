"""Run child processes in an empty folder, with limits on memory and time.

The parent uses `ChildProcess`; the program in the child calls `serve`. The two exchange messages
of `qnnmem.wire`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Self, TypeVar, overload

from qnnmem.deadline import Deadline, enforced_s
from qnnmem.errors import ChildFailed, ChildLost, OutputError, UsageError
from qnnmem.machine import address_space_limit, usable_memory
from qnnmem.quiet_onnxruntime import SILENCE
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import sentence
from qnnmem.units import format_size
from qnnmem.wire import ChildFailure, Frame, WireMessage, decode, read_frame, read_raw, write_frame

# Address space of a child: ONNX files have at most 2 GiB, and copies of weights must fit, too.
MEMORY_LIMIT = 12 << 30
# Maximum size of each part of a reply, unless the request sets another limit. Replies are mostly
# names, shapes and sentences.
REPLY_LIMIT = 64 << 20
_LEAST_MEMORY = 2 << 30
_NOTHING: Mapping[str, str] = MappingProxyType({})
# Threads that a library starts in advance cost address space without any benefit.
_ONE_THREAD = MappingProxyType(
    dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
)

T = TypeVar("T", bound=WireMessage)
_LIFELINE = "QNNMEM_LIFELINE"  # environment variable with the child's end of a pipe

Handler = Callable[[Any, bytes], "WireMessage | tuple[WireMessage, bytes]"]


def memory_limit(largest: int | None = MEMORY_LIMIT) -> int:
    """Return the address-space limit of a child: 3/4 of the memory, at most `largest` bytes.

    The result never exceeds the limit of this process (`ulimit -v`), because the system would
    refuse it.
    """
    there = usable_memory()
    wanted = MEMORY_LIMIT if there is None else there // 4 * 3
    wish = max(_LEAST_MEMORY, wanted if largest is None else min(largest, wanted))
    own = address_space_limit()
    return wish if own is None else min(wish, own)


def describe_limit(limit: int) -> str:
    """Return an address-space limit as text, with the reason if `ulimit` sets it."""
    own = address_space_limit()
    why = " (limited by ulimit -v)" if own is not None and own <= limit else ""
    return f"its {format_size(limit)} of address space{why}"


def limit_memory(limit: int) -> None:
    """Limit the address space of this process; a crash leaves no core file."""
    try:
        import resource
    except ImportError:  # not on Windows: there the time limit is the only limit
        return
    own = address_space_limit()
    limit = limit if own is None else min(limit, own)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def child_environment(folder: Path, more: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """Return a child's environment: Python path, no telemetry, one thread, temporary `folder`."""
    # Absolute, because the child works in another folder.
    paths = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)  # noqa: PTH100
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    return {**os.environ, "PYTHONPATH": paths, **SILENCE, **_ONE_THREAD, **places, **more}


class ChildFolder:
    """A child's folders: an empty working folder, and a folder for its own files.

    A relative file name that slips through a check finds no file in the empty folder.
    """

    def __init__(self) -> None:
        self._scratch = temporary_folder()
        self.files = Path(self._scratch.name)
        self.empty = self.files / "empty"
        try:
            self.empty.mkdir()
        except OSError as exc:
            self._scratch.cleanup()
            raise OutputError(f"no temporary folder can be created ({exc.strerror})") from exc

    def remove(self) -> None:
        """Remove both folders with their contents; the child must have ended."""
        with suppress(OSError):  # listing a folder needs a file descriptor, and none may be left
            self.empty.rmdir()
            self.files.rmdir()
        self._scratch.cleanup()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes that it started."""
    # poll() must not be called: until a dead leader is waited for, its id still identifies its
    # group.
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):  # no groups on Windows
        process.kill()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, close its pipes and wait for it."""
    kill_group(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # unsent bytes to a dead child
                continue
    process.wait()


def open_replies() -> BinaryIO:
    """Return the pipe to the parent, and redirect stdout, because libraries print to it."""
    if _LIFELINE in os.environ:
        die_with_parent(int(os.environ[_LIFELINE]))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def serve(handlers: Mapping[type[WireMessage], Handler]) -> int:
    """In a child, answer each request with its type's handler until the parent closes the pipe.

    The program's first argument is its memory limit. An exception becomes a `ChildFailure`.
    """
    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    requests: Any = reduce(or_, handlers)
    while (frame := read_raw(sys.stdin.buffer, limit)) is not None:
        try:
            request = decode(frame[0], requests)
            answer = handlers[type(request)](request, frame[1])
        except MemoryError:
            answer = ChildFailure(f"{describe_limit(limit)} are used up")
        except Exception as exc:  # the parent reports it
            answer = ChildFailure(sentence(exc))
        write_frame(replies, *(answer if isinstance(answer, tuple) else (answer,)))
    return 0


def die_with_parent(lifeline: int) -> None:
    """Make the kernel kill this child's group when the parent's end of a pipe closes.

    A thread could not do this: native code can hold the interpreter lock for minutes. A
    parent-death signal could not do it either: it arrives as soon as the starting thread ends.
    """
    import fcntl
    import select

    signal.signal(signal.SIGIO, signal.SIG_DFL)  # the default action ends the process
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # the pipe was closed before the signal was set up
        os._exit(1)


class _Lifeline:
    """Pipe that is open as long as the parent lives and needs the child."""

    def __init__(self) -> None:
        self.child_end, self._end = os.pipe() if os.name == "posix" else (-1, -1)
        self.passed = () if self.child_end < 0 else (self.child_end,)
        self.words = {_LIFELINE: str(self.child_end)} if self.passed else {}

    def let_go(self) -> None:
        """Close the child's end of the pipe in the parent, after the child has inherited it."""
        for number in self.passed:
            os.close(number)

    def cut(self) -> None:
        """Close the parent's end of the pipe, which ends the child."""
        end, self._end = self._end, -1
        if end >= 0:
            os.close(end)


class ChildProcess:
    """A child process that runs a module of qnnmem with limits on memory and time.

    The child starts immediately in an empty folder, gets its memory limit as its first argument,
    and is killed at the end of the `with` block. Paths sent to it must be absolute.
    """

    _is_lost = False  # True: no further answer can be trusted
    _pause_s = threading.TIMEOUT_MAX  # maximum pause between two checks of a deadline

    def __init__(
        self,
        module: str,
        time_limit_s: float,
        environment: Mapping[str, str] = _NOTHING,
        *,
        words: Sequence[str] = (),  # arguments after the memory limit
        errors: BinaryIO | int | None = None,  # a file for what it prints
    ) -> None:
        # No child outlives the request that it works for.
        self.deadline = Deadline.after(min(time_limit_s, enforced_s()))
        self.memory_limit = memory_limit()
        self._expired, self._ended = threading.Event(), threading.Event()
        self._folder = ChildFolder()
        try:
            self._lifeline = _Lifeline()
        except BaseException:
            self._folder.remove()
            raise
        command = [sys.executable, "-P", "-m", module, str(self.memory_limit), *words]
        more = {**environment, **self._lifeline.words}
        try:
            self._process = start(
                command,
                self._folder,
                child_environment(self._folder.files, more),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if errors is None else errors,
                pass_fds=self._lifeline.passed,
            )
        except BaseException:
            self._lifeline.cut()
            raise
        finally:
            self._lifeline.let_go()
        try:
            threading.Thread(target=self._watch, daemon=True).start()
        except BaseException as exc:
            self._end()
            if isinstance(exc, RuntimeError):  # no thread available
                raise UsageError(
                    f"the thread that enforces a child's time limit cannot be started ({exc})"
                ) from exc
            raise

    @property
    def expired(self) -> bool:
        """True if the time limit ended the child."""
        return self._expired.is_set()

    def give_up(self) -> None:
        """Kill the child immediately, from any thread; a waiting caller receives None."""
        kill_group(self._process)

    def send(self, message: WireMessage, payload: bytes | bytearray | memoryview = b"") -> None:
        """Send one frame; if that fails, kill the child, so that `receive` returns None."""
        try:
            if self._process.stdin is not None:
                write_frame(self._process.stdin, message, payload)  # type: ignore[arg-type]  # IO[bytes] of Popen
        except (OSError, ValueError):  # otherwise both processes would wait
            self.give_up()

    @overload
    def receive(self, kind: type[T], limit: int = REPLY_LIMIT) -> Frame[T] | None: ...
    @overload
    def receive(self, kind: Any, limit: int = REPLY_LIMIT) -> Frame[Any] | None: ...
    def receive(self, kind: Any, limit: int = REPLY_LIMIT) -> Frame[Any] | None:
        """Return the child's next frame, of the given type; None if no valid frame arrives.

        Each part of the frame has at most `limit` bytes. After a crash, a kill or an invalid
        message, this call and all later calls return None, because bytes left in the pipe could be
        the answer to an earlier request.
        """
        frame = None
        try:
            if self._process.stdout is not None and not self._is_lost:
                frame = read_frame(self._process.stdout, kind, limit)
        except (OSError, ValueError):
            pass
        if frame is None and not self._is_lost:
            self._is_lost = True
            self.give_up()
        return frame

    def ask(
        self, request: WireMessage, kind: type[T], payload: bytes = b"", limit: int = REPLY_LIMIT
    ) -> Frame[T]:
        """Send a request; return the child's answer, whose parts have at most `limit` bytes each.

        Raise ChildLost if the child ended without an answer, and ChildFailed if it answered with
        an error.
        """
        self.send(request, payload)
        frame: Frame[T | ChildFailure] | None = self.receive(kind | ChildFailure, limit)
        if frame is None:
            raise self.lost(request.doing)
        reply, rest = frame
        if isinstance(reply, ChildFailure):
            raise ChildFailed(reply.sentence)
        return reply, rest

    def lost(self, doing: str) -> ChildLost:
        """Return the error for a request without an answer; `doing` describes the request."""
        if self.expired:
            return ChildLost(f"{doing} did not finish within {self.deadline.limit_s:.3g} s")
        limit = describe_limit(self.memory_limit)
        return ChildLost(f"{doing} crashed or used up {limit}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def _end(self) -> None:
        self._ended.set()
        kill_group(self._process)
        self._lifeline.cut()  # kills the rest of a group whose leader has ended
        end(self._process)
        self._folder.remove()

    def _watch(self) -> None:
        """Kill the child after its deadline, which may be moved while the child runs."""
        while not self._ended.wait(min(self.deadline.left_s, self._pause_s)):
            if self.deadline.is_over:
                self._expired.set()
                kill_group(self._process)
                return


def start(
    command: list[str], folder: ChildFolder, environment: Mapping[str, str], **pipes: Any
) -> subprocess.Popen[bytes]:
    """Start a child in its own process group; if the start fails, remove the child's folder."""
    try:
        return subprocess.Popen(  # noqa: S603  a module of this package, no shell
            command, cwd=folder.empty, env=dict(environment), start_new_session=True, **pipes
        )
    except OSError as exc:
        folder.remove()
        reason = (exc.strerror or str(exc)).lower()
        raise UsageError(f"no child process can be started ({reason})") from exc
