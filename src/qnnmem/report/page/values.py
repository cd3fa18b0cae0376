"""What the page reads of a result: JSON from anywhere, checked against these before it is shown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

# What JavaScript and SVG can draw exactly; no memory is larger.
Count = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]


class Loose(msgspec.Struct, frozen=True):
    """More fields than these may be there."""


class PlanBuffer(Loose, frozen=True):
    """A placed buffer."""

    name: str
    pool: str
    size_bytes: Count
    lower: Count
    upper: Count
    offset_bytes: Count
    aliases: list[str] = []


class LiveBuffer(Loose, frozen=True):
    """A buffer alive at the peak."""

    name: str
    bytes: Count


class PlanPeak(Loose, frozen=True):
    """The fullest step."""

    step: Count
    bytes: Count
    live: list[LiveBuffer]
    op: str | None = None


class PlanBudget(Loose, frozen=True):
    """A pool against its budget."""

    pool: str
    need_bytes: Count
    have_bytes: Count
    fits: bool | None


class PlanTcm(Loose, frozen=True):
    """Model and IO in TCM."""

    fits: bool
    need_bytes: Count
    limit_bytes: Count
    buffers: Count
    max_buffers: Count


class PlanValues(Loose, frozen=True):
    """`qnnmem.plan/1`."""

    input: str
    scratch_bytes: Count
    persistent_bytes: Count
    io_bytes: Count
    constant_bytes: Count
    lower_bound_bytes: Count
    optimal: bool
    align_bytes: Count
    io: str
    buffers: list[PlanBuffer]
    tool: str = ""
    fits: bool | None = None
    bits: Count | None = None
    peak: PlanPeak | None = None
    tcm: PlanTcm | None = None
    budgets: list[PlanBudget] = []
    notes: list[str] = []
    ops: list[str] = []
    origins: dict[str, str] = {}


class SourcedBytes(Loose, frozen=True):
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

    low: SourcedBytes
    high: SourcedBytes


class BillValues(Loose, frozen=True):
    """`qnnmem.footprint/1`."""

    file: str
    parts: dict[str, SourcedBytes | None]
    tool: str = ""
    soc: str | None = None
    build_id: str = ""
    total: SourcedBytes | None = None
    compile_estimate: SourcedBytes | None = None
    compile_limit: SourcedBytes | None = None
    process_domain: BytesRange | None = None
    process_domain_budget: SourcedBytes | None = None
    largest_io: list[BillItem] = []
    largest_weights: list[BillItem] = []
    traps: list[BillTrap] = []


class FitCheck(Loose, frozen=True):
    """A pool against its limit."""

    pool: str
    fits: bool | None
    need_low: SourcedBytes | None = None
    need_high: SourcedBytes | None = None
    limit: SourcedBytes | None = None


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
    reserved_at_load: SourcedBytes
    reserved_at_first_inference: SourcedBytes
    copied_in: SourcedBytes
    copied_out: SourcedBytes
    shared_memory: SourcedBytes


class QmemValues(Loose, frozen=True):
    """`qnnmem.qmem/1`."""

    file: str
    rows: list[QmemWay]
    tool: str = ""
    advice: str = ""


class LogEvidence(Loose, frozen=True):
    """A line of a log."""

    file: str
    line: Count
    text: str
    count: Count = 1
    decides: bool = False


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


class DoctorValues(Loose, frozen=True):
    """`qnnmem.doctor/1`."""

    incidents: list[LogIncident]
    tool: str = ""
    notes: list[str] = []
    files: list[str] = []


class FixTry(Loose, frozen=True):
    """A remedy that was tried."""

    remedy: str
    change: str
    bytes: Count | None
    fits: bool | None
    identical: bool
    lossy: bool = False
    largest_difference: float | None = 0.0
    macs: Count = 0
    extra_macs: Count = 0
    seconds: float = 0.0
    pool: str = "scratch"


class FixValues(Loose, frozen=True):
    """`qnnmem.fix/1`."""

    input: str
    fits: bool | None
    tried: list[FixTry]
    best: Count
    tool: str = ""
    before_bytes: Count | None = None
    after_bytes: Count | None = None
    limit_bytes: Count | None = None
    obstacle: str = ""
    notes: list[str] = []
    files: list[str] = []
    next: str = ""


class RefusedInput(Loose, frozen=True):
    """A file that there is no answer about."""

    sentence: str


class SeveralValues(Loose, frozen=True):
    """What the results of several files have in common."""

    results: list[Any]
    refused: list[RefusedInput]
