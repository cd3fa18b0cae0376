"""The command line: arguments in, exit code out.

Reading a small log takes less time than importing click and the verbs, so `door` looks at the
arguments first.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # true for type checkers; importing typing is dear beside a small log
if TYPE_CHECKING:
    from qnnmem.cli.verbs import qnnmem as qnnmem

_OBJECTS = 50_000
_BUG = 70  # EX_SOFTWARE of sysexits: a fault of qnnmem, not of its input


def __getattr__(name: str) -> object:
    if name == "qnnmem":
        from qnnmem.cli import verbs

        return verbs.qnnmem
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Runs the command line and leaves with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # File names and tensor names may hold anything; output must not fail on them.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run())


def _run() -> int:
    from qnnmem.errors import QnnMemError

    try:
        code = _dispatch(sys.argv[1:])
        sys.stdout.flush()
    except QnnMemError as exc:
        from qnnmem.report.flags import flag

        return _say(exc.sentence(flag), exc.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        # The reader has seen enough; closing keeps Python from complaining at exit.
        sys.stderr.close()
        return 0
    except MemoryError:
        return _say("not enough memory for this input", 2)
    except Exception as exc:  # the last resort: say it in one sentence, whatever it was
        return _say(f"internal error, please report it: {type(exc).__name__}: {exc}", _BUG)
    return code


def _dispatch(words: list[str]) -> int:
    from qnnmem.cli.door import plain_doctor

    asked = plain_doctor(words)
    if asked is not None:
        import gc

        from qnnmem.cli.doctor_run import run_doctor

        # Loading what is known makes many objects and no garbage; looking for some took 4 of 60 ms.
        gc.set_threshold(_OBJECTS)
        return run_doctor(*asked)
    from qnnmem.cli import verbs

    return verbs.run()


def _say(sentence: str, code: int) -> int:
    from qnnmem.cli.say import say

    return say(sentence, code)
