"""Results about programs that call QNN: broken rules, leaked handles, failed calls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from qnnmem.results.result import Count, Result, describe, one_of
from qnnmem.text import shorten

Word = Annotated[int, Meta(ge=0)]  # 64 bits: an address or a handle
_LONGEST = 120  # characters of a frame in a line
_LISTED = 200  # handles in JSON
_MOMENTS = 10_000  # of a timeline in JSON
_FRAMES = 64  # of a call stack in JSON


class Frame(Struct, frozen=True):
    """A function on a call stack."""

    function: Annotated[
        str, Meta(max_length=1000), describe("Name of the function; empty if unknown.")
    ] = ""
    file: Annotated[
        str,
        Meta(max_length=4096),
        describe("Source file as given to the compiler; empty without debug information."),
    ] = ""
    line: Annotated[Count, describe("Line in the source file; 0 if unknown.")] = 0
    module: Annotated[str, Meta(max_length=4096), describe("Program or shared object.")] = ""
    offset: Annotated[Count, describe("Address inside the module.")] = 0
    # The line is read while the program runs on this machine. Code that later reads this frame from
    # a file must not open the paths in it.
    source: Annotated[
        str, Meta(max_length=1000), describe("Text of the source line; empty if unknown.")
    ] = ""

    @property
    def place(self) -> str:
        """File and line, or function and offset in the module."""
        if self.line:
            return f"{_near(self.file)}:{self.line}"
        inside = f"{Path(self.module).name}+{self.offset:#x}"
        return f"{self.function} ({inside})" if self.function else inside

    @property
    def text(self) -> str:
        """Location and text of the source line, shortened."""
        return shorten(f"{self.place}: {self.source}" if self.source else self.place, _LONGEST)


Stack = tuple[Frame, ...]
CallStack = Annotated[Stack, describe("Call stack, innermost first.")]
Place = Annotated[str, describe("File and line of the call, or module and offset.")]
Command = Annotated[tuple[str, ...], Meta(min_length=1), describe("The program and its arguments.")]
ProgramCode = Annotated[int, describe("Exit code of the program, as a shell reports it.")]
Signal = Annotated[str | None, describe("The signal that ended the program; null if none did.")]
TimedOut = Annotated[bool, describe("Whether the program was ended because of the time limit.")]
Sentence = Annotated[str, describe("The answer in one line.")]


Row = TypeVar("Row", "LiveHandle", "LostSession", "FailedCall")


def _near(name: str) -> str:
    """Return a file name relative to the working folder if the file is in it, else unchanged."""
    try:
        return name.removeprefix(str(Path.cwd()) + os.sep)
    except OSError:
        return name


class NotChecked(Struct, frozen=True):
    """A part of a program that was not checked."""

    what: Annotated[str, Meta(max_length=1000), describe("What was not checked, in words.")]
    calls: Annotated[Count, describe("Number of calls; 0 if unknown.")] = 0
    process: Annotated[Count, describe("Process id; 0 if there are several.")] = 0
    thread: Annotated[Count, describe("Thread id; 0 if there are several.")] = 0


Missed = Annotated[
    tuple[NotChecked, ...],
    describe(
        "Calls that were not checked; if there are any, `passes` is false and the exit code is 3, "
        "or 1 if there are also findings."
    ),
]


class OtherPlace(Struct, frozen=True):
    """Another place related to a finding: where memory was freed, or where a call failed."""

    what: Annotated[str, describe("What happened there.")]
    place: Place = ""
    stack: CallStack = ()


class ClientFinding(Struct, frozen=True, kw_only=True):
    """A broken rule, the call that broke it, and related places."""

    rule: Annotated[
        str,
        Meta(min_length=2),
        describe("Id of the rule, as in `qnnmem lpai rules` or the check-client page."),
    ]
    title: Annotated[str, describe("The rule.")] = ""
    sentence: Annotated[str, describe("What happened, to which object, and by how much.")]
    call: Annotated[
        str, describe("QNN function that detected the violation; `exit` for leaks at the end.")
    ] = ""
    code: Annotated[Count, describe("Code that the call returned; 0 if the call continued.")] = 0
    buffer: Annotated[str, describe("Name of the memory; empty if none is involved.")] = ""
    address: Annotated[int | None, describe("Address of the memory in the program.")] = None
    need: Annotated[int | None, describe("Expected number.")] = None
    given: Annotated[int | None, describe("Actual number.")] = None
    cure: Annotated[str, describe("What to do.")] = ""
    place: Annotated[
        str, describe("File and line of the call; for leaks, of the call that created the object.")
    ] = ""
    stack: CallStack = ()
    other: Annotated[
        OtherPlace | None,
        describe("Second code location involved, such as where memory was freed or a call failed."),
    ] = None
    process: Annotated[Count, describe("Id of the calling process; 0 for findings at the end.")] = 0
    also: Annotated[
        tuple[OtherPlace, ...],
        describe("Other code locations at which the same cause broke the rule."),
    ] = ()
    count: Annotated[Count, describe("Number of occurrences.")] = 1
    label: Annotated[str, describe("What `stack` shows, such as `called at`.")] = "called at"


class HeldMoment(Struct, frozen=True):
    """The contexts and bytes that the program holds in QNN after a call."""

    call: Annotated[Count, describe("Number of the call, counted from 1.")]
    what: Annotated[str, describe("Function that was called.")] = ""
    contexts: Count = 0
    registered_bytes: Annotated[
        Count, describe("Bytes of pools, resident binaries and registered memory.")
    ] = 0


class BufferAlignment(Struct, frozen=True):
    """Required alignment of buffers."""

    start: Annotated[int, describe("Alignment of addresses.")]
    size: Annotated[int, describe("Alignment of sizes.")]


class ProgramResult(Result, frozen=True, kw_only=True):
    """Base of results about a program; `exit_code` is that of the program, not of the verb."""

    verdict: Sentence
    passes: bool

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return self.verdict


class ProgramRun(ProgramResult, frozen=True, kw_only=True):
    """Base of the results about one run of a program."""

    command: Command
    exit_code: ProgramCode = 0
    ended_by: Signal = None
    timed_out: TimedOut = False
    left_out: Annotated[
        Count, describe("Number of findings or events beyond the limit, which were dropped.")
    ] = 0
    not_checked: Missed = ()
    has_lines: Annotated[bool, describe("Whether addresses could be resolved to source lines.")] = (
        True
    )


class ClientResult(ProgramRun, frozen=True, kw_only=True, tag="qnnmem.check-client/1"):
    """The rules that a program breaks in its QNN calls, and where."""

    passes: Annotated[
        bool,
        describe("Whether the program called QNN, every call was checked and no rule was broken."),
    ]
    mode: Annotated[
        str,
        describe("Processor that runs the program."),
        one_of("x86", "arm", "adsp"),
    ] = ""
    hw_version: Annotated[str, describe("LPAI hardware version.")] = ""
    alignment: Annotated[BufferAlignment | None, describe("Required alignment of buffers.")] = None
    last_call: Annotated[str | None, describe("Last QNN function that the program called.")] = None
    calls: Annotated[dict[str, Count], describe("Number of calls by function.")] = field(
        default_factory=dict
    )
    failed_calls: Annotated[
        dict[str, Count],
        describe("Number of calls that returned a code other than 0, by function."),
    ] = field(default_factory=dict)
    suppressed: Annotated[Count, describe("Number of known findings that were left out.")] = 0
    timeline: Annotated[
        tuple[HeldMoment, ...], describe("What the program held; each change adds an entry.")
    ] = ()
    notes: Annotated[tuple[str, ...], describe("Remarks on correct but surprising behaviour.")] = ()
    findings: Annotated[
        tuple[ClientFinding, ...],
        describe("Broken rules, in order of their first occurrence."),
    ]

    @property
    def called(self) -> bool:
        """True if the program called QNN."""
        return bool(self.calls)

    @property
    def verb_code(self) -> int:
        """Exit code of the verb: that of the program, unless a case below applies.

        1: findings. 2: the program never called QNN. 3: some calls were not checked.
        """
        return _verb_code(self, len(self.findings))


class AliveAt(Struct, frozen=True):
    """The number of live objects at a point in time."""

    time_ns: Annotated[Count, describe("Time since the start.")] = 0
    contexts: Annotated[Count, describe("Number of live contexts.")] = 0
    graphs: Annotated[Count, describe("Number of live graphs.")] = 0
    memory_handles: Annotated[Count, describe("Number of registered memory handles.")] = 0
    memory_bytes: Annotated[
        Count, describe("Bytes of registered memory, computed from the shapes.")
    ] = 0


class LiveHandle(Struct, frozen=True, kw_only=True):
    """A handle that a program created and did not free, and the place of its creation."""

    kind: Annotated[
        str,
        describe("Kind of object."),
        one_of(
            *("backend", "device", "log", "context", "graph", "memory", "profile", "signal"),
            "system context",
        ),
    ]
    process: Annotated[Count, describe("Process that created the object.")] = 0
    handle: Annotated[Word, describe("Handle of the object.")] = 0
    name: Annotated[
        str, describe("Name of the graph, or of the model of the session; otherwise empty.")
    ] = ""
    bytes: Annotated[
        Count, describe("Bytes of the context's binary, or of the registered memory.")
    ] = 0
    made_by: Annotated[str, describe("Function that created the object.")] = ""
    time_ns: Annotated[
        Count, describe("Time from the start of the program until the object was created.")
    ] = 0
    place: Place = ""
    stack: CallStack = ()


class MadeHandle(Struct, frozen=True, kw_only=True):
    """A context, graph or memory handle that a program created; equal handles are counted."""

    kind: Annotated[str, describe("Kind of object."), one_of("context", "graph", "memory")]
    name: Annotated[
        str,
        describe(
            "Name of the graph or of the session's model. For a context without a "
            "model, the names of its graphs."
        ),
    ] = ""
    bytes: Annotated[
        Count, describe("Bytes of the context's binary, or of the registered memory.")
    ] = 0
    count: Annotated[Count, describe("Number of such objects.")] = 1
    process: Annotated[Count, describe("Process that created the object.")] = 0
    made_by: Annotated[str, describe("Function that created the object.")] = ""
    time_ns: Annotated[
        Count,
        describe(
            "When the first such object was created, in nanoseconds since the program started."
        ),
    ] = 0
    place: Place = ""


class LostSession(Struct, frozen=True, kw_only=True):
    """A session that failed, and without which the program continued."""

    name: Annotated[
        str,
        describe("Name of the session's model if ONNX Runtime made the session; otherwise empty."),
    ] = ""
    graphs: Annotated[tuple[str, ...], describe("Names of the session's graphs.")] = ()
    function: Annotated[
        str, describe("Call that failed; empty if the session never got a graph.")
    ] = ""
    code: Annotated[Count, describe("Code that the call returned.")] = 0
    code_name: Annotated[str, describe("Name of the code.")] = ""
    injected: Annotated[bool, describe("Whether the failure was injected.")] = False
    executions: Annotated[Count, describe("Number of executions before the failure.")] = 0
    spent_ns: Annotated[Count, describe("Time spent in QNN for the session.")] = 0
    after_ns: Annotated[Count, describe("Time that the program continued without the session.")] = 0
    time_ns: Annotated[
        Count, describe("Time from the start of the program until the session was lost.")
    ] = 0
    process: Annotated[Count, describe("Process that created the session.")] = 0
    place: Annotated[
        str, describe("File and line that created the session, or module and offset.")
    ] = ""
    stack: CallStack = ()


class LoggedLine(Struct, frozen=True):
    """A line of QNN's log."""

    level: Annotated[
        int, describe("Log level: 1 error, 2 warning, larger numbers are less serious.")
    ] = 0
    text: str = ""


