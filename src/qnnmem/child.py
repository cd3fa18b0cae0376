"""Child processes at arm's length: frames on a pipe, limits on memory, and a sure end.

A frame is two lengths, a JSON header and a binary payload.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Self

from qnnmem.deadline import enforced_s
from qnnmem.errors import OutputError, UsageError
from qnnmem.machine import address_space_limit, usable_memory
from qnnmem.quiet_onnxruntime import SILENCE
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import sentence
from qnnmem.units import format_size

LENGTHS = struct.Struct("<QQ")
# Address space of a child; ONNX files end at 2 GiB, and copies of weights must fit too.
MEMORY_LIMIT = 12 << 30
# Of a reply, unless the request says otherwise: names, shapes, sentences.
REPLY_LIMIT = 64 << 20
_LEAST_MEMORY = 2 << 30
_NOTHING: Mapping[str, str] = MappingProxyType({})
# Threads that a library starts before it has work cost address space and do nothing for us.
_ONE_THREAD = MappingProxyType(
    dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
)

_LIFELINE = "QNNMEM_LIFELINE"  # number of the pipe's end that a child holds

Frame = tuple[dict[str, Any], bytes]
Verb = Callable[[dict[str, Any], bytes], Frame]


def write_frame(stream: BinaryIO, header: dict[str, Any], payload: bytes = b"") -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), len(payload)))
    stream.write(text)
    stream.write(payload)
    stream.flush()


def read_frame(stream: BinaryIO, limit: int) -> Frame | None:
    """Receive one frame, or None at the end of the stream."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    text_size, payload_size = LENGTHS.unpack(lengths)
    if max(text_size, payload_size) > limit:
        return None
    text, payload = stream.read(text_size), stream.read(payload_size)
    if len(text) < text_size or len(payload) < payload_size:
        return None
    header = json.loads(text)
    return (header, payload) if isinstance(header, dict) else None


def memory_limit(most: int | None = MEMORY_LIMIT) -> int:
    """Address space for a child: three quarters of the machine's memory, at most `most` bytes.

    Never more than this process has itself (`ulimit -v`): the system would refuse to set it.
    """
    there = usable_memory()
    wanted = MEMORY_LIMIT if there is None else there // 4 * 3
    wish = max(_LEAST_MEMORY, wanted if most is None else min(most, wanted))
    own = address_space_limit()
    return wish if own is None else min(wish, own)


def describe_limit(limit: int) -> str:
    """A child's address space in words, with the reason where that is not ours."""
    own = address_space_limit()
    why = ", all that ulimit -v leaves it" if own is not None and own <= limit else ""
    return f"its {format_size(limit)} of address space{why}"


def limit_memory(limit: int) -> None:
    """Limit the address space of this process; a crash leaves no core file."""
    try:
        import resource
    except ImportError:  # not on Windows: there the time limit is the only one
        return
    own = address_space_limit()
    limit = limit if own is None else min(limit, own)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def child_environment(folder: Path, more: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """Ours for a child: our modules, no telemetry, one thread, and `folder` for its files."""
    # Absolute, because the child works in another folder.
    paths = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)  # noqa: PTH100
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    return {**os.environ, "PYTHONPATH": paths, **SILENCE, **_ONE_THREAD, **places, **more}


