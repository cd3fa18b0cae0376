"""The manifest of a model that is cut into parts which run one after the other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from qnnmem.results.fix import FixDeployment
from qnnmem.results.result import Count, Result, describe


class ChainTensor(Struct, frozen=True, kw_only=True):
    """A tensor passed between parts, an input or an output."""

    name: Annotated[str, describe("Name of the tensor.")]
    type: Annotated[str, describe("Element type.")]
    shape: Annotated[tuple[Count, ...], describe("Dimensions.")]
    bytes: Annotated[Count, describe("Size in bytes.")]
    role: Annotated[Literal["input", "output", "boundary"], describe("Its role in the model.")]
    from_part: Annotated[
        Count, describe("Part that gives it, from 1; 0 for an input of the model.")
    ]
    to_parts: Annotated[tuple[Count, ...], describe("Parts that read it, from 1.")]
    free_after: Annotated[
        Count | None,
        describe(
            "Part, from 1, after which it is not needed; 0 if nobody reads it, null if it is an "
            "output."
        ),
    ]


class ChainPart(Struct, frozen=True, kw_only=True):
    """A model of a chain of parts."""

    file: Annotated[str, describe("Name of the ONNX file beside the manifest.")]
    sha256: Annotated[str, describe("SHA-256 of the file.")]
    ops: Annotated[Count, describe("Ops of the whole that it computes.")]
    inputs: Annotated[
        tuple[str, ...],
        describe("Tensors that it reads: inputs of the model, and what parts before it gave."),
    ]
    outputs: Annotated[tuple[str, ...], describe("Tensors that it gives.")]
    weights_bytes: Annotated[Count, describe("Bytes of constants.")]
    scratch_bytes: Annotated[
        Count, describe("Bytes of planned scratch, inputs and outputs outside of it.")
    ]
    held_bytes: Annotated[
        Count,
        describe("Bytes of tensors outside of parts while it runs, its own included."),
    ]
    free_after: Annotated[tuple[str, ...], describe("Tensors that nobody needs after it.")]


class ChainPeak(Struct, frozen=True, kw_only=True):
    """Peak bytes of weights, scratch and tensors between parts."""

    whole_bytes: Annotated[Count, describe("The model in one piece.")]
    resident_bytes: Annotated[Count, describe("All parts loaded, each with scratch of its own.")]
    shared_bytes: Annotated[Count, describe("All parts loaded, one scratch for all.")]
    in_turn_bytes: Annotated[Count, describe("Each part loaded before it runs and freed after it.")]


class ChainBinary(Struct, frozen=True, kw_only=True):
    """A part of the model, compiled to a context binary of HTP."""

    file: Annotated[str, describe("Name of the file beside the manifest.")]
    sha256: Annotated[str, describe("SHA-256 of the file.")]
    pd_bytes: Annotated[
        Count, describe("Bytes that the library reserves for it in a process domain.")
    ]


class HtpChain(Struct, frozen=True, kw_only=True):
    """Measurements of the parts by the real HTP library, and whether all can be resident."""

    soc: Annotated[str, describe("Name of the SoC.")]
    library: Annotated[str, describe("Package and version.")]
    binaries: Annotated[tuple[ChainBinary, ...], describe("Context binaries of the parts.")]
    refused_part: Annotated[
        Count,
        describe(
            "Part, from 1, that found no room in the process domain of those before it; 0 if all "
            "are admitted."
        ),
    ]
    domains: Annotated[
        Count, describe("Process domains that all parts take on a device, loaded in order.")
    ]
    budget_bytes: Annotated[Count, describe("Bytes of one process domain.")]
    resident_bytes: Annotated[Count, describe("Estimates of all parts together, in bytes.")]
    in_turn_bytes: Annotated[Count, describe("The largest estimate, in bytes.")]


class Chain(Result, frozen=True, kw_only=True, tag="qnnmem.chain/1"):
    """The manifest of a model that is cut into parts which run one after the other."""

    model: Annotated[str, describe("File that was cut.")]
    inputs: Annotated[tuple[str, ...], describe("Inputs of the model.")]
    outputs: Annotated[tuple[str, ...], describe("Outputs of the model.")]
    parts: Annotated[tuple[ChainPart, ...], describe("Parts in the order they run.")]
    tensors: Annotated[tuple[ChainTensor, ...], describe("Tensors outside of parts.")]
    crossing_bytes: Annotated[Count, describe("Bytes that cross the cuts, added up over all cuts.")]
    peak: Annotated[ChainPeak, describe("Bytes at the fullest moment.")]
    htp: Annotated[
        HtpChain | None,
        describe("Measurements of the parts by the real HTP library; null if it was not used."),
    ] = None
    deployment: Annotated[
        FixDeployment | None,
        describe(
            "How the parts are deployed and what they take together, as `qnnmem fix` judged them; "
            "null without a budget."
        ),
    ] = None

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Name and SHA-256 of every file: models, then context binaries."""
        binaries = () if self.htp is None else self.htp.binaries
        models = tuple((part.file, part.sha256) for part in self.parts)
        return models + tuple((binary.file, binary.sha256) for binary in binaries)
