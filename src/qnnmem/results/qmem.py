"""Raw and memhandle inputs and outputs of a model on HTP: four combinations and their costs."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from qnnmem.provenance import Origin, Sourced
from qnnmem.results.result import Count, Difference, Result, describe


class IoMode(Enum):
    """The type of memory in which a tensor is passed, named as in the SDK's options."""

    RAW = "raw"
    MEMHANDLE = "memhandle"


class CopyTime(Struct, frozen=True):
    """Time of the copies on this host, and the origin of this number."""

    nanoseconds: Count
    origin: Origin
    source: str = ""


class QmemRow(Struct, frozen=True, kw_only=True):
    """Memory costs of a combination of preparation and execution mode.

    Bytes are totals over all graphs; copies are for one inference of each graph.
    """

    prepared: Annotated[IoMode, describe("IO memory type chosen when the graph was prepared.")]
    executed: Annotated[IoMode, describe("IO memory type passed at each execution.")]
    reserved_at_load: Annotated[
        Sourced, describe("Internal IO memory reserved when the graph is made or loaded.")
    ]
    reserved_at_first_inference: Annotated[
        Sourced, describe("Internal IO memory reserved by the first inference.")
    ]
    copied_in: Sourced
    copied_out: Sourced
    copy_time: CopyTime
    shared_memory: Annotated[
        Sourced, describe("Memory of the application that is mapped into the process domain.")
    ]
    process_domain_left: Annotated[
        Sourced | None, describe("Bytes left in the process domain after the first inference.")
    ] = None

    @property
    def internal(self) -> int:
        """Bytes of internal IO memory from the first inference on."""
        return self.reserved_at_load.value + self.reserved_at_first_inference.value

    @property
    def copied(self) -> int:
        """Bytes copied per inference."""
        return self.copied_in.value + self.copied_out.value


class QmemChoice(Struct, frozen=True):
    """A combination of preparation and execution mode."""

    prepared: IoMode
    executed: IoMode


class QmemFlag(Struct, frozen=True):
    """The flag that makes a tool use memhandle."""

    tool: str
    step: Literal["prepare", "execute", "both"]
    text: str


class Inference(Struct, frozen=True):
    """The memory effects of one execution."""

    reserved: Annotated[
        Count, describe("Internal IO memory reserved during the inference, in bytes.")
    ]
    copied_in: Count
    copied_out: Count
    copy_seconds: Annotated[float, Meta(ge=0)]


class QmemFinding(Struct, frozen=True):
    """A broken rule."""

    rule: str
    sentence: str


class RanRow(Struct, frozen=True, kw_only=True):
    """Result of executing a combination of preparation and execution mode."""

    prepared: IoMode
    executed: IoMode
    reserved_at_load: Count
    inferences: tuple[Inference, ...]
    sha256: Annotated[str, describe("SHA-256 of all output bytes.")]
    findings: tuple[QmemFinding, ...] = ()
    seconds: Annotated[
        tuple[float, ...],
        describe(
            "Times of QnnGraph_execute in the x86 library after one load; empty if not timed."
        ),
    ] = ()


class QmemRun(Struct, frozen=True, kw_only=True):
    """Executions of the four combinations: the real library computes, qnnmem emulates IO."""

    library: str
    graph: str
    agrees: Annotated[
        bool, describe("Whether every inference of every combination returned the same bytes.")
    ]
    binaries: Annotated[
        int,
        Meta(ge=1, le=2),
        describe(
            "Number of different context binaries; 1 if both preparation modes gave the same "
            "binary, because the x86 library ignores the hint."
        ),
    ]
    rows: tuple[RanRow, ...]


class LibraryAnswer(Struct, frozen=True):
    """Result of a call of libQnnHtp: the returned code, or the signal that ended the process."""

    code: Difference | None = None
    signal: Difference | None = None


class MisuseAnswer(Struct, frozen=True, kw_only=True):
    """A deliberate mistake of a client: what the emulated IO layer and the library return."""

    id: str
    what: str
    code: Annotated[
        Count,
        describe("Code that the emulated IO layer returns; 0 if it returns none."),
    ]
    rule: str
    sentence: str
    cure: str
    source: str
    library: Annotated[
        LibraryAnswer | None, describe("Answer of the real library; null if it was not called.")
    ]


class QmemResult(Result, frozen=True, kw_only=True, tag="qnnmem.qmem/1"):
    """The cost of each combination of memory types for a model's inputs and outputs."""

    file: str
    compiled: Annotated[bool, describe("Whether the file is a model that was compiled first.")] = (
        False
    )
    soc: str | None = None
    io_layer: Literal["emulated"] = "emulated"
    tensors: Annotated[Count, describe("Number of inputs and outputs.")] = 0
    memhandle_tensors: Annotated[Count, describe("Number of tensors prepared for memhandle.")] = 0
    io_exact: Annotated[Sourced, describe("Bytes of inputs and outputs without padding.")]
    io_stored: Annotated[Sourced, describe("Bytes of inputs and outputs as stored in the binary.")]
    process_domain_budget: Sourced
    rows: Annotated[tuple[QmemRow, ...], Meta(min_length=4, max_length=4)]
    recommended: QmemChoice
    advice: str = ""
    traps: tuple[str, ...] = ()
    flags: tuple[QmemFlag, ...] = ()
    run: QmemRun | None = None
    misuses: tuple[MisuseAnswer, ...] = ()
    missing: Annotated[
        str, describe("Outputs of the model that the binary lacks; empty if it has all outputs.")
    ] = ""

    @property
    def prepared(self) -> IoMode | None:
        """The IO mode stated for all tensors of the binary; None if the tensors differ in mode."""
        if self.memhandle_tensors in (0, self.tensors):
            return IoMode.MEMHANDLE if self.memhandle_tensors else IoMode.RAW
        return None

    def row(self, prepared: IoMode, executed: IoMode) -> QmemRow:
        """Return the costs of one combination of memory types."""
        return next(r for r in self.rows if (r.prepared, r.executed) == (prepared, executed))

    @property
    def best(self) -> QmemRow:
        """The costs of the recommended combination."""
        return self.row(self.recommended.prepared, self.recommended.executed)

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return self.advice
