"""Refuse an option with one value that is given twice; click would take the last."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import click

from qnnmem.text import plain_or_quoted, quote

_SHOWN = 40  # characters of a value in a message
# `fix` takes several shapes for one tensor; `sweep` has its own message about lists.
_MAY_REPEAT = {("fix", "--shape"), ("sweep", "--vary")}


class StrictGroup(click.Group):
    """A command group that refuses repeated options before a verb runs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb and its arguments; UsageError where an option with one value has two."""
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _check_once(command, _context(command, name, ctx), words)
        return name, command, words


def _context(command: click.Command, name: str | None, parent: click.Context) -> click.Context:
    settings = command.context_settings
    return command.context_class(command, info_name=name, parent=parent, **settings)


def _check_once(command: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    try:
        values, _rest, order = command.make_parser(ctx).parse_args(list(words))
    except click.UsageError:
        return  # said when the verb reads them
    for option, times in Counter(order).items():
        if isinstance(option, click.Option) and times > 1 and _takes_one(option):
            name = max(option.opts, key=len)
            often = "twice" if times == 2 else f"{times} times"
            raise click.UsageError(f"{name} takes one value and was given {often}", ctx)
    for option in dict.fromkeys(order):
        if isinstance(option, click.Option) and _is_assignment(option, command.name):
            _check_names(option, ctx, values[option.name or ""])


def _is_assignment(option: click.Option, verb: str | None) -> bool:
    """True for options such as `--dim NAME=N` that give a name one value."""
    is_pair = option.multiple and re.fullmatch(r"[A-Z]+=.*", option.metavar or "") is not None
    return is_pair and not any((verb, word) in _MAY_REPEAT for word in option.opts)


def _check_names(option: click.Option, ctx: click.Context, words: Sequence[str]) -> None:
    """Refuse two values for one name."""
    given: dict[str, str] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.rpartition("="))
        if given.setdefault(name, value) != value:
            both = " and ".join(plain_or_quoted(one, _SHOWN) for one in (given[name], value))
            start = f"{max(option.opts, key=len)} gives {quote(name)} two values"
            raise click.UsageError(f"{start}, {both}", ctx)


def _takes_one(option: click.Option) -> bool:
    return not (option.multiple or option.is_flag or option.count)
