"""Runs the command line in this process and keeps the raised errors."""

from __future__ import annotations

import io
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import click
from click.testing import CliRunner, Result

from qnnmem.cli import outcome, usage
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


@dataclass(frozen=True)
class Answer:
    """A command, its exit code and its output."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    error: Exception | None = None

    @property
    def text(self) -> str:
        """The command line, all output and the exit code."""
        return f"$ qnnmem {shlex.join(self.words)}\n{self.out}{self.err}[{self.code}]"

    @property
    def sentence(self) -> str:
        """The error sentence; empty if the command printed none."""
        return next((line for line in self.err.splitlines() if line.startswith("qnnmem: ")), "")


def ask(*words: str) -> Answer:
    """Run the whole program in this process, like its `main`."""
    caught: list[Exception] = []
    say = outcome._say

    def keep(exc: Exception) -> int:
        caught.append(exc)
        return say(exc)

    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["qnnmem", *words]
    outcome._say = keep
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = outcome.outcome(lambda: False)
    finally:
        sys.argv, outcome._say = before, say
    error = caught[0] if caught else None
    return Answer(words, code, out.getvalue(), err.getvalue(), error)
