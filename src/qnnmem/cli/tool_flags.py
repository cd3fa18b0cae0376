"""Flags as the tools of the SDK have them: many, short, some of them only answered here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from qnnmem.units import parse_size

_Decorated = Callable[..., Any]
Decorator = Callable[[_Decorated], _Decorated]


def answered(refused: Mapping[str, str], ignored: Mapping[str, str]) -> Decorator:
    """The flags that are only answered, with the reason for each."""
    kinds = [("Ignored here", ignored), ("Refused here", refused)]
    rows = [(name, f"{kind}: {why}.") for kind, one in kinds for name, why in one.items()]

    def decorate(command: _Decorated) -> _Decorated:
        for name, text in reversed(rows):
            command = click.option(f"--{name}", metavar="VALUE", help=text)(command)
        return command

    return decorate


def flag(name: str, text: str) -> Decorator:
    """A flag without a value."""
    return click.option(name, is_flag=True, help=text)


def count(name: str, text: str, least: int = 0) -> Decorator:
    """A flag with a number."""
    return click.option(name, type=click.IntRange(least, 1 << 40), metavar="N", help=text)


def one_of(name: str, words: str, text: str, default: str | None = None) -> Decorator:
    """A flag with one of some words."""
    choice = click.Choice(words.split())
    return click.option(name, type=choice, default=default, show_default=bool(default), help=text)


def memory_limit(what: str) -> Decorator:
    """Ours: how much address space the work may take."""
    note = f"Ours: address space of {what}.  [default: 3/4 of the machine]"
    return click.option("--memory-limit", type=parse_size, metavar="SIZE", help=note)
