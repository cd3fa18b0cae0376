"""The origin of a number."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct, field

# No memory is larger, and every reader of JSON keeps such a number exact.
_LARGEST = 1 << 53


class Origin(Enum):
    """The way in which a number became known."""

    MEASURED = "measured"  # a real library printed it or a real run showed it
    COMPUTED = "computed"  # we derived it
    DOCUMENTED = "documented"  # a vendor page states it
    REPORTED = "reported"  # users state it
    GIVEN = "given"  # the caller set it


class Sourced(Struct, frozen=True):
    """A size in bytes and where it comes from; results hold it as it is."""

    value: Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)] = field(name="bytes")
    origin: Origin
    source: str = ""
