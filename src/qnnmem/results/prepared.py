"""A context binary for LPAI that was written."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from qnnmem.results.inspect import BinaryGraph
from qnnmem.results.proof import ProofScope
from qnnmem.results.result import Count, Result, describe

Width = Annotated[int, Meta(ge=8, le=16, multiple_of=8)]
# Share of the largest output; null where it is without bound, which JSON cannot say.
OutputError = Annotated[float, Meta(ge=0)] | None


class TriedWidths(Struct, frozen=True):
    """The error of the same model on the same samples with other widths."""

    bits: Annotated[Width, describe("Bits of activations.")]
    weight_bits: Annotated[Width, describe("Bits of weights.")]
    error: Annotated[
        OutputError, describe("Share of the largest output; null where it is without bound.")
    ]


class QuantizedGraph(Struct, frozen=True, kw_only=True):
    """How far a graph is from the float model it was made from."""

    bits: Annotated[Width, describe("Bits of activations.")]
    weight_bits: Annotated[Width, describe("Bits of weights.")]
    error: Annotated[
        OutputError, describe("Share of the largest output; null where it is without bound.")
    ]
    error_is_large: Annotated[bool, describe("Whether results say little.")]
    made_up_samples: Annotated[bool, describe("Whether the samples are random numbers.")]
    tried: Annotated[tuple[TriedWidths, ...], describe("Other widths that were tried.")]


class PreparedGraph(BinaryGraph, frozen=True, kw_only=True):
    """A graph of the binary and what is proven of its plan."""

    scratch_bytes: Annotated[Count, describe("Size of the scratch pool in bytes.")]
    optimal: Annotated[bool, describe("Whether these buffers cannot be placed in fewer bytes.")]
    proof: Annotated[ProofScope, describe("What scratch_bytes is minimal for.")]
    persistent_bytes: Annotated[Count, describe("Size of the persistent pool in bytes.")]
    io_bytes: Annotated[Count, describe("Bytes of inputs and outputs.")]
    executable: Annotated[bool, describe("Whether it has a program, not only a layout.")]
    tcm_bytes: Annotated[
        Count | None, describe("Bytes that binary and IO take of TCM; null for a layout.")
    ]
    fits_tcm: Annotated[bool | None, describe("Whether they fit TCM; null for a layout.")]
    quantized: Annotated[
        QuantizedGraph | None,
        describe(
            "How far the graph is from the float model it was made from; null where it was not "
            "quantized here."
        ),
    ]


class PreparedBinary(Result, frozen=True, kw_only=True, tag="qnnmem.prepared/1"):
    """A context binary for LPAI that was written, and what is in it."""

    file: Annotated[str, describe("Path of the binary.")]
    file_bytes: Annotated[Count, describe("Size of the binary in bytes.")]
    hw_version: Annotated[str, describe("Hardware version of LPAI that it is for.")]
    graphs: Annotated[tuple[PreparedGraph, ...], describe("Graphs in the order of the file.")]
    notes: Annotated[tuple[str, ...], describe("Sentences that the user should know.")]
    next: Annotated[tuple[str, ...], describe("Commands to go on with.")]
