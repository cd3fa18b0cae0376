"""Where a number came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Origin(Enum):
    """How a number became known."""

    MEASURED = "measured"  # a real library printed it or a real run showed it
    COMPUTED = "computed"  # we derived it
    DOCUMENTED = "documented"  # a vendor page states it
    REPORTED = "reported"  # users state it
    GIVEN = "given"  # the one who asks has set it


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number that carries its origin to the reader."""

    value: int
    origin: Origin
    source: str
