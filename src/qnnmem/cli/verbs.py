"""All verbs of the command line, put together for click."""

from __future__ import annotations

import click

from qnnmem.cli.config import config
from qnnmem.cli.doctor import doctor
from qnnmem.cli.explain import explain
from qnnmem.cli.fit import fit
from qnnmem.cli.footprint import footprint
from qnnmem.cli.inspect import inspect
from qnnmem.cli.kb import kb
from qnnmem.cli.lint import lint
from qnnmem.cli.lpai import lpai
from qnnmem.cli.net_run import net_run
from qnnmem.cli.place import place
from qnnmem.cli.plan import plan
from qnnmem.cli.prepare import prepare
from qnnmem.cli.provoke import provoke
from qnnmem.cli.qmem import qmem
from qnnmem.cli.say import say
from qnnmem.cli.socs import socs
from qnnmem.cli.sweep import sweep
from qnnmem.version import __version__


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
qnnmem.add_command(doctor)
qnnmem.add_command(explain)
qnnmem.add_command(kb)


def run() -> int:
    """Lets click read the arguments; gives the exit code."""
    try:
        result = qnnmem.main(prog_name="qnnmem", standalone_mode=False)
    except click.ClickException as exc:
        return say(exc.format_message(), exc.exit_code)
    except click.Abort as exc:
        raise KeyboardInterrupt from exc
    return result if isinstance(result, int) else 0
