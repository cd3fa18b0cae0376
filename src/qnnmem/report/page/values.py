"""What the page reads of a result: JSON from anywhere, checked against these before it is shown."""

from __future__ import annotations

from typing import Any

import msgspec

from qnnmem.gate.loose import ComparedCount

Count = ComparedCount  # which JavaScript and SVG draw exactly


class Loose(msgspec.Struct, frozen=True):
    """More fields than these may be there."""


class ReadSourcedBytes(Loose, frozen=True):
    """A number and where it comes from."""

    bytes: Count
    origin: str = ""
    source: str = ""


class BillItem(Loose, frozen=True):
    """A tensor of a bill."""

    name: str
    kind: str
    bytes: Count


class BillTrap(Loose, frozen=True):
    """A warning of a bill."""

    id: str
    sentence: str


class BytesRange(Loose, frozen=True):
    """A number that is known between two."""

    low: ReadSourcedBytes
    high: ReadSourcedBytes


class BillOutput(Loose, frozen=True):
    """An output of the model that the compiled context does not give."""

    name: str
    reason: str = ""


class BillValues(Loose, frozen=True):
    """`qnnmem.footprint/1`."""

    file: str
    parts: dict[str, ReadSourcedBytes | None]
    tool: str = ""
    soc: str | None = None
    build_id: str = ""
    total: ReadSourcedBytes | None = None
    compile_estimate: ReadSourcedBytes | None = None
    compile_limit: ReadSourcedBytes | None = None
    process_domain: BytesRange | None = None
    process_domain_budget: ReadSourcedBytes | None = None
    largest_io: list[BillItem] = []
    largest_weights: list[BillItem] = []
    missing_outputs: list[BillOutput] = []
    traps: list[BillTrap] = []
    vtcm_stored: ReadSourcedBytes | None = None
    io_exact: ReadSourcedBytes | None = None
    ddr_read_per_inference: ReadSourcedBytes | None = None
    ddr_written_per_inference: ReadSourcedBytes | None = None
    host_ram: ReadSourcedBytes | None = None


class FitCheck(Loose, frozen=True):
    """A pool against its limit."""

    pool: str
    fits: bool | None
    need_low: ReadSourcedBytes | None = None
    need_high: ReadSourcedBytes | None = None
    limit: ReadSourcedBytes | None = None


class FitSuggestion(Loose, frozen=True):
    """A nearby setting."""

    setting: str
    verified: bool
    reason: str


class FitSoc(Loose, frozen=True):
    """The answer for one SoC."""

    soc: str
    answer: str
    checks: list[FitCheck] = []
    why: str = ""
    suggestions: list[FitSuggestion] = []


class FitValues(Loose, frozen=True):
    """`qnnmem.fit/1`."""

    file: str
    socs: list[FitSoc]
    tool: str = ""


class SweptSetting(Loose, frozen=True):
    """One compile of a sweep."""

    setting: dict[str, Count | str]
    state: str
    reason: str = ""
    compile_need: Count | None = None
    pd_need: Count | None = None
    vtcm: Count | None = None
    ram: Count | None = None
    weights: Count | None = None
    io: Count | None = None
    spill_fill: Count | None = None


class SweepValues(Loose, frozen=True):
    """`qnnmem.sweep/1`."""

    file: str
    soc: str
    rows: list[SweptSetting]
    tool: str = ""
    library: str = ""


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


class LogEvidence(Loose, frozen=True):
    """A line of a log."""

    file: str
    line: Count
    text: str
    count: Count = 1
    decides: bool = False


class LogCandidate(Loose, frozen=True):
    """A cause and how likely it is."""

    cause: str
    score: float


class LogPart(Loose, frozen=True):
    """A number of the model or the SoC."""

    name: str
    bytes: Count
    origin: str = ""
    source: str = ""


class LogNumbers(Loose, frozen=True):
    """What the failing model itself needs."""

    parts: list[LogPart] = []
    sentences: list[str] = []


class LogIncident(Loose, frozen=True):
    """A failure in a log."""

    stage: str
    cause: str
    cause_meaning: str
    is_memory: bool | str
    confidence: str
    verdict: str
    title: str
    evidence: list[LogEvidence]
    file: str = ""
    count: Count = 1
    remedies: list[str] = []
    collect_next: list[str] = []
    quantities: dict[str, Count | float | str | None] = {}
    shortage_bytes: Count | None = None
    entry: str | None = None
    process: Count | None = None
    producer: str | None = None
    candidates: list[LogCandidate] = []
    origins: dict[str, str] = {}
    own_numbers: LogNumbers | None = None

    def origin(self, name: str) -> str:
        """Where a quantity comes from: what no line prints says so itself."""
        return self.origins.get(name, "reported: by the log")


class DoctorValues(Loose, frozen=True):
    """`qnnmem.doctor/1`."""

    incidents: list[LogIncident]
    tool: str = ""
    notes: list[str] = []
    files: list[str] = []
    why: dict[str, str] = {}
    stats: dict[str, Count | float] = {}


class RefusedInput(Loose, frozen=True):
    """A file that there is no answer about."""

    sentence: str


class SeveralValues(Loose, frozen=True):
    """What the results of several files have in common."""

    results: list[Any]
    refused: list[RefusedInput]
