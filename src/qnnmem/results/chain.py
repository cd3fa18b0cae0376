"""The manifest of a model that is cut into parts, which run one after the other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from qnnmem.results.fix import FixDeployment
from qnnmem.results.result import Count, Result, describe


class ChainTensor(Struct, frozen=True, kw_only=True):
    """An input or output of the model, or a tensor passed between parts."""

    name: Annotated[str, describe("Name of the tensor.")]
    type: Annotated[str, describe("Element type.")]
    shape: Annotated[tuple[Count, ...], describe("Dimensions.")]
    bytes: Annotated[Count, describe("Size in bytes.")]
    role: Annotated[
        Literal["input", "output", "boundary"], describe("Role of the tensor in the model.")
    ]
    from_part: Annotated[
        Count,
        describe("Part that produces the tensor, counted from 1; 0 for an input of the model."),
    ]
    to_parts: Annotated[tuple[Count, ...], describe("Parts that read the tensor, counted from 1.")]
    free_after: Annotated[
        Count | None,
        describe(
            "Last part that needs the tensor, counted from 1; 0 if no part reads the tensor, null "
            "for an output of the model."
        ),
    ]


class ChainPart(Struct, frozen=True, kw_only=True):
    """A part of the split model, which is a model itself."""

    file: Annotated[str, describe("Name of the ONNX file next to the manifest.")]
    sha256: Annotated[str, describe("SHA-256 of the file.")]
    ops: Annotated[Count, describe("Number of the model's ops in this part.")]
    inputs: Annotated[
        tuple[str, ...],
        describe("Tensors that this part reads: inputs of the model or results of earlier parts."),
    ]
    outputs: Annotated[tuple[str, ...], describe("Tensors that this part produces.")]
    weights_bytes: Annotated[Count, describe("Bytes of constants.")]
    scratch_bytes: Annotated[
        Count, describe("Bytes of planned scratch, without inputs and outputs.")
    ]
    held_bytes: Annotated[
        Count,
        describe(
            "Bytes of all tensors passed between parts that are live while this part runs, its "
            "inputs and outputs included."
        ),
    ]
    free_after: Annotated[
        tuple[str, ...], describe("Tensors that can be freed after this part has run.")
    ]


class ChainPeak(Struct, frozen=True, kw_only=True):
    """Peak bytes of weights, scratch and tensors between parts."""

    whole_bytes: Annotated[Count, describe("Peak bytes of the unsplit model.")]
    resident_bytes: Annotated[
        Count, describe("Peak bytes if all parts are loaded, each with its own scratch.")
    ]
    shared_bytes: Annotated[
        Count, describe("Peak bytes if all parts are loaded and share one scratch.")
    ]
    in_turn_bytes: Annotated[
        Count, describe("Peak bytes if each part is loaded before it runs and freed afterwards.")
    ]


class ChainBinary(Struct, frozen=True, kw_only=True):
    """A part of the model, compiled to an HTP context binary."""

    file: Annotated[str, describe("Name of the file next to the manifest.")]
    sha256: Annotated[str, describe("SHA-256 of the file.")]
    pd_bytes: Annotated[
        Count, describe("Bytes that the library reserves for this part in a process domain.")
    ]


class HtpChain(Struct, frozen=True, kw_only=True):
    """Measurements of parts by the real HTP library, and how many parts can be resident at once."""

    soc: Annotated[str, describe("Name of the SoC.")]
    library: Annotated[str, describe("Package and version.")]
    binaries: Annotated[tuple[ChainBinary, ...], describe("Context binaries of the parts.")]
    refused_part: Annotated[
        Count,
        describe(
            "First part, counted from 1, that does not fit in a process domain together with all "
            "earlier parts; 0 if all parts fit."
        ),
    ]
    domains: Annotated[
        Count,
        describe(
            "Number of process domains that the parts take on a device if they are loaded in order."
        ),
    ]
    budget_bytes: Annotated[Count, describe("Size of one process domain in bytes.")]
    resident_bytes: Annotated[
        Count, describe("Sum of the library's memory estimates for all parts, in bytes.")
    ]
    in_turn_bytes: Annotated[
        Count, describe("The library's memory estimate for the largest part, in bytes.")
    ]


class Chain(Result, frozen=True, kw_only=True, tag="qnnmem.chain/1"):
    """The manifest of a model that is cut into parts, which run one after the other."""

    model: Annotated[str, describe("File that was split.")]
    inputs: Annotated[tuple[str, ...], describe("Inputs of the model.")]
    outputs: Annotated[tuple[str, ...], describe("Outputs of the model.")]
    parts: Annotated[tuple[ChainPart, ...], describe("Parts, in the order in which they run.")]
    tensors: Annotated[
        tuple[ChainTensor, ...], describe("Inputs, outputs and tensors passed between parts.")
    ]
    crossing_bytes: Annotated[Count, describe("Bytes that cross the cuts, summed over all cuts.")]
    peak: Annotated[ChainPeak, describe("Peak bytes of each way to load the parts.")]
    htp: Annotated[
        HtpChain | None,
        describe("Measurements of the parts by the real HTP library; null if it was not used."),
    ] = None
    deployment: Annotated[
        FixDeployment | None,
        describe(
            "How the parts are deployed and how much memory they take together, according to "
            "`qnnmem fix`; null without a budget."
        ),
    ] = None

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Name and SHA-256 of every file: models, then context binaries."""
        binaries = () if self.htp is None else self.htp.binaries
        models = tuple((part.file, part.sha256) for part in self.parts)
        return models + tuple((binary.file, binary.sha256) for binary in binaries)
