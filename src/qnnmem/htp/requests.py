"""Requests to the QNN library and their replies: messages between a worker and its child.

The same requests go to a worker on another machine. In such a request, a path is the SHA-256 of a
file that was sent. In the reply, a path is the name of a file that is sent back.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct, field

from qnnmem.calibration import Sample
from qnnmem.deadline import Deadline
from qnnmem.htp.log import LogLine
from qnnmem.qnn.graph import ComposedGraph, ComposedTensor
from qnnmem.qnn.shared_memory import MemDescription
from qnnmem.wire import ByteCount, Seconds, WireMessage

OWN_MARK = "[qnnmem]"  # prefix of qnnmem's lines in the log
# The child writes this line with the request's number after all its log lines.
END_MARK = f"{OWN_MARK} end of request"
MAX_FRAME = 256 << 20  # bytes of a request or a reply

LogName = Annotated[str, Meta(pattern="^(verbose|info|error)$")]
Code = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]  # code of QNN, or exit status of a process
Node = tuple[str, str]  # name and operator

# --- Replies --------------------------------------------------------------------------------------


class VersionsReply(WireMessage, frozen=True):
    """Build and API versions of libQnnHtp."""

    provider: str
    backend_id: int
    build_id: str
    core_api: tuple[int, ...]
    backend_api: tuple[int, ...]


class LoadReply(WireMessage, frozen=True):
    """The code that QNN returned for each binary."""

    codes: list[Code]


class CallsReply(WireMessage, frozen=True):
    """The code that QNN returned for each call, and the duration of each call."""

    codes: Annotated[list[Code], Meta(min_length=1)]
    seconds: list[float] = field(default_factory=list)


class CompileReply(WireMessage, frozen=True):
    """The files written by a compile, and the nodes that stay on the CPU."""

    binaries: list[Path]
    epcontext: Path | None
    on_cpu: list[Node]
    on_htp: ByteCount
    seconds: Seconds = 0.0
    outputs: list[str] = field(default_factory=list)  # of composed graphs


class ListenReply(WireMessage, frozen=True):
    """The graphs that ONNX Runtime composes, and the nodes that it leaves on the CPU."""

    graphs: list[ComposedGraph]
    shared: list[ComposedTensor]
    on_cpu: list[Node]
    on_htp: ByteCount
    data: Path | None = None  # bytes of constants


class QuantizeReply(WireMessage, frozen=True):
    """The written file of a quantized model, and the number of samples used."""

    model: Path
    samples: int


class CpuDifference(Struct, frozen=True):
    """The largest CPU-HTP difference of an output, and the output's largest value on the CPU."""

    name: str
    worst: float
    size: float


class CompareReply(WireMessage, frozen=True):
    """The largest difference between HTP and the CPU for each output."""

    outputs: list[CpuDifference]


class LibraryRefusal(WireMessage, frozen=True):
    """The reason why a request failed in the library."""

    sentence: str
    stage: str = ""
    code: Code | None = None
    memory: bool = False  # the process ran out of memory


Reply = (
    VersionsReply
    | LoadReply
    | CallsReply
    | CompileReply
    | ListenReply
    | QuantizeReply
    | CompareReply
)
R = TypeVar("R", bound=WireMessage)

# --- Requests -------------------------------------------------------------------------------------


class LibraryRequest(WireMessage, frozen=True):
    """Base of requests; each subclass names the type of its reply."""

    reply: ClassVar[type[WireMessage]]


class HtpSettings(Struct, frozen=True):
    """Settings of a compile."""

    soc: int
    vtcm_mb: int | None = None
    opt_level: int | None = None
    memhandle: bool = False
    log: LogName = "verbose"


class VersionsRequest(LibraryRequest, frozen=True):
    """Ask for the versions of libQnnHtp; for tests."""

    reply: ClassVar[type[WireMessage]] = VersionsReply


