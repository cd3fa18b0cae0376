"""Runs the command line in this process and keeps the raised errors."""

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
    """A verb whose first arguments are set."""

    def __call__(self, *words: str | Path) -> Result:
        """Run the verb with more arguments and return the result."""


def run(*words: str | Path) -> Result:
    """Run `qnnmem` with these arguments; a user-facing error is in `exception`."""
    done = CliRunner().invoke(qnnmem, list(map(str, words)), standalone_mode=False)
    expected = QnnMemError | click.ClickException
    assert done.exception is None or isinstance(done.exception, expected), done.exception
    return done


def verb(*words: str) -> Verb:
    """Return a function that starts every run with these arguments."""
    return partial(run, *words)


def exit_code(done: Result) -> int:
    """Return the exit code that the program would have."""
    if done.exception is None:
        return int(done.return_value or 0)
    return int(getattr(done.exception, "exit_code", 70))


def sentence(done: Result) -> str:
    """Return the error message that the user would see."""
    if isinstance(done.exception, QnnMemError):
        return done.exception.sentence(flag)
    assert isinstance(done.exception, click.ClickException), done.exception
    return usage.sentence(done.exception)


def every_verb() -> dict[str, click.Command]:
    """Return every verb, group and subcommand by name."""
    found = {}
    for name, command in qnnmem.commands.items():
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {sub}": verb for sub, verb in command.commands.items()}
    return found
