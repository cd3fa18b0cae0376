"""Results of `prepare` for LPAI: a written context binary."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, Struct

from qnnmem.results.inspect import BinaryGraph
from qnnmem.results.proof import ProofScope
from qnnmem.results.result import Count, Result, describe

Width = Annotated[int, Meta(ge=8, le=16, multiple_of=8)]
# Share of the output's largest value; null if unbounded.
OutputError = Annotated[float, Meta(ge=0)] | None
LARGE_ERROR = 0.2  # of an output's largest value; beyond it results are unreliable


def percent(error: float | None) -> str:
    """Return an error as a percentage of the largest output, or as a multiple if large."""
    if error is None:
        return "∞ times"
    return f"{error:.3g} times" if error >= 10 else f"{error:.1%}"


class TriedWidths(Struct, frozen=True, order=True):
    """The error of the same model on the same samples with other bit widths."""

    bits: Annotated[Width, describe("Bits of activations.")]
    weight_bits: Annotated[Width, describe("Bits of weights.")]
    error: Annotated[
        OutputError, describe("Largest error as a share of the largest output; null if unbounded.")
    ]


class QuantizedGraph(TriedWidths, frozen=True, kw_only=True):
    """The error of a quantized graph compared with its float model."""

    error_is_large: Annotated[bool, describe("Whether results are unreliable.")]
    made_up_samples: Annotated[bool, describe("Whether the samples are random numbers.")]
    tried: Annotated[tuple[TriedWidths, ...], describe("Other widths that were tried.")]

    @property
    def sentence(self) -> str:
        """The sentence about the error, with widths and kind of samples."""
        samples = "random samples" if self.made_up_samples else "the calibration samples"
        widths = f"int{self.bits} with {self.weight_bits}-bit weights"
        return f"{widths}: off by up to {percent(self.error)} of the largest output on {samples}"

    @property
    def cures(self) -> tuple[TriedWidths, ...]:
        """Tried widths, narrowest first, each with less than half the error of the previous widths.

        Widths that leave a large error are included only if no tried width leaves a small one.
        """
        smallest: list[TriedWidths] = []
        least = _bound(self.error)
        enough = [tried for tried in self.tried if _bound(tried.error) <= LARGE_ERROR]
        for tried in sorted(enough or self.tried):
            if _bound(tried.error) < least / 2:
                smallest.append(tried)
                least = _bound(tried.error)
        return tuple(smallest)


def _bound(error: float | None) -> float:
    return math.inf if error is None else error


class PreparedGraph(BinaryGraph, frozen=True, kw_only=True):
    """A graph of the binary, and what is proven about its plan."""

    scratch_bytes: Annotated[Count, describe("Size of the scratch pool in bytes.")]
    optimal: Annotated[bool, describe("Whether scratch_bytes is proven minimal for these buffers.")]
    proof: Annotated[ProofScope, describe("What is proven about scratch_bytes.")]
    persistent_bytes: Annotated[Count, describe("Size of the persistent pool in bytes.")]
    io_bytes: Annotated[Count, describe("Bytes of inputs and outputs.")]
    executable: Annotated[
        bool, describe("Whether the graph has a program and can run; a layout has no program.")
    ]
    tcm_bytes: Annotated[
        Count | None, describe("Bytes of TCM for binary and IO; null for a layout.")
    ]
    fits_tcm: Annotated[bool | None, describe("Whether binary and IO fit TCM; null for a layout.")]
    quantized: Annotated[
        QuantizedGraph | None,
        describe("Error of the quantization; null if this command did not quantize the model."),
    ]


class PreparedBinary(Result, frozen=True, kw_only=True, tag="qnnmem.prepared/1"):
    """A written context binary for LPAI, and its content."""

    file: Annotated[str, describe("Path of the binary.")]
    file_bytes: Annotated[Count, describe("Size of the binary in bytes.")]
    hw_version: Annotated[str, describe("LPAI hardware version of the binary.")]
    graphs: Annotated[tuple[PreparedGraph, ...], describe("Graphs in the order of the file.")]
    notes: Annotated[tuple[str, ...], describe("Notes for the user.")]
    next: Annotated[tuple[str, ...], describe("Next commands.")]
