"""Process that has imported what child programs import, and forks them; see `warm_start`.

A keeper stands between: it tells the number of a child and how it ended, and collects it only when
the test has, so that the number names no other process before.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import resource
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

# Descriptors from here on are out of the way of those that a child is to have.
_CODE = [0]  # with which this process ends
_FAR = min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def main() -> int:
    """Serve until the process that runs the tests has gone."""
    import json

    # Registered first, so it runs last, in every process that is forked from here.
    atexit.register(_leave)
    line = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        import_module(name)
    gc.collect()
    gc.freeze()  # else each child's first collection would copy all pages
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(line, 1 << 20, 16)
        if not message:
            return 0
        if os.fork() == 0:
            line.close()
            _keep(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):  # none is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Start one child, tell its number and its end, and collect it when nobody asks any more."""
    report, *given = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(report)
        _become(request, given)
    for descriptor in given:
        os.close(descriptor)
    try:
        with socket.socket(fileno=report) as line:
            line.sendall(pid.to_bytes(4, "little", signed=True))
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            line.sendall(code.to_bytes(4, "little", signed=True))
            line.recv(1)
    except OSError:  # the test has gone
        pass
    finally:
        os.waitpid(pid, 0)
        os._exit(0)


def _become(request: dict[str, Any], given: list[int]) -> NoReturn:
    """Be the program, in the session, folder and environment and with the descriptors it is given.

    Nothing of this process is left to it but its modules.
    """
    code = 1
    try:
        os.setsid()
        os.chdir(request["folder"])
        far = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _FAR) for descriptor in given]
        os.closerange(3, _FAR)
        for descriptor, wanted in zip(far, request["descriptors"], strict=True):
            os.dup2(descriptor, wanted)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None
        module = import_module(request["module"])
        sys.argv = [str(module.__file__), *request["words"]]
        code = module.main() or 0  # as `sys.exit` reads None
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
    _CODE[:] = [code]
    raise SystemExit(code)


def _leave() -> None:
    """End at once after the clean-up: modules that were never used need none."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_CODE[0])


if __name__ == "__main__":
    sys.exit(main())
