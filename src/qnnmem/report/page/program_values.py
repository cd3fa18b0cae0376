"""What the page reads of programs that were checked or watched; fields may be missing."""

from __future__ import annotations

import msgspec

from qnnmem.report.page.values import Count, Loose


class CallFrame(Loose, frozen=True):
    """One call of a stack."""

    function: str = ""
    file: str = ""
    line: Count = 0
    module: str = ""
    offset: Count = 0


class OtherPlace(Loose, frozen=True):
    """Where else to look."""

    what: str
    place: str = ""
    stack: tuple[CallFrame, ...] = ()


class BrokenRule(Loose, frozen=True):
    """A finding of check-client."""

    rule: str
    sentence: str
    title: str = ""
    call: str = ""
    code: int = 0
    need: int | None = None
    given: int | None = None
    cure: str = ""
    place: str = ""
    stack: tuple[CallFrame, ...] = ()
    other: OtherPlace | None = None
    count: Count = 1


class ClientMoment(Loose, frozen=True):
    """What was alive after a call."""

    call: Count
    what: str = ""
    contexts: Count = 0
    registered_bytes: Count = 0


class Missed(Loose, frozen=True):
    """Part of a program that the result knows nothing of."""

    what: str


class ClientValues(Loose, frozen=True):
    """`qnnmem.check-client/1`."""

    verdict: str
    passes: bool
    findings: list[BrokenRule]
    command: tuple[str, ...] = ()
    mode: str = ""
    hw_version: str = ""
    exit_code: int = 0
    calls: dict[str, Count] = msgspec.field(default_factory=dict)
    failed_calls: dict[str, Count] = msgspec.field(default_factory=dict)
    suppressed: Count = 0
    left_out: Count = 0
    not_checked: tuple[Missed, ...] = ()
    timeline: tuple[ClientMoment, ...] = ()
    tool: str = ""


class WatchedMoment(Loose, frozen=True):
    """What was alive at a time."""

    time_ns: Count
    contexts: Count = 0
    graphs: Count = 0
    memory_handles: Count = 0
    memory_bytes: Count = 0


class LeftThing(Loose, frozen=True):
    """Something that was made and not released."""

    kind: str
    name: str = ""
    bytes: Count = 0
    made_by: str = ""
    place: str = ""
    stack: tuple[CallFrame, ...] = ()


class LogText(Loose, frozen=True):
    """A line of the library."""

    text: str


class WatchedFailure(Loose, frozen=True):
    """A call that failed."""

    function: str
    code: int = 0
    name: str = ""
    count: Count = 1
    injected: bool = False
    place: str = ""
    stack: tuple[CallFrame, ...] = ()
    log: tuple[LogText, ...] = ()
    diagnosis: str | None = None


class WatchedFunction(Loose, frozen=True):
    """How often a function was called."""

    count: Count = 0
    ns: Count = 0
    failed: Count = 0


class WatchedLibrary(Loose, frozen=True):
    """A library of QNN that the program used."""

    name: str
    api: str | None = None
    version: str | None = None
    path: str = ""


class WatchValues(Loose, frozen=True):
    """`qnnmem.watch/1`."""

    verdict: str
    passes: bool
    command: tuple[str, ...] = ()
    libraries: tuple[WatchedLibrary, ...] = ()
    peak: WatchedMoment | None = None
    timeline: tuple[WatchedMoment, ...] = ()
    functions: dict[str, WatchedFunction] = msgspec.field(default_factory=dict)
    unreleased: tuple[LeftThing, ...] = ()
    freed_after_backend: tuple[LeftThing, ...] = ()
    failed_calls: tuple[WatchedFailure, ...] = ()
    left_out: Count = 0
    not_checked: tuple[Missed, ...] = ()
    findings: Count = 0
    tool: str = ""


class RunLeftover(Loose, frozen=True):
    """Something that a run with a failure left."""

    kind: str
    made_by: str = ""
    place: str = ""


class RunValues(Loose, frozen=True):
    """A run in which one call failed on purpose."""

    call: Count
    outcome: str
    place: str = ""
    bad: bool = False
    exit_code: int | None = None
    ended_by: str | None = None
    leaked: tuple[RunLeftover, ...] = ()
    last_line: str | None = ""


class FailEachValues(Loose, frozen=True):
    """`qnnmem.fail-each/1`."""

    verdict: str
    passes: bool
    function: str
    runs: tuple[RunValues, ...]
    command: tuple[str, ...] = ()
    code: int = 0
    calls: Count = 0
    exit_code: int | None = 0
    tool: str = ""
