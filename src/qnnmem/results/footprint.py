"""The memory bill of a model on HTP: every part in bytes, each with its origin."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from qnnmem.provenance import Origin, Sourced
from qnnmem.results.carrier import CarrierFacts
from qnnmem.results.result import Count, Result, describe
from qnnmem.text import quote

_NAMED = 6  # missing outputs named in a sentence


class SizeRange(Struct, frozen=True):
    """A number between two bounds, which are equal if the number is known exactly."""

    low: Sourced
    high: Sourced

    @property
    def is_exact(self) -> bool:
        """True if both bounds are equal."""
        return self.low.value == self.high.value


class BillItem(Struct, frozen=True):
    """A tensor and its size."""

    graph: str
    name: str
    kind: Annotated[
        str, describe("`input`, `output` or `weights`; a result of `qnnmem fit` also has `part`.")
    ]
    bytes: Count


class Trap(Struct, frozen=True):
    """A misleading number in a bill, and why it misleads."""

    id: str
    sentence: str


class MissingOutput(Struct, frozen=True):
    """An output of the model that is not in the context binary."""

    name: str
    reason: Annotated[
        str, describe("Operator that computes the output outside the binary, if known.")
    ] = ""


class GraphBill(Struct, frozen=True, kw_only=True):
    """The memory bill of one graph; null for numbers that the file does not store."""

    name: str
    weights: Sourced | None = None
    io: Annotated[
        Sourced | None,
        describe("Bytes of inputs and outputs, each padded as in the file."),
    ] = None
    io_exact: Annotated[
        Sourced | None, describe("Bytes of inputs and outputs without padding.")
    ] = None
    op_data: Sourced | None = None
    ddr_tensors: Sourced | None = None
    spill_fill: Sourced | None = None
    vtcm_stored: Annotated[Sourced | None, describe("VTCM stated in the file.")] = None
    vtcm: Annotated[Sourced | None, describe("VTCM that the graph actually uses.")] = None
    total: Sourced | None = None
    compile_estimate: Sourced | None = None
    process_domain: SizeRange | None = None


# The parts of the total, by the names that every report shows.
BillParts = TypedDict(
    "BillParts",
    {
        "weights": Sourced | None,
        "shared weights": Sourced | None,
        "IO": Sourced | None,
        "op data": Sourced | None,
        "DDR tensors": Sourced | None,
        "spill/fill": Sourced | None,
        "VTCM": Sourced | None,
    },
    total=False,
)
PartName = Literal[
    "weights", "shared weights", "IO", "op data", "DDR tensors", "spill/fill", "VTCM"
]
PART_NAMES: tuple[PartName, ...] = (
    *("weights", "shared weights", "IO", "op data", "DDR tensors"),
    *("spill/fill", "VTCM"),
)


class OnnxNode(Struct, frozen=True):
    """A node of the ONNX model."""

    name: Annotated[str, describe("Name of the node, or of its first output.")]
    operator: str
    reason: Annotated[str, describe("Why QNN does not support the node, if known.")] = ""


class PartitionCheck(Struct, frozen=True):
    """A run of the EPContext model in ONNX Runtime, compared with the model on the CPU."""

    verified: Annotated[
        bool, describe("Whether all outputs equal those of the CPU, within the tolerance.")
    ]
    difference: Annotated[
        float | None,
        describe(
            "Largest difference as a share of the output's largest value; null if nothing "
            "was compared."
        ),
    ]
    why: Annotated[str, describe("The comparison in a sentence.")]


class PreparedContext(Struct, frozen=True, kw_only=True):
    """The files written by `qnnmem prepare`."""

    path: str
    epcontext: Annotated[
        str | None, describe("Path of the ONNX Runtime model next to the binary, if requested.")
    ] = None
    pte: Annotated[
        str | None, describe("Path of the ExecuTorch program next to the binary, if requested.")
    ] = None
    library: str
    seconds: Annotated[float, describe("Compile time in seconds.")]
    on_cpu: Annotated[tuple[OnnxNode, ...], describe("Nodes that stay on the CPU.")] = ()
    run: Annotated[
        PartitionCheck | None, describe("Comparison of the outputs; only for partitioned models.")
    ] = None
    notes: tuple[str, ...] = ()


class Bill(Result, frozen=True, kw_only=True, tag="qnnmem.footprint/1"):
    """The memory bill of a context binary; sums count shared weights and VTCM once."""

    file: str
    file_bytes: Annotated[int, Meta(ge=0), describe("Size of the context binary.")] = 0
    build_id: Annotated[str, describe("Version of QAIRT that made the binary.")] = ""
    soc: Annotated[str | None, describe("SoC that the bill is for.")] = None
    made_for_soc_model: Annotated[
        int | None, describe("Id of the SoC that the binary was compiled for.")
    ] = None
    dsp_arch: Annotated[int | None, describe("Hexagon version, such as 75.")] = None
    total: Sourced | None = None
    dominant: Annotated[PartName | None, describe("Largest known part.")] = None
    parts: BillParts
    io_exact: Annotated[Sourced | None, describe("IO without padding.")] = None
    vtcm_stored: Annotated[
        Sourced | None, describe("Largest VTCM size that the file states for a graph.")
    ] = None
    compile_estimate: Annotated[
        Sourced | None,
        describe("Compile estimate of the largest graph; the compile limit applies to each graph."),
    ] = None
    compile_limit: Sourced | None = None
    process_domain: SizeRange | None = None
    process_domain_budget: Sourced
    spilled_per_inference: Annotated[
        Sourced | None, describe("Bytes moved from VTCM to DDR in one inference.")
    ] = None
    filled_per_inference: Annotated[
        Sourced | None, describe("Bytes moved back to VTCM in one inference.")
    ] = None
    ddr_read_per_inference: Sourced | None = None
    ddr_written_per_inference: Sourced | None = None
    host_ram: Annotated[Sourced | None, describe("Peak memory of the compiling process.")] = None
    graphs: tuple[GraphBill, ...] = ()
    missing_outputs: Annotated[
        tuple[MissingOutput, ...],
        describe(
            "Outputs of the model that the binary lacks; if there are any, the bill covers only a "
            "part of the model."
        ),
    ] = ()
    model_outputs: Annotated[
        Count,
        describe("Number of outputs of the whole model if the binary lacks some of them, else 0."),
    ] = 0
    largest_io: tuple[BillItem, ...] = ()
    largest_weights: tuple[BillItem, ...] = ()
    traps: tuple[Trap, ...] = ()
    carrier: Annotated[
        CarrierFacts | UnsetType,
        describe("Contents of the file; only for files that contain context binaries."),
    ] = UNSET
    from_cache: Annotated[
        bool | UnsetType,
        describe("Whether the bill came from the cache, without a compile."),
    ] = UNSET
    prepared: Annotated[
        PreparedContext | UnsetType, describe("Files that were written; only for `qnnmem prepare`.")
    ] = UNSET

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        from qnnmem.notebook import shown

        return shown(self)

    @property
    def weights(self) -> Sourced | None:
        """Weights of all graphs, without shared weights."""
        return self.parts.get("weights")

    @property
    def shared_weights(self) -> Sourced | None:
        """Weights shared by graphs."""
        return self.parts.get("shared weights")

    @property
    def io(self) -> Sourced | None:
        """Inputs and outputs, each padded as in the file."""
        return self.parts.get("IO")

    @property
    def op_data(self) -> Sourced | None:
        """Data of the compiled operators."""
        return self.parts.get("op data")

    @property
    def ddr_tensors(self) -> Sourced | None:
        """Tensors that the compiler places in DDR."""
        return self.parts.get("DDR tensors")

    @property
    def spill_fill(self) -> Sourced | None:
        """Buffers for tensors that do not fit into VTCM."""
        return self.parts.get("spill/fill")

    @property
    def vtcm(self) -> Sourced | None:
        """VTCM of the graph with the largest use; graphs use it in turn."""
        return self.parts.get("VTCM")

    @property
    def named_parts(self) -> tuple[tuple[PartName, Sourced | None], ...]:
        """All parts of the total, by name."""
        return named_parts(self.parts)

    @property
    def vtcm_range(self) -> SizeRange | None:
        """Bounds of the VTCM use; they differ if the stored size can mean that none was set."""
        vtcm = self.vtcm
        return None if vtcm is None else SizeRange(least_vtcm(vtcm, self.vtcm_stored), vtcm)

    @property
    def total_range(self) -> SizeRange | None:
        """Bounds of the total, with the minimum and maximum VTCM use."""
        vtcm = self.vtcm_range
        if self.total is None or vtcm is None:
            return None
        less = vtcm.high.value - vtcm.low.value
        return SizeRange(replace(self.total, value=self.total.value - less), self.total)

    @property
    def all_weights(self) -> Sourced | None:
        """Weights of every graph plus shared weights, which count once."""
        weights, shared = self.weights, self.shared_weights
        if weights is None or shared is None or not shared.value:
            return weights
        size = weights.value + shared.value
        return Sourced(size, Origin.COMPUTED, "weights of all graphs, shared weights counted once")

    @property
    def missing_sentence(self) -> str:
        """The sentence about outputs that the binary lacks; empty if it has all outputs."""
        return missing_words(self.missing_outputs, self.model_outputs)

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        size = "total not known" if self.total is None else f"{self.total.value:,} bytes"
        return f"{size} on {self.soc or 'an unnamed SoC'}"


def named_parts(parts: BillParts) -> tuple[tuple[PartName, Sourced | None], ...]:
    """Return all parts, known or not, in the order of the report."""
    return tuple((name, parts.get(name)) for name in PART_NAMES)


def least_vtcm(used: Sourced, stored: Sourced | None) -> Sourced:
    """Return the used VTCM; if it is only computed, the smaller of the used and the stored VTCM."""
    if stored is None or used.origin is not Origin.COMPUTED:
        return used
    return min(stored, used, key=lambda size: size.value)


def missing_words(outputs: tuple[MissingOutput, ...], total: int) -> str:
    """Return the sentence about outputs that a binary lacks; empty if it has all outputs."""
    if not outputs:
        return ""
    named = [
        quote(output.name) + f" ({output.reason})" * bool(output.reason)
        for output in outputs[:_NAMED]
    ]
    more = len(outputs) - len(named)
    named += [f"{more} more"] if more else []
    verb = "is" if len(outputs) == 1 else "are"
    count = f"{len(outputs):,} of {total:,} outputs"
    return f"not the whole model: {count} {verb} not in the context binary: {', '.join(named)}"
