"""The table of SoCs with their HTP limits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from qnnmem.provenance import Sourced
from qnnmem.results.result import Count, Result, SourcedNumber, describe

_MIB = 1 << 20


class Soc(Struct, frozen=True, kw_only=True):
    """A name of a SoC and its HTP limits; several names can share an id."""

    name: str
    marketing_name: str
    model_id: Annotated[Count, describe("QNN's `soc_model`.")]
    arch: Annotated[Count | None, describe("Hexagon version, such as 75.")]
    has_htp: Annotated[bool, describe("Whether the HTP backend can compile for the SoC.")] = field(
        name="htp"
    )
    vtcm_size: Annotated[SourcedNumber | None, describe("Largest VTCM of one graph.")] = field(
        name="vtcm_bytes"
    )
    graph_limit: Annotated[
        SourcedNumber | None,
        describe("Limit for the compiler's estimate of one graph's memory, in bytes."),
    ] = field(name="compile_limit_bytes")
    fp16: Annotated[bool | None, describe("Whether a float model compiles.")]
    fp16_source: Annotated[str, describe("How the FP16 support was measured.")] = ""
    source: str
    library_name: Annotated[str, describe("Name that the library uses for this id.")]
    note: str = ""

    @property
    def vtcm_bytes(self) -> Sourced | None:
        """Largest VTCM that one graph can use, in bytes."""
        return None if self.vtcm_size is None else self.vtcm_size.sourced

    @property
    def vtcm_mb(self) -> int | None:
        """Largest VTCM that one graph can use, in MiB."""
        return None if self.vtcm_size is None else self.vtcm_size.value // _MIB

    @property
    def compile_limit(self) -> Sourced | None:
        """Limit in bytes for the compiler's estimate of one graph's memory."""
        return None if self.graph_limit is None else self.graph_limit.sourced


class SocsResult(Result, frozen=True, kw_only=True, tag="qnnmem.socs/1"):
    """A table of SoCs."""

    socs: tuple[Soc, ...]