class FailedCall(Struct, frozen=True, kw_only=True):
    """A call that returned an error code; equal calls are counted."""

    function: str
    code: Count = 0
    name: Annotated[str, describe("Name of the code.")] = ""
    of: Annotated[str, describe("Graph or model of the call; empty if unknown.")] = ""
    count: Annotated[Count, describe("Number of occurrences.")] = 1
    injected: Annotated[bool, describe("Whether the failure was injected.")] = False
    finding: Annotated[
        bool,
        describe("Whether the failure is a problem: neither injected nor a capability query."),
    ] = False
    time_ns: Annotated[Count, describe("Time from the start to the first occurrence.")] = 0
    place: Place = ""
    stack: CallStack = ()
    log: Annotated[
        tuple[LoggedLine, ...], describe("Lines that QNN logged during the first occurrence.")
    ] = ()
    diagnosis: Annotated[
        str | None, describe("The doctor's diagnosis of those lines; null if there is none.")
    ] = None


class FunctionTotal(Struct, frozen=True):
    """All calls of one function, including calls that are counted but not recorded."""

    count: Annotated[Count, describe("Number of calls.")]
    ns: Annotated[Count, describe("Total time in the function.")]
    failed: Annotated[Count, describe("Number of failed calls.")] = 0


class WatchedLibrary(Struct, frozen=True, kw_only=True):
    """A library whose function table the program requested."""

    process: Annotated[Count, describe("Process that loaded the library.")] = 0
    name: Annotated[str, describe("Provider.")]
    backend: Annotated[Count, describe("Id of the backend.")] = 0
    api: Annotated[str, describe("Version of the QNN API.")] = ""
    version: Annotated[
        str | None, describe("Version of the backend's API; null for the system library.")
    ] = None
    path: Annotated[str, describe("File.")] = ""


