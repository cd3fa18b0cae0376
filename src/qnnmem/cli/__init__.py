"""Entry points of the command line.

This module imports almost nothing: signals are handled before the slow imports start, so that
Ctrl-C can interrupt them.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def command() -> None:
    """Run the command line, then end the process without freeing its modules.

    The operating system frees the memory faster: Python takes up to 25 ms.
    """
    import atexit
    import os

    code: int | None = None

    def end() -> None:
        if code is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except (AttributeError, OSError, ValueError):
            return  # a closed stream: Python ends the process as ever
        os._exit(code)

    atexit.register(end)  # registered first, so it runs after all other work at exit
    try:
        main()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else None
        raise


def main() -> None:
    """Run the command line and exit with its code."""
    from qnnmem.cli import signals

    sys.exit(signals.unwinding(_run))


def net_run() -> None:
    """Start the SDK's `qnn-net-run` if it is on PATH, else `qnnmem net-run`."""
    _sdk_tool("qnn-net-run")


def context_binary_generator() -> None:
    """Start the SDK's `qnn-context-binary-generator` if it is on PATH, else qnnmem's."""
    _sdk_tool("qnn-context-binary-generator")


def _sdk_tool(name: str) -> None:
    import os
    from pathlib import Path

    for folder in os.get_exec_path():
        path = Path(folder, name)
        if path.is_absolute() and os.access(path, os.X_OK) and _is_native(path):
            os.execv(path, [str(path), *sys.argv[1:]])  # noqa: S606 - from the user's own PATH
    sys.argv[1:1] = [name.removeprefix("qnn-")]
    command()


def _is_native(path: Path) -> bool:
    """Return True if a file is a compiled program, not a script."""
    try:
        with path.open("rb") as file:
            return path.is_file() and file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _run(is_interrupted: Callable[[], bool]) -> int:
    from qnnmem.cli.streams import open_closed

    open_closed()
    from qnnmem.collector import collect_seldom

    collect_seldom()
    from qnnmem.cli.outcome import outcome

    return outcome(is_interrupted)
