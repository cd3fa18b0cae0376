"""Requests to the QNN library and their replies: messages between a worker and its child.

The same requests go to a worker on another machine. There a path is the SHA-256 of the content of
a file that was sent, and in a reply it is the name of a file that comes back.
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

OWN_MARK = "[qnnmem]"  # prefix of our own lines in the log
# The child writes this line with the number of the request after its whole log.
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
    """QNN's code for each binary."""

    codes: list[Code]


class CallsReply(WireMessage, frozen=True):
    """QNN's code of each call, and how long it took."""

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
    """A quantized model."""

    model: Path
    samples: int


class CpuDifference(Struct, frozen=True):
    """The largest difference of an output between two runs, and its largest value."""

    name: str
    worst: float
    size: float


class CompareReply(WireMessage, frozen=True):
    """How the outputs of HTP differ from those of the CPU."""

    outputs: list[CpuDifference]


class LibraryRefusal(WireMessage, frozen=True):
    """The reason why a request failed in the library."""

    sentence: str
    stage: str = ""
    code: Code | None = None
    memory: bool = False  # the process had no more of it


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
    """A request with the type of its reply."""

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
    """Load binaries in order into one process domain, and keep all that are admitted."""

    reply: ClassVar[type[WireMessage]] = LoadReply
    binaries: list[Path]
    soc: int


class ModelRequest(LibraryRequest, frozen=True):
    """A request about an ONNX model; `folder` holds its weights."""

    model: Path
    folder: Path


class ProviderRequest(ModelRequest, frozen=True, kw_only=True):
    """A request served by ONNX Runtime's QNN provider."""

    settings: HtpSettings
    # Sent to another machine as well, by their names in `folder`.
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
    samples: int  # random ones
    seed: int
    calibration: Path | None = None
    here: Path | None = None  # folder of the relative names in an input list
    files: tuple[Sample, ...] | None = None  # samples that were already found
    weights: dict[str, Path] = field(default_factory=dict)


class CompareRequest(ProviderRequest, frozen=True):
    """Run a model on the CPU and its compiled form, and compare the outputs."""

    reply: ClassVar[type[WireMessage]] = CompareReply
    epcontext: Path


class FreeCall(Struct, frozen=True, tag="free", tag_field="call"):
    """`QnnContext_free`."""

    context: int = 0


class AllocateCall(Struct, frozen=True, tag="allocate", tag_field="call"):
    """Allocate shared memory under a name, as rpcmem does."""

    size: ByteCount
    name: str


class RegisterCall(Struct, frozen=True, tag="register", tag_field="call"):
    """`QnnMem_register` of one descriptor; the handle is stored under a name."""

    memory: str  # name of allocated memory, whose fd is used; other names mean no memory
    name: str
    place: MemDescription
    context: int = 0


class DeregisterCall(Struct, frozen=True, tag="deregister", tag_field="call"):
    """`QnnMem_deRegister` of one handle, given by its name or as a number."""

    handle: str | int


class RetrieveCall(Struct, frozen=True, tag="retrieve", tag_field="call"):
    """`QnnGraph_retrieve`."""

    graph: str
    context: int = 0


class CallTensor(Struct, frozen=True):
    """The memory of a tensor: a handle, shared memory, or private bytes."""

    mem_type: int
    says: int = 0  # the size stated to the library
    size: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None  # private bytes; None: none
    handle: str | int | None = None
    shared: Annotated[int, Meta(ge=0, lt=20_000)] | None = None  # index into client memory
    file: Path | None = None  # the file of that memory
    offset: ByteCount = 0


class ExecuteCall(Struct, frozen=True, tag="execute", tag_field="call"):
    """`QnnGraph_execute`; tensors are given by their ids."""

    graph: str
    tensors: dict[int, CallTensor]
    context: int = 0


Call = FreeCall | AllocateCall | RegisterCall | DeregisterCall | RetrieveCall | ExecuteCall


class CallsRequest(LibraryRequest, frozen=True):
    """Make QNN calls unchecked, on contexts made from binaries."""

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
    """The outcome of a request."""

    kind: OutcomeKind
    reply: Reply | None = None
    sentence: str = ""  # why it failed
    code: Code | None = None  # error code of QNN, if any
    stage: str = ""
    log: tuple[LogLine, ...] = ()  # the lines that matter
    tail: tuple[str, ...] = ()  # the last lines, unfiltered
    exit_status: Code | None = None
    signal: Code | None = None
    peak_rss: ByteCount | None = None  # bytes of the process that served the request
    seconds: Seconds = 0.0
    cpu_seconds: Seconds | None = None  # CPU time of that process
    log_bytes: ByteCount = 0

    @property
    def is_done(self) -> bool:
        """Return whether the request was carried out."""
        return self.kind == "done"

    def result(self, kind: type[R]) -> R:
        """Return the reply of a successful request."""
        if not isinstance(self.reply, kind):
            raise ValueError(f"the request has no {kind.__name__}: {self.sentence}")
        return self.reply


class Tick(NamedTuple):
    """A sign of life of a running request."""

    seconds: float
    peak_rss: int | None  # bytes
    pid: int | None  # of the process that serves the request, once it is known
    sent: tuple[int, int] | None = None  # bytes of files that went to a worker elsewhere, and all


@dataclasses.dataclass(slots=True)
class Watch:
    """The deadline of a request and its observed state."""

    deadline: Deadline
    progress: Callable[[Tick], None] | None
    started: float = dataclasses.field(default_factory=time.monotonic)
    pid: int | None = None  # process that serves the request
    peak_rss: int | None = None
    expired: bool = False
    per_call: bool = False  # the deadline is for each call of the request

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def restart(self) -> None:
        """Restart the clock: the time so far was not spent in the library."""
        self.started = time.monotonic()
        self.deadline = Deadline.after(self.deadline.limit_s)

    def look(self) -> None:
        """Update the peak and report progress."""
        if self.pid is not None:
            self.peak_rss = _high_water(self.pid) or self.peak_rss
        if self.progress is not None:
            self.progress(Tick(self.seconds, self.peak_rss, self.pid))


def _high_water(pid: int) -> int | None:
    """Return the peak resident bytes of a process so far."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return None


# --- Between a worker and its child program -------------------------------------------------------


class Served(WireMessage, frozen=True):
    """A request with its number and limits; `library` is the folder of the libraries."""

    number: int
    memory_limit: int
    library: Path
    request: AnyRequest


class Started(WireMessage, frozen=True):
    """The process of the request."""

    pid: int


class Ended(WireMessage, frozen=True):
    """How the process of the request ended; the payload is its reply or refusal, if any."""

    status: int
    peak_rss: ByteCount
    cpu_seconds: Seconds