class MixedIo(Struct, frozen=True, kw_only=True):
    """Inputs and outputs whose first execution used a memory type they were not prepared for."""

    graph: Annotated[str, describe("Name of the graph.")] = ""
    tensors: Annotated[tuple[str, ...], describe("Names of the inputs and outputs.")] = ()
    executed: Annotated[
        str,
        describe("How the first execution passed these inputs and outputs."),
        one_of("raw", "memhandle"),
    ] = "raw"
    bytes: Annotated[Count, describe("Bytes of all these inputs and outputs.")] = 0
    sentence: Annotated[str, describe("Cost of the mismatch.")] = ""
    process: Annotated[Count, describe("Process that executed the graph.")] = 0
    place: Annotated[str, describe("File and line that created the graph.")] = ""


class SerialisedRun(Struct, frozen=True, kw_only=True):
    """A run with serialised QNN calls, compared with an unchanged run before it."""

    waited: Annotated[
        Count, describe("Number of calls that waited for another call of the same process.")
    ] = 0
    waited_ns: Annotated[Count, describe("Total waiting time.")] = 0
    gave_up: Annotated[Count, describe("Number of calls that stopped waiting after 60 s.")] = 0
    failure_before: Annotated[
        str,
        Meta(max_length=1000),
        describe("Failure in the unchanged run; empty if none."),
    ] = ""
    failure: Annotated[
        str, Meta(max_length=1000), describe("Failure in the serialised run; empty if none.")
    ] = ""


