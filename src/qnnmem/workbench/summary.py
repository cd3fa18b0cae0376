"""A result in a line, for the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.results.read import read_result, schema_in
from qnnmem.text import shorten

_LONGEST = 160
Result = Mapping[str, Any]
# Their exit code is that of the program that they are about.
_OF_PROGRAMS = ("qnnmem.check-client/1", "qnnmem.watch/1", "qnnmem.fail-each/1")


def summary_of(result: Result) -> str:
    """Return the result in one line; empty for one from elsewhere that lacks something."""
    try:
        return shorten(read_result(result, "").summary, _LONGEST)
    except UsageError:
        return ""


def is_of_program(result: Result) -> bool:
    """Whether its exit code is that of a program that it is about."""
    return schema_in(result) in _OF_PROGRAMS


def exit_code_of(result: Result) -> int:
    """What the verb that made a result left with, as far as the result says it."""
    code, fits = result.get("exit_code"), result.get("fits", result.get("passes"))
    if is_of_program(result):
        is_open = bool(result.get("not_checked")) and not result.get("findings")
        return 0 if fits is True else 3 if is_open else 1
    if isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= 255:
        return code
    return 1 if fits is False else 0
