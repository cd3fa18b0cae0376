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
    import atexit
    import gc

    # The system takes back what is left; looking through it for garbage takes 20 ms. Only when the
    # process does end: in one that goes on, garbage of before would never go.
    atexit.register(gc.freeze)
    sys.exit(code)


def _run(is_interrupted: Callable[[], bool]) -> int:
    from qnnmem.cli.streams import open_closed

    open_closed()
    from qnnmem.collector import collect_seldom

    collect_seldom()
    from qnnmem.cli.outcome import outcome

    return outcome(is_interrupted)