class WatchResult(ProgramRun, frozen=True, kw_only=True, tag="qnnmem.watch/1"):
    """The QNN activity of a program."""

    passes: Annotated[bool, describe("Whether the program used QNN and no problem was found.")]
    injected: Annotated[
        tuple[str, ...], describe("Calls that were made to fail, as written on the command line.")
    ] = ()
    unmatched: Annotated[
        tuple[str, ...], describe("Entries of `injected` that matched no call.")
    ] = ()
    serialised: Annotated[
        SerialisedRun | None,
        describe("Effect of serialising the calls; null unless requested."),
    ] = None
    duration_ns: Annotated[Count, describe("Run time of the program.")] = 0
    log_lines: Annotated[Count, describe("Number of lines that QNN logged.")] = 0
    libraries: Annotated[
        tuple[WatchedLibrary, ...],
        describe("Libraries whose function tables the program requested."),
    ] = ()
    peak: Annotated[
        AliveAt,
        describe("Peak number of each kind of object; the time is that of the context peak."),
    ] = AliveAt()
    timeline: Annotated[
        tuple[AliveAt, ...],
        describe(
            "Live objects, one entry per change; only the peaks if there are over 10,000 changes."
        ),
    ] = ()
    functions: Annotated[dict[str, FunctionTotal], describe("Calls by function.")] = field(
        default_factory=dict
    )
    made: Annotated[
        tuple[MadeHandle, ...],
        describe(
            "Contexts, graphs and registered memory that the program made, at most 200 "
            "different ones."
        ),
    ] = ()
    unreleased: Annotated[
        tuple[LiveHandle, ...], describe("Objects that the program never released, at most 200.")
    ] = ()
    freed_after_backend: Annotated[
        tuple[LiveHandle, ...],
        describe("Contexts that still existed when their backend was freed, at most 200."),
    ] = ()
    lost: Annotated[
        tuple[LostSession, ...],
        describe("Sessions that failed and that the program continued without, at most 200."),
    ] = ()
    mixed_io: Annotated[
        tuple[MixedIo, ...],
        describe(
            "Graphs executed with a memory type other than the one they were prepared for; these "
            "are not findings."
        ),
    ] = ()
    findings: Annotated[Count, describe("Number of problems found.")] = 0
    failed_calls: Annotated[
        tuple[FailedCall, ...], describe("Calls that returned a code other than 0.")
    ] = ()

    @property
    def called(self) -> bool:
        """True if the program used QNN."""
        return bool(self.libraries)

    @property
    def verb_code(self) -> int:
        """Exit code of the verb: that of the program, unless a case below applies.

        1: findings. 2: the program never called QNN. 3: some calls were not watched.
        """
        return _verb_code(self, self.findings)

    def bounded(self) -> WatchResult:
        """Return the result with long lists cut, for JSON."""
        return replace(
            self,
            libraries=self.libraries[:_LISTED],
            timeline=thinned(self.timeline, _MOMENTS),
            made=self.made[:_LISTED],
            unreleased=_cut(self.unreleased),
            freed_after_backend=_cut(self.freed_after_backend),
            lost=_cut(self.lost),
            mixed_io=self.mixed_io[:_LISTED],
            failed_calls=_cut(self.failed_calls, None),
        )


