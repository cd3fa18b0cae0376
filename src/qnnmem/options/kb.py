"""Options of `kb`: which entries to use, and where to write a new entry."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import shared
from qnnmem.options.option import Opt, Options
from qnnmem.results.incident import STAGES


class KbOptions(Options, frozen=True, kw_only=True):
    """The user's own entries, used in addition to the built-in entries."""

    kb: Annotated[tuple[str, ...], shared.KB] = ()


class KbListOptions(KbOptions, frozen=True, kw_only=True):
    """Filter for the list of entries."""

    cause: Annotated[
        str | None,
        Opt(
            "--cause",
            "List only entries with this cause, e.g. mem_dsp_va.",
            metavar="CAUSE",
            leads=True,
        ),
    ] = None
    stage: Annotated[
        str | None, Opt("--stage", "List only entries with this stage.", choices=STAGES, leads=True)
    ] = None


class KbNewOptions(Options, frozen=True, kw_only=True):
    """Output file of a new entry."""

    output: Annotated[
        str | None,
        shared.OUTPUT.but(
            "File to write; ID.md in the current folder if omitted.", metavar="FILE", writes="file"
        ),
    ] = None
    force: Annotated[bool, shared.FORCE.but("Replace the file if it exists.")] = False
