"""Options about the result of a verb: its format, where it goes, and how detailed it is."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import shared
from qnnmem.options.option import Opt, Options


class FormatOptions(Options, frozen=True, kw_only=True):
    """How a result is written; each verb has its own formats and schema."""

    form: Annotated[str | None, Opt("--format", "How the result is written.", is_local=True)] = None
    as_json: Annotated[
        bool, Opt("--json", "Short for --format json; its schema is {schema}.", is_local=True)
    ] = False


class ResultOptions(FormatOptions, frozen=True, kw_only=True):
    """How and where a result is written."""

    output: Annotated[str | None, shared.OUTPUT] = None
    force: Annotated[bool, shared.FORCE] = False


class DetailedOptions(ResultOptions, frozen=True, kw_only=True):
    """How and where a result is written, and whether with all details."""

    verbose: Annotated[
        bool,
        Opt("--verbose", "Show the details, too.", short="-v", is_local=True, leads=True),
    ] = False
