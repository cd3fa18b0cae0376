"""Options of `place`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from qnnmem.options.option import Opt
from qnnmem.units import Bytes, parse_size


class PlaceOptions(Struct, frozen=True, kw_only=True):
    """For which SoC and process domain contexts are placed, and who is asked."""

    soc: Annotated[
        str | None,
        Opt(
            "--soc",
            "Name, id or marketing name.",
            metavar="SOC",
            default="the SoC that each was made for",
            is_soc=True,
        ),
    ] = None
    budget: Annotated[
        Bytes | None,
        Opt(
            "--budget",
            "Bytes of one process domain.",
            metavar="SIZE",
            parse=parse_size,
            default="as measured",
        ),
    ] = None
    verify: Annotated[
        bool,
        Opt(
            "--verify",
            "Load all into the real library and compare: sizes become exact.",
            is_local=True,
        ),
    ] = False
