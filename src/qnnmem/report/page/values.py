"""What the page reads of a result: JSON from anywhere, checked against these before it is shown."""

from __future__ import annotations

import msgspec

from qnnmem.results.result import Difference

Count = Difference  # which JavaScript and SVG draw exactly


class Loose(msgspec.Struct, frozen=True):
    """More fields than these may be there."""


class ReadSourcedBytes(Loose, frozen=True):
    """A number and where it comes from."""

    bytes: Count
    origin: str = ""
    source: str = ""


class PlacedDomain(Loose, frozen=True):
    """A process domain and what is in it."""

    contexts: list[Count]  # places in the list of all
    used: Count
    left: Count


class Placing(Loose, frozen=True):
    """Contexts in an order."""

    domains: list[PlacedDomain]
    too_large: list[Count] = []


class PlaceLimit(Loose, frozen=True):
    """A limit and where it comes from."""

    value: Count
    origin: str = ""
    source: str = ""


class PlacedContext(Loose, frozen=True):
    """A context binary."""

    file: str
    need_high: PlaceLimit | None = None


class PlaceValues(Loose, frozen=True):
    """`qnnmem.place/1`."""

    answer: str
    budget: PlaceLimit
    given: Placing
    best: Placing
    contexts: list[PlacedContext]
    tool: str = ""


class QmemWay(Loose, frozen=True):
    """What one way of preparing and executing costs."""

    prepared: str
    executed: str
    reserved_at_load: ReadSourcedBytes
    reserved_at_first_inference: ReadSourcedBytes
    copied_in: ReadSourcedBytes
    copied_out: ReadSourcedBytes
    shared_memory: ReadSourcedBytes
    process_domain_left: ReadSourcedBytes | None = None


class QmemValues(Loose, frozen=True):
    """`qnnmem.qmem/1`."""

    file: str
    rows: list[QmemWay]
    tool: str = ""
    advice: str = ""
    soc: str | None = None
    io_layer: str = ""
    recommended: dict[str, str] = {}
    traps: list[str] = []
    process_domain_budget: ReadSourcedBytes | None = None
