"""A deployment file: context binaries, host memory, and what the file says about the binaries."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from qnnmem.provenance import Sourced
from qnnmem.results.context import ContextDocument
from qnnmem.results.result import Count, Result, describe
from qnnmem.text import counted

CarrierKind = Literal["executorch", "litert", "litertlm", "genie", "genai", "epcontext", "archive"]


class CarriedBinary(Struct, frozen=True, kw_only=True):
    """A distinct context binary, however many methods or models use it."""

    name: Annotated[
        str, describe("Where the binary is: file or archive member, and position inside it.")
    ]
    offset: Annotated[Count, describe("Offset of the binary in the file.")] = 0
    bytes: Count
    used_by: Annotated[
        tuple[str, ...], describe("Methods, models or stages that run this binary.")
    ] = ()
    group: Annotated[
        str, describe("Device group of the binary; empty if the file has only one group.")
    ] = ""
    graphs: tuple[str, ...] = ()
    soc_model: Annotated[
        int | None, describe("Id of the SoC that the binary was compiled for.")
    ] = None
    total: Annotated[Sourced | None, describe("Memory bill of this binary.")] = None
    need_low: Annotated[
        Sourced | None, describe("Lower bound of the binary's bytes in a process domain.")
    ] = None
    need_high: Annotated[
        Sourced | None, describe("Upper bound of the binary's bytes in a process domain.")
    ] = None
    spill_fill: Annotated[Count, describe("Bytes of the binary's largest spill/fill buffer.")] = 0
    is_billed: Annotated[
        bool, describe("Whether the bill counts this binary; a device loads only one group.")
    ] = True


class UnreadPart(Struct, frozen=True):
    """A part whose memory need is unknown."""

    name: str
    why: str
    bytes: Annotated[Count, describe("Size of the part in the file.")] = 0


class HostPart(Struct, frozen=True):
    """Memory that the application uses in addition to the contexts."""

    name: str
    size: Sourced


class CheckedClaim(Struct, frozen=True, kw_only=True):
    """A claim of the file about its binaries, and what the binaries state."""

    what: str
    claimed: str
    found: str
    holds: Annotated[
        bool | None, describe("Whether the claim is true; null if the binaries do not show it.")
    ]


class CarrierFacts(Struct, frozen=True, kw_only=True):
    """A deployment file that contains context binaries."""

    kind: CarrierKind
    title: Annotated[str, describe("Kind of file, in words.")]
    binaries: tuple[CarriedBinary, ...] = ()
    unread: Annotated[
        tuple[UnreadPart, ...],
        describe("Parts whose memory is unknown; if there are any, the verdict is never `fits`."),
    ] = ()
    host: Annotated[
        tuple[HostPart, ...], describe("Memory outside the bill: CPU buffers and constants.")
    ] = ()
    state: Annotated[
        Sourced | None,
        describe("KV cache that the runner keeps; it is part of the IO in the bill."),
    ] = None
    shared_spill_fill: Annotated[
        Sourced | None,
        describe("Spill/fill bytes with one shared buffer, if the file asks for sharing."),
    ] = None
    cpu_operators: Annotated[tuple[str, ...], describe("Operators that run on the CPU.")] = ()
    claims: tuple[CheckedClaim, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[CheckedClaim, ...]:
        """The claims of the file that its binaries contradict."""
        return tuple(claim for claim in self.claims if claim.holds is False)


class CarrierResult(Result, frozen=True, kw_only=True, tag="qnnmem.carrier/1"):
    """The content of a deployment file; each binary is in the form of the vendor's tool."""

    file: str
    facts: CarrierFacts
    contents: Annotated[
        tuple[ContextDocument, ...], describe("Contents of the binaries, in the order of `facts`.")
    ] = ()

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        return f"{self.facts.title}: {counted(len(self.facts.binaries), 'context')}"
