"""The origin of a number."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct, field

# No memory is larger, and every JSON reader represents such numbers exactly.
_LARGEST = 1 << 53


class Origin(Enum):
    """How a number was obtained."""

    MEASURED = "measured"  # printed by a real library, or observed in a real run
    COMPUTED = "computed"  # derived by this package
    DOCUMENTED = "documented"  # stated in the vendor's documentation
    REPORTED = "reported"  # stated by users
    GIVEN = "given"  # set by the caller


class Sourced(Struct, frozen=True):
    """A size in bytes with its origin, as in JSON results."""

    value: Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)] = field(name="bytes")
    origin: Origin
    source: str = ""
