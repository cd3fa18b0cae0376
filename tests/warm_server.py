"""A process that has imported the child programs' modules and forks them; see `warm_start`.

It reports a child's number and exit code, and collects the child only after the test has, so that
the number is not reused before.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import resource
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from importlib import import_module
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from typing import Any, NoReturn

# Descriptors from here on do not collide with those that a child gets.
_CODE = [0]  # the exit code of this process
_FAR = min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def main() -> int:
    """Serve until the test process ends."""
    # Registered first, so it runs last in every forked process.
    atexit.register(_leave)
    line = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        import_module(name)
    gc.collect()
    gc.freeze()  # otherwise each child's first collection would copy all pages
    events = DefaultSelector()
    events.register(line, EVENT_READ)
    while True:
        for event, _ in events.select():
            if event.data is not None:
                event.data(events)
            elif not _start(line, events):
                return 0


def _start(line: socket.socket, events: BaseSelector) -> bool:
    """Start the child that the test process asks for; False if that process has ended."""
    message, descriptors, _flags, _address = socket.recv_fds(line, 1 << 20, 16)
    if not message:
        return False
    report, *given = descriptors
    pid = os.fork()
    if pid == 0:
        line.close()
        events.close()
        _become(json.loads(message), given)
    for descriptor in given:
        os.close(descriptor)
    child = _Child(pid, socket.socket(fileno=report))
    child.say(pid)
    events.register(child.handle, EVENT_READ, child.ended)
    return True


class _Child:
    """A child and the connection on which the test process hears its number and exit code."""

    def __init__(self, pid: int, report: socket.socket) -> None:
        self.pid, self.report, self.handle = pid, report, os.pidfd_open(pid)

    def say(self, number: int) -> None:
        """Send a number to the test process."""
        with suppress(OSError):  # the test has ended
            self.report.sendall(number.to_bytes(4, "little", signed=True))

    def ended(self, events: BaseSelector) -> None:
        """Report the exit code of the child."""
        events.unregister(self.handle)
        os.close(self.handle)
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        self.say(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)
        events.register(self.report, EVENT_READ, self.heard)

    def heard(self, events: BaseSelector) -> None:
        """Collect the child, as the test process has its exit code."""
        events.unregister(self.report)
        self.report.close()
        os.waitpid(self.pid, 0)


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
