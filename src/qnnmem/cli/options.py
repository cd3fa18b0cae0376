"""What option texts mean: `name=value` pairs, shapes, sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qnnmem.errors import UsageError
from qnnmem.units import Bytes, parse_size

_MAX_DIM = 1 << 40

F = TypeVar("F", bound=Callable[..., Any])


def pair(text: str, form: str = "name=value") -> tuple[str, str]:
    """Both sides of `name=value`; the name may itself hold `=`, the last one splits."""
    left, _, right = text.rpartition("=")
    if not (left and right):
        raise UsageError(f"'{text}' is not of the form {form}")
    return left, right


def dimension(text: str) -> tuple[str, int]:
    """`batch=1`."""
    name, value = pair(text, "dimension=number")
    return name, whole_number(value)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`input=1x3x224x224`, or `threshold=scalar`."""
    name, value = pair(text, "tensor=1x3x224x224")
    if value == "scalar":
        return name, ()
    return name, tuple(whole_number(part) for part in value.lower().split("x"))


def state(text: str) -> tuple[str, str]:
    """`h_in=h_out`."""
    return pair(text, "input=output")


def budget(text: str) -> tuple[str, Bytes]:
    """`scratch=256K`."""
    name, size = pair(text, "pool=size")
    return name, parse_size(size)


def seconds(text: str) -> float:
    """`10` or `0.5`: at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:  # nan fails every comparison
        raise UsageError(f"'{text}' is not a number of seconds from 0 to 86400")
    return value


def whole_number(text: str) -> int:
    """A number from 0 to 2^40."""
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= _MAX_DIM):
        raise UsageError(f"'{text}' is not a number from 0 to {_MAX_DIM}")
    return int(text)


def model_options(command: F) -> F:
    """The options that say which model is meant: free sizes and what is state."""
    options = (
        click.option(
            "--dim",
            "dims",
            multiple=True,
            type=dimension,
            metavar="NAME=N",
            help="Fix a named free dimension, e.g. batch=1.",
        ),
        click.option(
            "--shape",
            "shapes",
            multiple=True,
            type=shape,
            metavar="TENSOR=AxB",
            help="Fix a tensor's shape, e.g. x=1x3x224x224.",
        ),
        click.option(
            "--state",
            "states",
            multiple=True,
            type=state,
            metavar="IN=OUT",
            help="Keep an output as an input of the next run, e.g. h_in=h_out, in persistent "
            "memory.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