class ChildFolder:
    """What a child has of the file system: an empty folder to work in, one for its own files.

    In the empty one a name that escapes a check finds nothing to read.
    """

    def __init__(self) -> None:
        self._scratch = temporary_folder()
        self.files = Path(self._scratch.name)
        self.empty = self.files / "empty"
        try:
            self.empty.mkdir()
        except OSError as exc:
            self._scratch.cleanup()
            raise OutputError(f"no temporary folder can be made ({exc.strerror})") from exc

    def remove(self) -> None:
        """Remove both with all that is in them; the child must be gone."""
        with suppress(OSError):  # looking inside takes open files, of which none may be left
            self.empty.rmdir()
            self.files.rmdir()
        self._scratch.cleanup()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all it started."""
    # Not poll(): a leader that has ended but was not collected still names its group.
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):  # no groups on Windows
        process.kill()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, close its pipes and collect it."""
    kill_group(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # unsent bytes to a dead child
                continue
    process.wait()


def open_replies() -> BinaryIO:
    """In a child: the pipe to the parent, out of reach of libraries that print to stdout."""
    if _LIFELINE in os.environ:
        die_with_parent(int(os.environ[_LIFELINE]))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def serve(verbs: Mapping[str, Verb]) -> int:
    """In a child: answer requests by their `verb` until the parent closes the pipe.

    The limit on memory is the only argument of the program. What fails is an `error` in the answer.
    """
    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    while (frame := read_frame(sys.stdin.buffer, limit)) is not None:
        options, payload = frame
        try:
            header, reply = verbs[options["verb"]](options, payload)
        except MemoryError:
            header, reply = {"error": f"{describe_limit(limit)} are used up"}, b""
        except Exception as exc:  # the parent reports it
            header, reply = {"error": sentence(exc)}, b""
        write_frame(replies, header, reply)
    return 0


def die_with_parent(lifeline: int) -> None:
    """In a child: have the kernel end this group when the parent's end of a pipe closes.

    A thread could not do it: native code may hold the interpreter for minutes. Neither could a
    signal at the parent's death: it comes when the thread ends that started the child.
    """
    import fcntl
    import select

    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which is deadly
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # it was closed before anybody listened
        os._exit(1)


class _Lifeline:
    """A pipe that is open as long as the parent lives and wants the child."""

    def __init__(self) -> None:
        self.child_end, self._end = os.pipe() if os.name == "posix" else (-1, -1)
        self.passed = () if self.child_end < 0 else (self.child_end,)
        self.words = {_LIFELINE: str(self.child_end)} if self.passed else {}

    def let_go(self) -> None:
        """Close the child's end once the child has it."""
        for number in self.passed:
            os.close(number)

    def cut(self) -> None:
        """Close the parent's end."""
        end, self._end = self._end, -1
        if end >= 0:
            os.close(end)


class ChildProcess:
    """A module of ours in a child process, with limits on memory and time, spoken to in frames.

    It starts at once in an empty folder, gets its memory limit as its only argument, and is gone
    when the block ends. Paths sent to it must be absolute.
    """

    _is_lost = False  # whether no answer can be trusted any more

    def __init__(
        self,
        module: str,
        time_limit_s: float,
        environment: Mapping[str, str] = _NOTHING,
        *,
        errors: BinaryIO | None = None,  # a file for what it prints
    ) -> None:
        # No child outlives the answer that it works for.
        self.time_limit_s = min(time_limit_s, enforced_s())
        self.memory_limit = memory_limit()
        self._expired = threading.Event()
        self._folder = ChildFolder()
        try:
            self._lifeline = _Lifeline()
        except BaseException:
            self._folder.remove()
            raise
        command = [sys.executable, "-P", "-m", module, str(self.memory_limit)]
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
        self._watchdog = threading.Timer(self.time_limit_s, self._expire)
        self._watchdog.daemon = True
        try:
            self._watchdog.start()
        except BaseException as exc:
            self._end()
            if isinstance(exc, RuntimeError):  # no thread to be had
                raise UsageError(f"no child process can be watched ({exc})") from exc
            raise

    @property
    def expired(self) -> bool:
        """Whether the child was ended because its time was over."""
        return self._expired.is_set()

    def give_up(self) -> None:
        """End the child at once, from any thread; whoever waits for an answer receives None."""
        kill_group(self._process)

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one frame; a child that did not get it whole is ended, which shows in `receive`."""
        try:
            if self._process.stdin is not None:
                write_frame(self._process.stdin, dict(header), payload)  # type: ignore[arg-type]  # IO[bytes] of Popen
        except (OSError, ValueError):  # it would wait for the rest, and we for its answer
            self.give_up()

    def receive(self, most: int = REPLY_LIMIT) -> Frame | None:
        """One frame of at most `most` bytes in each of its parts.

        None from a child that crashed, was ended or speaks nonsense, and ever after: what is left
        in the pipe could be the answer to an earlier question.
        """
        frame = None
        try:
            if self._process.stdout is not None and not self._is_lost:
                frame = read_frame(self._process.stdout, most)  # type: ignore[arg-type]  # as above
        except (OSError, ValueError, RecursionError):
            pass
        if frame is None and not self._is_lost:
            self._is_lost = True
            self.give_up()
        return frame

    def ask(
        self, header: Mapping[str, Any], payload: bytes = b"", most: int = REPLY_LIMIT
    ) -> Frame | None:
        """Send a request and receive its answer of at most `most` bytes."""
        self.send(header, payload)
        return self.receive(most)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._watchdog.cancel()
        end(self._process)
        self._lifeline.cut()
        self._folder.remove()

    def _expire(self) -> None:
        self._expired.set()
        kill_group(self._process)


def start(
    command: list[str], folder: ChildFolder, environment: Mapping[str, str], **pipes: Any
) -> subprocess.Popen[bytes]:
    """Start a child in its empty folder, which goes if it cannot; in a group of its own."""
    try:
        return subprocess.Popen(  # noqa: S603  our own module, no shell
            command, cwd=folder.empty, env=dict(environment), start_new_session=True, **pipes
        )
    except OSError as exc:
        folder.remove()
        reason = (exc.strerror or str(exc)).lower()
        raise UsageError(f"no child process can be started ({reason})") from exc
