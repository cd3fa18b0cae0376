"""Why there is no result."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from qnnmem.results.result import Result, describe


class ErrorResult(Result, frozen=True, kw_only=True, tag="qnnmem.error/1"):
    """What a verb prints in place of its result when JSON was asked for and there is none."""

    error: Annotated[
        str, Meta(min_length=1), describe("The sentence that standard error has, too.")
    ]
    exit_code: Annotated[int, Meta(ge=1), describe("Exit code of the command.")]
