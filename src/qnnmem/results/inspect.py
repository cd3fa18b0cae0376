"""Results of `inspect` for DLCs and for LPAI context binaries."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from qnnmem.qnn.graph import OpDescription
from qnnmem.qnn.tensor import DataTypeName, Quantization, TensorDescription, TensorTypeName
from qnnmem.results.context import VendorBinaryInfo
from qnnmem.results.plan import BufferPool, PlanBuffer, PlanMap, TcmAnswer
from qnnmem.results.result import Count, Difference, Positive, Result, describe
from qnnmem.text import counted

TensorPool = Annotated[str, Meta(pattern="^(scratch|persistent|io|constants)$")]


class DlcTensor(  # type: ignore[misc]
    TensorDescription[TensorTypeName, DataTypeName], frozen=True, kw_only=True
):
    """A tensor of a graph; the type QNN_TENSOR_TYPE_APP_WRITE marks an input."""

    bytes: Annotated[Count, describe("Bytes of the tensor's elements.")]
    stored_bytes: Annotated[Count, describe("Bytes of the tensor's values in the file.")] = 0
    quantization: Quantization | None = None


class DlcOp(OpDescription[DlcTensor], frozen=True, kw_only=True):
    """An operator; its inputs and outputs are tensor ids."""

    origins: Annotated[
        tuple[str, ...], describe("Nodes of the source model that the operator replaces, if known.")
    ] = field(default=(), name="from")


class DlcGraph(Struct, frozen=True, kw_only=True):
    """A graph, with tensors and operators in the order of composition."""

    name: str
    tensors: tuple[DlcTensor, ...]
    ops: tuple[DlcOp, ...]


class DlcResult(Result, frozen=True, kw_only=True, tag="qnnmem.inspect-dlc/1"):
    """The content of a DLC."""

    file: str
    graphs: tuple[DlcGraph, ...]

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return counted(len(self.graphs), "graph")


class InspectedTensor(Struct, frozen=True, kw_only=True):
    """An input, an output, or the old or new tensor of a state."""

    name: Annotated[str, describe("Name of the tensor.")]
    data_type: Annotated[str, describe("QNN name of the element type.")]
    shape: Annotated[tuple[Count, ...], describe("Dimensions.")]
    bytes: Annotated[Count, describe("Size in bytes.")]
    scale: Annotated[float | None, describe("Scale of quantized elements.")]
    zero_point: Annotated[int | None, describe("Zero point of quantized elements.")]
    pool: Annotated[TensorPool, describe("The pool that holds the tensor.")]
    offset: Annotated[
        Count | None, describe("Bytes from the start of the pool; null for a constant.")
    ]


class InspectedState(Struct, frozen=True):
    """A pair of tensors that carries state from one execution to the next."""

    old: Annotated[InspectedTensor, describe("Tensor that the graph reads.")]
    new: Annotated[InspectedTensor, describe("Tensor that the graph writes.")]


class FrameWindow(Struct, frozen=True):
    """A Buffer op: a sliding window of frames in persistent memory."""

    name: Annotated[str, describe("Name of the op.")]
    old: Annotated[str, describe("Tensor with the window of the previous execution.")]
    new: Annotated[str, describe("Tensor with the window for the next execution.")]
    frames: Annotated[Positive, describe("New frames in each execution.")]
    size: Annotated[Positive, describe("Frames in a full window.")]
    stride: Annotated[Positive, describe("Number of frames by which a full window moves.")]
    blocking: Annotated[
        bool, describe("Whether the graph gives no result until the window is full.")
    ]
    padding: Annotated[Count, describe("Number of zero frames in the window at the start.")]
    reset: Annotated[
        str | None, describe("Name of the input that empties the window when it is true.")
    ]

    def step(self, present: int) -> tuple[int, bool]:
        """Return the frame count after an execution, and whether the execution has a result.

        `present` is the number of frames before the execution: `padding` at the start and after a
        reset. An execution without a result returns 6038.
        """
        now = min(present + self.frames, self.size)
        full = now == self.size
        return (self.size - self.stride if full else now), full or not self.blocking


class InspectedBuffer(Struct, frozen=True, kw_only=True):
    """A range of a pool that one tensor and its views occupy for an interval of steps."""

    name: Annotated[str, describe("Name of the tensor that is written to the buffer first.")]
    pool: Annotated[BufferPool, describe("The pool that holds the buffer.")]
    offset: Annotated[Count, describe("Bytes from the start of the pool.")]
    size: Annotated[Count, describe("Size in bytes.")]
    first_step: Annotated[
        Difference, describe("First step in which the buffer is in use; -1 is before the first op.")
    ]
    end_step: Annotated[
        Difference, describe("One past the last step in which the buffer is in use.")
    ]
    aliases: Annotated[tuple[str, ...], describe("Other tensors that use the same bytes.")] = ()


class BinaryGraph(Struct, frozen=True, kw_only=True):
    """The fields that every description of a graph has."""

    name: Annotated[str, describe("Name of the graph.")]
    ops: Annotated[Count, describe("Number of ops.")] = 0
    float_ops: Annotated[Count, describe("Ops that compute in floating point.")] = 0
    io: Annotated[
        Literal["inside", "outside"], describe("Where inputs and outputs are, relative to scratch.")
    ]


class InspectedGraph(BinaryGraph, frozen=True, kw_only=True):
    """A graph of a binary, with the location of every buffer."""

    program_bytes: Annotated[
        Count, describe("Size of the program; 0 if the file has only a layout.")
    ] = 0
    in_order: Annotated[bool, describe("Whether the program runs in the planned order.")] = False
    align: Annotated[Positive, describe("Alignment of starts and sizes in bytes.")] = 1
    pools: Annotated[
        dict[str, Count],
        describe("Bytes of each pool; `io` appears only if it is outside scratch."),
    ]
    inputs: Annotated[
        tuple[InspectedTensor, ...], describe("Inputs that the application passes.")
    ] = ()
    outputs: Annotated[
        tuple[InspectedTensor, ...], describe("Outputs that the application receives.")
    ] = ()
    states: Annotated[
        tuple[InspectedState, ...], describe("State kept from one execution to the next.")
    ] = ()
    windows: Annotated[tuple[FrameWindow, ...], describe("Sliding windows of frames.")] = ()
    constants: Annotated[Count, describe("Number of constants.")] = 0
    buffers: Annotated[
        tuple[InspectedBuffer, ...], describe("Every buffer with its pool and offset.")
    ]
    notes: Annotated[tuple[str, ...], describe("Notes from preparing the graph.")] = ()
    tcm: Annotated[
        TcmAnswer | None,
        describe("Whether the binary fits TCM with this graph alone; null for a layout."),
    ] = None

    @property
    def map(self) -> PlanMap:
        """The memory map. It has no proven bound, because a binary stores none."""
        return PlanMap(
            scratch_bytes=self.pools.get("scratch", 0),
            persistent_bytes=self.pools.get("persistent", 0),
            lower_bound_bytes=0,
            optimal=False,
            io=self.io,
            buffers=tuple(
                PlanBuffer(
                    name=buffer.name,
                    pool=buffer.pool,
                    size_bytes=buffer.size,
                    lower=buffer.first_step,
                    upper=buffer.end_step,
                    offset_bytes=buffer.offset,
                    aliases=buffer.aliases,
                )
                for buffer in self.buffers
            ),
        )


class InspectedBinary(Result, frozen=True, kw_only=True, tag="qnnmem.inspect/1"):
    """The content of an LPAI context binary, without programs and constants."""

    producer: Annotated[str, describe("Program that made the binary.")] = ""
    hw_version: Annotated[str, describe("LPAI hardware version of the binary.")] = ""
    format_version: Annotated[str, describe("Version of the file format.")] = ""
    file_bytes: Annotated[Count, describe("Size of the file in bytes.")] = 0
    constants_bytes: Annotated[Count, describe("Bytes of the constants section.")] = 0
    tcm: Annotated[
        TcmAnswer | None,
        describe(
            "Whether the binary fits TCM with all graphs at once; null if the binary contains no "
            "program."
        ),
    ] = None
    graphs: Annotated[tuple[InspectedGraph, ...], describe("Graphs in the order of the file.")]

    @property
    def is_fatal(self) -> bool:
        """True if a graph has more allocations than TCM serves, which crashes the whole system."""
        return any(graph.tcm is not None and graph.tcm.is_crowded for graph in self.graphs)

    @property
    def summary(self) -> str:
        """The result in one line."""
        return counted(len(self.graphs), "graph")


class InspectDocument(Struct, frozen=True, kw_only=True):
    """An LPAI context binary, nested as in qnn-context-binary-utility.

    Readers of the vendor's JSON find the fields they know. The fields of qnnmem are under the key
    `qnnmem`.
    """

    info: VendorBinaryInfo
    version: Literal[1] = 1
    qnnmem: InspectedBinary
