"""The command line as tests call it: in this process, errors kept as they were raised."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

import click
from click.testing import CliRunner, Result

from qnnmem.cli import usage
from qnnmem.cli.verbs import qnnmem
from qnnmem.errors import QnnMemError
from qnnmem.flags import flag


class Verb(Protocol):
    """A verb with its first words, waiting for the others."""

    def __call__(self, *words: str | Path) -> Result:
        """What the verb did."""


def run(*words: str | Path) -> Result:
    """Run `qnnmem` with these words; an error that it would say comes back in `exception`."""
    done = CliRunner().invoke(qnnmem, list(map(str, words)), standalone_mode=False)
    expected = QnnMemError | click.ClickException
    assert done.exception is None or isinstance(done.exception, expected), done.exception
    return done


def verb(*words: str) -> Verb:
    """Start every run with these words."""
    return partial(run, *words)


def exit_code(done: Result) -> int:
    """The code that the program would leave with."""
    if done.exception is None:
        return int(done.return_value or 0)
    return int(getattr(done.exception, "exit_code", 70))


def sentence(done: Result) -> str:
    """What the user reads when a command ends with an error."""
    if isinstance(done.exception, QnnMemError):
        return done.exception.sentence(flag)
    assert isinstance(done.exception, click.ClickException), done.exception
    return usage.sentence(done.exception)


def every_verb() -> dict[str, click.Command]:
    """Every verb and sub-verb by its words, groups too."""
    found = {}
    for name, command in qnnmem.commands.items():
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {sub}": verb for sub, verb in command.commands.items()}
    return found
