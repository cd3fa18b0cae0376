"""The child program: answers each request in a process of its own, forked for it.

Forking has three uses. A request that crashes the library costs that request. The memory limit
and the peak are those of one request. And the compiler keeps state: only the first compile of a
process gives the same bytes every time.

Requests come as frames on standard input, replies leave on a descriptor that libraries do not
know. Standard output and error are the log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from qnnmem.child import die_with_parent, limit_memory, read_frame, write_frame
from qnnmem.htp.protocol import END_MARK, MAX_FRAME
from qnnmem.quiet_onnxruntime import import_onnxruntime

_MAX_REASON = 2000


def main() -> int:
    """Serve until the parent closes the pipe."""
    replies_fd, lifeline_fd, warm = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "warm"
    die_with_parent(lifeline_fd)
    if warm:
        _warm()
    with os.fdopen(replies_fd, "wb") as replies:
        while (frame := read_frame(sys.stdin.buffer, MAX_FRAME)) is not None:
            request = frame[0]
            if request["verb"] in ("compile", "compare", "execute", "listen", "quantize"):
                _warm()
            pid, results = _start(request, replies_fd)
            write_frame(replies, {"event": "started", "pid": pid})
            ended = _finish(pid, results)
            os.write(2, f"\n{END_MARK} {request['id']}\n".encode())
            write_frame(replies, {"event": "ended", **ended})
    return 0


def _warm() -> None:
    """Import what every compile needs; the libraries themselves are only loaded after forking."""
    import contextlib

    with contextlib.suppress(ImportError):  # the request will say so
        import_onnxruntime()  # for the processes forked from here


def _start(request: dict[str, Any], replies_fd: int) -> tuple[int, int]:
    """Process of a request and the pipe on which it will answer."""
    results, answers = os.pipe()
    pid = os.fork()
    if pid:
        os.close(answers)
        return pid, results
    status = 1
    try:
        os.close(results)
        os.close(replies_fd)  # else the parent would not see this program's end
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        limit_memory(request["memory_limit"])
        reply = json.dumps(_answer(request)).encode()
        with os.fdopen(answers, "wb") as stream:
            stream.write(reply)
        status = 0
    finally:
        os._exit(status)  # no clean-up: the library's own may crash


def _finish(pid: int, results: int) -> dict[str, Any]:
    """Reply, exit status and costs of a request's process."""
    with os.fdopen(results, "rb") as stream:
        blob = stream.read(MAX_FRAME)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    try:
        reply = json.loads(blob) if code == 0 else None
    except ValueError:
        reply = None
    return {
        "reply": reply,
        "status": code,
        "peak_rss": usage.ru_maxrss << 10,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from qnnmem.errors import QnnMemError, Refused

    try:
        return {"done": _perform(request["verb"], request["options"])}
    except Refused as exc:
        return {"refused": str(exc)[:_MAX_REASON], "stage": exc.stage, "code": exc.code}
    except QnnMemError as exc:  # about files that the user named
        return {"refused": str(exc)[:_MAX_REASON], "stage": "usage", "code": None}
    except MemoryError:
        return {"refused": "MemoryError", "stage": request["verb"], "code": None, "memory": True}
    except Exception as exc:  # the parent reports it
        text = f"{type(exc).__name__}: {exc}"
        return {"refused": text[:_MAX_REASON], "stage": request["verb"], "code": None}


def _perform(verb: str, options: dict[str, Any]) -> dict[str, Any]:
    if verb in ("versions", "load"):
        from qnnmem.htp.native import backend

        return backend.versions(options) if verb == "versions" else backend.load(options)
    if verb == "system_info":
        from qnnmem.htp.native.system import system_info

        return system_info(options)
    if verb == "calls":
        from qnnmem.htp.native.client import carry_out

        return carry_out(options)
    if verb == "compose":
        from qnnmem.htp.native.compose import compose

        return compose(options)
    if verb == "quantize":
        from qnnmem.htp.native.quantize import quantize

        return quantize(options)
    if verb in ("compile", "compare", "execute"):
        from qnnmem.htp.native import session

        work = {"compile": session.compile_model, "compare": session.compare}
        return work.get(verb, session.execute)(options)
    if verb == "listen":
        from qnnmem.htp.native.listener import listen

        return listen(options)
    if verb == "wait":  # for tests: a request that never ends by itself
        signal.pause()
    raise ValueError(f"no verb {verb!r}")


if __name__ == "__main__":
    sys.exit(main())
