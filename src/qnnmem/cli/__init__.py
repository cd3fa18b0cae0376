"""The command line: arguments in, exit code out."""

from __future__ import annotations

import sys

import click

from qnnmem.cli.config import config
from qnnmem.cli.fit import fit
from qnnmem.cli.footprint import footprint
from qnnmem.cli.inspect import inspect
from qnnmem.cli.lint import lint
from qnnmem.cli.lpai import lpai
from qnnmem.cli.net_run import net_run
from qnnmem.cli.place import place
from qnnmem.cli.plan import plan
from qnnmem.cli.prepare import prepare
from qnnmem.cli.provoke import provoke
from qnnmem.cli.qmem import qmem
from qnnmem.cli.socs import socs
from qnnmem.cli.sweep import sweep
from qnnmem.errors import QnnMemError
from qnnmem.version import __version__

_BUG = 70  # EX_SOFTWARE of sysexits: a fault of qnnmem, not of its input


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def qnnmem() -> None:
    """Memory on QNN: does a model fit, where does every byte go, what to change.

    Exit codes: 0 fits, 1 does not fit, 2 bad usage or unreadable input, 3 cannot tell.
    """


qnnmem.add_command(plan)
qnnmem.add_command(prepare)
qnnmem.add_command(lpai)
qnnmem.add_command(lint)
qnnmem.add_command(config)
qnnmem.add_command(inspect)
qnnmem.add_command(net_run)
qnnmem.add_command(footprint)
qnnmem.add_command(qmem)
qnnmem.add_command(provoke)
qnnmem.add_command(fit)
qnnmem.add_command(sweep)
qnnmem.add_command(place)
qnnmem.add_command(socs)


def main() -> None:
    """Runs the command line and leaves with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # File names and tensor names may hold anything; output must not fail on them.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run())


def _run() -> int:
    try:
        result = qnnmem.main(prog_name="qnnmem", standalone_mode=False)
        sys.stdout.flush()
    except QnnMemError as exc:
        return _say(str(exc), exc.exit_code)
    except click.ClickException as exc:
        return _say(exc.format_message(), exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BrokenPipeError:
        # The reader has seen enough; closing keeps Python from complaining at exit.
        sys.stderr.close()
        return 0
    except MemoryError:
        return _say("not enough memory for this input", 2)
    except Exception as exc:  # the last resort: say it in one sentence, whatever it was
        return _say(f"internal error, please report it: {type(exc).__name__}: {exc}", _BUG)
    return result if isinstance(result, int) else 0


def _say(sentence: str, code: int) -> int:
    from qnnmem.report.names import clean

    click.echo(f"qnnmem: {clean(sentence, 2000)}", err=True)
    return code
