"""Options of `lint`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from qnnmem.options.option import Opt


class LintOptions(Struct, frozen=True, kw_only=True):
    """How strictly config files are checked."""

    strict: Annotated[
        bool,
        Opt("--strict", "Let warnings count as errors.", label="Warnings count as errors"),
    ] = False