class WaitRequest(LibraryRequest, frozen=True):
    """Block until killed; for tests."""

    reply: ClassVar[type[WireMessage]] = VersionsReply


class LoadRequest(LibraryRequest, frozen=True):
    """Load binaries in order into one process domain; all admitted binaries stay loaded."""

    reply: ClassVar[type[WireMessage]] = LoadReply
    binaries: list[Path]
    soc: int


class ModelRequest(LibraryRequest, frozen=True):
    """A request about an ONNX model; `folder` holds the model's weights."""

    model: Path
    folder: Path


class ProviderRequest(ModelRequest, frozen=True, kw_only=True):
    """A request served by ONNX Runtime's QNN provider."""

    settings: HtpSettings
    # Weight files by their names in `folder`, for workers on other machines.
    weights: dict[str, Path] = field(default_factory=dict)


class CompileRequest(ProviderRequest, frozen=True):
    """Compile an ONNX model."""

    reply: ClassVar[type[WireMessage]] = CompileReply
    output: Path
    strict: bool = False  # no node may stay on the CPU


class ComposeRequest(LibraryRequest, frozen=True):
    """Compose graphs from a DLC, a file of calls or a model library, and compile them."""

    reply: ClassVar[type[WireMessage]] = CompileReply
    kind: Literal["dlc", "calls", "library"]
    model: Path
    output: Path
    settings: HtpSettings


class ListenRequest(ProviderRequest, frozen=True):
    """Record how ONNX Runtime composes a model; constants are written to `output` if given."""

    reply: ClassVar[type[WireMessage]] = ListenReply
    output: Path | None = None


class QuantizeRequest(ModelRequest, frozen=True):
    """Quantize a float model the way ONNX Runtime prepares models for QNN."""

    reply: ClassVar[type[WireMessage]] = QuantizeReply
    scratch: Path
    output: Path
    precision: Annotated[str, Meta(pattern="^(int8|w8a16)$")]
    samples: int  # number of random samples
    seed: int
    calibration: Path | None = None
    here: Path | None = None  # folder of the relative names in an input list
    files: tuple[Sample, ...] | None = None  # samples that were found before sending
    weights: dict[str, Path] = field(default_factory=dict)


class CompareRequest(ProviderRequest, frozen=True):
    """Run a model on the CPU and the compiled model on HTP, and compare the outputs."""

    reply: ClassVar[type[WireMessage]] = CompareReply
    epcontext: Path


class FreeCall(Struct, frozen=True, tag="free", tag_field="call"):
    """Call `QnnContext_free`."""

    context: int = 0


class AllocateCall(Struct, frozen=True, tag="allocate", tag_field="call"):
    """Allocate shared memory as rpcmem does, and store it under a name."""

    size: ByteCount
    name: str


class RegisterCall(Struct, frozen=True, tag="register", tag_field="call"):
    """Call `QnnMem_register` with one descriptor; the handle is stored under a name."""

    memory: str  # name of allocated memory, whose fd is used; other names mean no memory
    name: str
    place: MemDescription
    context: int = 0


class DeregisterCall(Struct, frozen=True, tag="deregister", tag_field="call"):
    """Call `QnnMem_deRegister` with one handle, given by its name or as a number."""

    handle: str | int


class RetrieveCall(Struct, frozen=True, tag="retrieve", tag_field="call"):
    """Call `QnnGraph_retrieve`."""

    graph: str
    context: int = 0


class CallTensor(Struct, frozen=True):
    """The memory of a tensor: a handle, shared memory, or private bytes."""

    mem_type: int
    says: int = 0  # the size stated to the library
    size: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None  # private bytes; None: none
    handle: str | int | None = None
    shared: Annotated[int, Meta(ge=0, lt=20_000)] | None = None  # index into client memory
    file: Path | None = None  # the file of that shared memory
    offset: ByteCount = 0


class ExecuteCall(Struct, frozen=True, tag="execute", tag_field="call"):
    """Call `QnnGraph_execute`; tensors are keyed by id."""

    graph: str
    tensors: dict[int, CallTensor]
    context: int = 0


