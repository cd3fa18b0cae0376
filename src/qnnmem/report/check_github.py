"""Budgets of a project as commands of a GitHub workflow: what is wrong, beside the change."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.gate.checked import OPEN, BudgetRun
from qnnmem.report.check import reasons, verdict
from qnnmem.text import printable, shorten

_MOST = 50  # annotations; GitHub itself shows ten of a kind for each step
_LONGEST = 1000


def render_github(run: BudgetRun) -> str:
    """A command for each thing that is wrong, then the verdict as a line of the log."""
    commands = list(_commands(run))
    left = len(commands) - _MOST
    more = [f"{left:,} more are in the summary"] if left > 0 else []
    return "\n".join([*commands[:_MOST], *more, printable(verdict(run))]) + "\n"


def _commands(run: BudgetRun) -> Iterator[str]:
    for model in run.models:
        level = "warning" if model.exit_code == OPEN else "error"
        title = _property(shorten(f"qnnmem: {model.name}", 200))
        for words in reasons(model):
            text = _data(shorten(words, _LONGEST))
            yield f"::{level} file={_property(model.place)},line=1,title={title}::{text}"


def _data(text: str) -> str:
    """What stands behind the colons: a line of its own whatever is in it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The value of a property, which also ends at commas and colons."""
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")
