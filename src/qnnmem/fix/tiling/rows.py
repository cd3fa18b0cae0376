"""Ranges of rows, half-open."""

from __future__ import annotations

from typing import NamedTuple


class Rows(NamedTuple):
    """Rows `first <= row < end` of a tensor along the axis that is cut."""

    first: int
    end: int

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.end - self.first

    def hull(self, other: Rows | None) -> Rows:
        """The smallest range that holds both."""
        if other is None:
            return self
        return Rows(min(self.first, other.first), max(self.end, other.end))

    def within(self, size: int) -> Rows:
        """The part of it that a tensor of so many rows has."""
        return Rows(max(self.first, 0), min(self.end, size))


def share(size: int, band: int, bands: int) -> Rows:
    """Rows of one of several bands that are as equal as they can be."""
    return Rows(size * band // bands, size * (band + 1) // bands)
