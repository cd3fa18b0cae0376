"""What the page reads of a result: JSON from anywhere, checked against these before it is shown."""

from __future__ import annotations

from typing import Any

import msgspec

from qnnmem.gate.loose import ComparedCount

Count = ComparedCount  # which JavaScript and SVG draw exactly


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


class MapValues(Loose, frozen=True, kw_only=True):
    """What a memory map shows."""

    scratch_bytes: Count
    persistent_bytes: Count
    lower_bound_bytes: Count
    optimal: bool
    proof: str = ""  # older results have none
    io: str
    buffers: list[PlanBuffer]
    peak: PlanPeak | None = None
    ops: list[str] = []


class PlanValues(MapValues, frozen=True, kw_only=True):
    """`qnnmem.plan/1`."""

    input: str
    io_bytes: Count
    constant_bytes: Count
    align_bytes: Count
    tool: str = ""
    fits: bool | None = None
    bits: Count | None = None
    tcm: PlanTcm | None = None
    budgets: list[PlanBudget] = []
    holds_for: list[str] = []
    notes: list[str] = []
    origins: dict[str, str] = {}
    seconds: float | None = None


class InspectedBuffer(Loose, frozen=True):
    """A placed buffer of an LPAI binary."""

    name: str
    pool: str
    offset: Count
    size: Count
    first_step: Count
    end_step: Count
    aliases: list[str] = []


class InspectedGraph(Loose, frozen=True):
    """A graph of an LPAI binary."""

    name: str
    io: str
    pools: dict[str, Count]
    buffers: list[InspectedBuffer]
    tcm: PlanTcm | None = None


class InspectedPart(Loose, frozen=True):
    """What is ours of an LPAI binary's description."""

    hw_version: str
    producer: str
    file_bytes: Count
    graphs: list[InspectedGraph]
    tcm: PlanTcm | None = None
    tool: str = ""


class InspectValues(Loose, frozen=True):
    """`qnnmem.inspect/1`, which has the nesting of a tool of the vendor's."""

    qnnmem: InspectedPart


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
    why: str = ""


class FixPlans(Loose, frozen=True):
    """Where every tensor lies before and after."""

    before: MapValues
    after: MapValues
    after_is: str = "whole model"


class FixDeployment(Loose, frozen=True):
    """Parts as they are deployed, of `qnnmem.fix/1`."""

    arrangement: str
    parts: Count
    total_bytes: Count
    load_bytes_per_inference: Count
    plain_total_bytes: Count | None = None


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
    soc: str = ""
    deployment: FixDeployment | None = None
    from_log: list[str] = []
    plans: FixPlans | None = None


class RefusedInput(Loose, frozen=True):
    """A file that there is no answer about."""

    sentence: str


class SeveralValues(Loose, frozen=True):
    """What the results of several files have in common."""

    results: list[Any]
    refused: list[RefusedInput]
