"""The command line: arguments in, exit code out.

This module imports next to nothing: what is not imported yet cannot be interrupted.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Runs the command line and leaves with its exit code."""
    from qnnmem.cli import signals

    code = signals.unwinding(_run)
    import gc

    gc.freeze()  # the system takes back what is left; looking through it for garbage takes 20 ms
    sys.exit(code)


def _run(is_interrupted: Callable[[], bool]) -> int:
    from qnnmem.cli.streams import open_closed

    open_closed()
    from qnnmem.collector import collect_seldom

    collect_seldom()
    from qnnmem.cli.outcome import outcome

    return outcome(is_interrupted)
