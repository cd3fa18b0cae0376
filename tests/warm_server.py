"""A process that has imported the child programs' modules and forks them; see `warm_start`.

A keeper process stands between. It reports a child's number and exit code, and collects the child
only after the test has, so that the number is not reused before.
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

# Descriptors from here on do not collide with those that a child gets.
_CODE = [0]  # the exit code of this process
_FAR = min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def main() -> int:
    """Serve until the test process ends."""
    import json

    # Registered first, so it runs last in every forked process.
    atexit.register(_leave)
    line = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        import_module(name)
    gc.collect()
    gc.freeze()  # otherwise each child's first collection would copy all pages
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(line, 1 << 20, 16)
        if not message:
            return 0
        if os.fork() == 0:
            line.close()
            _keep(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):  # no child is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Start one child, report its number and its end, and collect it when the test is done."""
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
    except OSError:  # the test has ended
        pass
    finally:
        os.waitpid(pid, 0)
        os._exit(0)


def _become(request: dict[str, Any], given: list[int]) -> NoReturn:
    """Become the program, with the given session, folder, environment and descriptors.

    Only the modules of this process remain.
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
        code = module.main() or 0  # None means 0, as in `sys.exit`
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
    _CODE[:] = [code]
    raise SystemExit(code)


def _leave() -> None:
    """Exit at once after the cleanup, since unused modules need none."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_CODE[0])


if __name__ == "__main__":
    sys.exit(main())
