"""The SoCs of the HTP backend."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from qnnmem.results.result import Count, Result, SourcedNumber, describe


class SocFacts(Struct, frozen=True, kw_only=True):
    """One name of a SoC; several names may share an id."""

    name: str
    marketing_name: str
    model_id: Annotated[Count, describe("QNN's `soc_model`.")]
    arch: Annotated[Count | None, describe("Version of Hexagon, such as 75.")]
    htp: Annotated[bool, describe("Whether the HTP backend can compile for it.")]
    vtcm_bytes: Annotated[SourcedNumber | None, describe("Largest VTCM of a graph.")]
    compile_limit_bytes: Annotated[
        SourcedNumber | None, describe("Bytes that one graph may be estimated at.")
    ]
    fp16: Annotated[bool | None, describe("Whether a float model compiles.")]
    fp16_source: Annotated[str, describe("How that was found out.")] = ""
    source: str
    library_name: Annotated[str, describe("What the library calls this id.")]
    note: str = ""


class SocsResult(Result, frozen=True, kw_only=True, tag="qnnmem.socs/1"):
    """A table of SoCs."""

    socs: tuple[SocFacts, ...]
