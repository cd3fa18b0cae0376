"""Flags as the tools of the SDK have them: many, short, some of them only answered here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from qnnmem.cli.help import HelpOption

_Decorated = Callable[..., Any]
Decorator = Callable[[_Decorated], _Decorated]


def answered(refused: Mapping[str, str], ignored: Mapping[str, str]) -> Decorator:
    """The flags that are only answered, with the reason for each."""
    kinds = [("Ignored here", ignored), ("Refused here", refused)]
    rows = [(name, f"{kind}: {why}.") for kind, one in kinds for name, why in one.items()]

    def decorate(command: _Decorated) -> _Decorated:
        for name, text in reversed(rows):
            command = option(f"--{name}", metavar="VALUE", help=text, is_advanced=True)(command)
        return command

    return decorate


def option(*names: str, **settings: Any) -> Decorator:
    """An option of a tool; `is_advanced=True` leaves it to --help-all."""
    return click.option(*names, cls=HelpOption, **settings)


def flag(name: str, text: str, *, is_advanced: bool = False) -> Decorator:
    """A flag without a value."""
    return option(name, is_flag=True, help=text, is_advanced=is_advanced)


def one_of(
    name: str, words: str, text: str, default: str | None = None, *, is_advanced: bool = False
) -> Decorator:
    """A flag with one of some words."""
    return option(
        name,
        type=click.Choice(words.split()),
        default=default,
        show_default=bool(default),
        help=text,
        is_advanced=is_advanced,
    )