Call = FreeCall | AllocateCall | RegisterCall | DeregisterCall | RetrieveCall | ExecuteCall


class CallsRequest(LibraryRequest, frozen=True):
    """Make QNN calls that qnnmem does not check, on contexts made from binaries."""

    reply: ClassVar[type[WireMessage]] = CallsReply
    binaries: list[Path]
    soc: int
    calls: Annotated[list[Call], Meta(max_length=10_000)]


# Requests that a client on another machine may send.
RemoteRequest = (
    VersionsRequest
    | WaitRequest
    | LoadRequest
    | CompileRequest
    | ComposeRequest
    | ListenRequest
    | QuantizeRequest
    | CallsRequest
)
AnyRequest = RemoteRequest | CompareRequest

# --- Outcomes -------------------------------------------------------------------------------------

OutcomeKind = Literal["done", "refused", "crashed", "timeout", "memory"]


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The result of a request, or the reason for its failure, with its log and costs."""

    kind: OutcomeKind
    reply: Reply | None = None
    sentence: str = ""  # why it failed
    code: Code | None = None  # error code of QNN, if any
    stage: str = ""
    log: tuple[LogLine, ...] = ()  # the relevant lines
    tail: tuple[str, ...] = ()  # the last lines, unfiltered
    exit_status: Code | None = None
    signal: Code | None = None
    peak_rss: ByteCount | None = None  # bytes of the process that served the request
    seconds: Seconds = 0.0
    cpu_seconds: Seconds | None = None  # CPU time of that process
    log_bytes: ByteCount = 0

    @property
    def is_done(self) -> bool:
        """True if the request succeeded."""
        return self.kind == "done"

    def result(self, kind: type[R]) -> R:
        """Return the reply; raise ValueError if there is no reply of this type."""
        if not isinstance(self.reply, kind):
            raise ValueError(f"the request has no {kind.__name__}: {self.sentence}")
        return self.reply


class Tick(NamedTuple):
    """Progress of a running request, reported regularly."""

    seconds: float
    peak_rss: int | None  # bytes
    pid: int | None  # process that serves the request, once it is known
    sent: tuple[int, int] | None = None  # bytes of files sent to a remote worker, and in total


@dataclasses.dataclass(slots=True)
class Watch:
    """The deadline of a request, its process id and its observed peak memory."""

    deadline: Deadline
    progress: Callable[[Tick], None] | None
    started: float = dataclasses.field(default_factory=time.monotonic)
    pid: int | None = None  # process that serves the request
    peak_rss: int | None = None
    expired: bool = False
    per_call: bool = False  # the deadline applies to each call of the request

    @property
    def seconds(self) -> float:
        """Seconds since the request started."""
        return time.monotonic() - self.started

    def restart(self) -> None:
        """Restart the clock, because the time so far was not spent in the library."""
        self.started = time.monotonic()
        self.deadline = Deadline.after(self.deadline.limit_s)

    def look(self) -> None:
        """Update the peak memory and report progress."""
        if self.pid is not None:
            self.peak_rss = _high_water(self.pid) or self.peak_rss
        if self.progress is not None:
            self.progress(Tick(self.seconds, self.peak_rss, self.pid))


def _high_water(pid: int) -> int | None:
    """Return the peak resident memory of a process so far, in bytes."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return None


# --- Messages between a worker and its child program ----------------------------------------------


class Served(WireMessage, frozen=True):
    """A request with its number and limits; `library` is the folder of the libraries."""

    number: int
    memory_limit: int
    library: Path
    request: AnyRequest


class Started(WireMessage, frozen=True):
    """The process id of a started request."""

    pid: int


class Ended(WireMessage, frozen=True):
    """The end of a request's process; the payload is its reply or refusal, if any."""

    status: int
    peak_rss: ByteCount
    cpu_seconds: Seconds