def _cut(rows: tuple[Row, ...], limit: int | None = _LISTED) -> tuple[Row, ...]:
    """Return at most `limit` rows, with the innermost frames of their stacks."""
    return tuple(replace(row, stack=row.stack[:_FRAMES]) for row in rows[:limit])


def _verb_code(result: ClientResult | WatchResult, findings: int) -> int:
    if not result.called and not result.not_checked:
        return 2
    if findings:
        return 1
    return 3 if result.not_checked else result.exit_code


def thinned(rows: tuple[AliveAt, ...], limit: int) -> tuple[AliveAt, ...]:
    """Return at most `limit` rows: the peak of each interval, and always the last row."""
    if len(rows) <= limit:
        return rows
    step = -(-len(rows) // (limit - 1))
    parts = [rows[index : index + step] for index in range(0, len(rows) - 1, step)]
    return (
        *(max(part, key=lambda row: (row.contexts, row.memory_bytes)) for part in parts),
        rows[-1],
    )


class LeakedHandle(Struct, frozen=True):
    """A handle that is leaked only if a call fails."""

    kind: Annotated[str, describe("Kind of object.")]
    made_by: Annotated[str, describe("Function that created the object.")] = ""
    place: Place = ""


class FailedRun(Struct, frozen=True, kw_only=True):
    """The outcome of a run in which one call was made to fail."""

    call: Annotated[Count, describe("Number of the failed call, counted from 1.")]
    place: Place = ""
    outcome: Annotated[
        str,
        describe("Worst outcome of the run."),
        one_of(*("hung", "crashed", "not watched", "leaked", "not reached", "exited 0", "failed")),
    ]
    bad: Annotated[bool, describe("Whether the outcome is a finding.")] = False
    exit_code: ProgramCode | None = None
    ended_by: Signal = None
    leaked: Annotated[
        tuple[LeakedHandle, ...],
        describe("Objects that leaked in addition to those that leak in a normal run."),
    ] = ()
    last_line: Annotated[str, describe("Last line that the program printed.")] = ""


class FailEachResult(ProgramResult, frozen=True, kw_only=True, tag="qnnmem.fail-each/1"):
    """The behaviour of a program if each call of a function fails in turn."""

    passes: Annotated[bool, describe("Whether no run crashed, hung or leaked.")]
    command: Command
    function: Annotated[str, describe("Function whose calls were made to fail.")]
    code: Annotated[
        Count, describe("Code that the calls returned when they were made to fail.")
    ] = 0
    calls: Annotated[Count, describe("Number of calls of the function in a normal run.")] = 0
    exit_code: Annotated[int, describe("Exit code of the program in a normal run.")] = 0
    time_limit_s: Annotated[float, Meta(ge=0), describe("Time limit of each run.")] = 0.0
    runs: Annotated[tuple[FailedRun, ...], describe("Runs, one for each failed call.")]

    @property
    def verb_code(self) -> int:
        """Exit code of the verb: 1 for a bad run, 3 for a run that was not watched, else 0."""
        if any(run.bad for run in self.runs):
            return 1
        return 0 if self.passes else 3
