"""The child program: serves each request in a separate, forked process.

Forking has three uses. If a request crashes the library, only that request is lost. The memory
limit and the peak apply to one request. And the compiler has internal state: only the first compile
of a process gives the same bytes every time.

Standard output and error are the log, so replies use a descriptor that libraries do not know.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from qnnmem.child import limit_memory, open_replies
from qnnmem.htp.requests import (
    END_MARK,
    MAX_FRAME,
    AnyRequest,
    CallsRequest,
    CompareRequest,
    CompileRequest,
    ComposeRequest,
    Ended,
    LibraryRefusal,
    ListenRequest,
    LoadRequest,
    QuantizeRequest,
    Served,
    Started,
    VersionsRequest,
    WaitRequest,
)
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.wire import WireMessage, encode, read_frame, write_frame

_MAX_REASON = 2000
_BY_ONNXRUNTIME = (CompileRequest, CompareRequest, ListenRequest, QuantizeRequest)


def main() -> int:
    """Serve requests until the parent closes the pipe."""
    replies = open_replies()
    if sys.argv[2:] == ["warm"]:
        _warm()
    while (frame := read_frame(sys.stdin.buffer, Served, MAX_FRAME)) is not None:
        served, _ = frame
        if isinstance(served.request, _BY_ONNXRUNTIME):
            _warm()
        pid, results = _start(served, replies.fileno())
        write_frame(replies, Started(pid))
        ended, reply = _finish(pid, results)
        os.write(2, f"\n{END_MARK} {served.number}\n".encode())
        write_frame(replies, ended, reply)
    return 0


def _warm() -> None:
    """Import the modules that every compile needs; the libraries are loaded after forking."""
    import contextlib

    with contextlib.suppress(ImportError):  # the request will report it
        import_onnxruntime()  # for the processes forked from here


def _start(served: Served, replies_fd: int) -> tuple[int, int]:
    """Fork the process of a request; return its process id and the pipe for its reply."""
    results, answers = os.pipe()
    pid = os.fork()
    if pid:
        os.close(answers)
        return pid, results
    status = 1
    try:
        os.close(results)
        os.close(replies_fd)  # else the parent would not notice the end of this program
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Encoded now: once memory has run out, too little may be left to encode this reply.
        out_of_memory = encode(LibraryRefusal("MemoryError", _stage(served), memory=True))
        with os.fdopen(answers, "wb") as stream:
            try:
                reply = encode(_answer(served))
            except MemoryError:
                reply = out_of_memory
            stream.write(reply)
        status = 0
    finally:
        os._exit(status)  # no clean-up: the library's own clean-up may crash


def _finish(pid: int, results: int) -> tuple[Ended, bytes]:
    """Return the exit status, the costs and the encoded reply of a request's process."""
    with os.fdopen(results, "rb") as stream:
        reply = stream.read(MAX_FRAME)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = Ended(code, usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime)
    return ended, reply if code == 0 else b""


def _answer(served: Served) -> WireMessage:
    from qnnmem.errors import QnnMemError, Refused

    try:
        perform = _performer(served.library, served.request)
        # The limit is for the library. Import first: an import that runs out of memory may crash.
        limit_memory(served.memory_limit)
        return perform()
    except Refused as exc:
        return LibraryRefusal(str(exc)[:_MAX_REASON], exc.stage, exc.code)
    except QnnMemError as exc:  # about files that the user named
        return LibraryRefusal(str(exc)[:_MAX_REASON], "usage")
    except MemoryError:
        raise
    except Exception as exc:  # the parent reports it
        sentence = f"{type(exc).__name__}: {exc}"
        return LibraryRefusal(sentence[:_MAX_REASON], _stage(served))


def _stage(served: Served) -> str:
    return type(served.request).__name__.removesuffix("Request").lower()


def _performer(folder: Path, request: AnyRequest) -> Callable[[], WireMessage]:
    """Return the function that performs a request, after importing its modules."""
    from qnnmem.htp.native import qnn_calls, session

    match request:
        case VersionsRequest():
            return partial(qnn_calls.versions, folder)
        case LoadRequest():
            return partial(qnn_calls.load, folder, request)
        case CallsRequest():
            return partial(qnn_calls.carry_out, folder, request)
        case ComposeRequest():
            from qnnmem.htp.native.compose import compose

            return partial(compose, folder, request)
        case QuantizeRequest():
            return partial(session.quantize, request)
        case ListenRequest():
            return partial(session.listen, folder, request)
        case CompileRequest():
            return partial(session.compile_model, folder, request)
        case CompareRequest():
            return partial(session.compare, folder, request)
        case WaitRequest():
            return _wait


def _wait() -> WireMessage:
    """Block until killed, for tests."""
    signal.pause()
    return LibraryRefusal("the signal came")


if __name__ == "__main__":
    sys.exit(main())
