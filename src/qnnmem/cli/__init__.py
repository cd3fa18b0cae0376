"""The command line: arguments in, exit code out."""

from __future__ import annotations

import gc
import os
import sys

from qnnmem.cli.say import say
from qnnmem.cli.verbs import qnnmem as qnnmem
from qnnmem.cli.verbs import run
from qnnmem.errors import QnnMemError

_BUG = 70  # EX_SOFTWARE of sysexits: a fault of qnnmem, not of its input


def main() -> None:
    """Runs the command line and leaves with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # File names and tensor names may hold anything; output must not fail on them.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    code = _run()
    gc.freeze()  # the system takes back what is left; looking through it for garbage takes 20 ms
    sys.exit(code)


def _run() -> int:
    try:
        code = run()
        sys.stdout.flush()
    except QnnMemError as exc:
        from qnnmem.report.flags import flag

        _trace()
        return say(exc.sentence(flag), exc.exit_code)
    except KeyboardInterrupt:
        return say("interrupted", 130)
    except BrokenPipeError:
        # The reader has seen enough; closing keeps Python from complaining at exit.
        sys.stderr.close()
        return 0
    except MemoryError:
        return say("not enough memory for this input", 2)
    except Exception as exc:  # the last resort: say it in one sentence, whatever it was
        _trace()
        return say(f"internal error, please report it: {type(exc).__name__}: {exc}", _BUG)
    return code


def _trace() -> None:
    """Shows where an error comes from, for those who look for its reason in our code."""
    if os.environ.get("QNNMEM_TRACEBACK", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
