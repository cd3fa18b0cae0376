"""All verbs of the command line; each is imported when it is asked for."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from importlib import import_module

import click

from qnnmem.cli.say import say
from qnnmem.version import __version__

# The module of a verb has its name, with underscores for dashes.
VERBS = (
    *("plan", "prepare", "lpai", "lint", "config", "inspect", "net-run", "footprint", "qmem"),
    *("provoke", "fit", "sweep", "place", "socs", "doctor", "explain", "kb"),
)


class Verbs(UserDict[str, click.Command]):
    """Every verb by name; its module is imported when the verb is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in VERBS:
            raise KeyError(name)
        module = name.replace("-", "_")
        found: click.Command = getattr(import_module(f"qnnmem.cli.{module}"), module)
        return found

    def __contains__(self, name: object) -> bool:
        return name in VERBS

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


@click.group(commands=Verbs(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def qnnmem() -> None:
    """Memory on QNN: does a model fit, where does every byte go, what to change.

    Exit codes: 0 fits, 1 does not fit, 2 bad usage or unreadable input, 3 cannot tell.
    """


def run() -> int:
    """Lets click read the arguments; gives the exit code."""
    try:
        result = qnnmem.main(prog_name="qnnmem", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as exc:  # not a mistake: a wish to know more
        click.echo(exc.format_message())
        return 0
    except click.ClickException as exc:
        # click puts each choice on a line of its own; ours is one sentence.
        return say(" ".join(exc.format_message().split()), exc.exit_code)
    except click.Abort as exc:
        raise KeyboardInterrupt from exc
    return result if isinstance(result, int) else 0
