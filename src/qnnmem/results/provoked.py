"""Results of `provoke`: a real failure of the HTP library, caused by a crafted input."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from qnnmem.results.result import Count, Difference, Result, describe


class Attempt(Struct, frozen=True):
    """An attempt to provoke the failure."""

    what: str
    outcome: Annotated[str, describe("done, refused, crashed, timeout or memory.")]
    code: Annotated[Difference | None, describe("QNN error code.")] = None


class ProvokedResult(Result, frozen=True, kw_only=True, tag="qnnmem.provoked/1"):
    """The record of a provoked failure; the whole log is in a file next to it."""

    kind: Literal["graph-limit", "op-over-vtcm", "pd-full", "host-memory", "bad-binary"]
    soc: str
    soc_model: Count
    library: Annotated[str, describe("Package and version of the library.")]
    library_version: Annotated[str | None, describe("Version of QAIRT.")]
    command: Annotated[str, describe("Command that repeats the failure.")]
    as_expected: Annotated[bool, describe("Whether the library failed for the expected reason.")]
    stage: Literal["compile", "load"]
    code: Annotated[Difference | None, describe("QNN error code.")]
    sentence: Annotated[str, describe("Why it failed.")]
    cause: str | None
    need: Annotated[Count | None, describe("Bytes needed.")]
    limit: Annotated[Count | None, describe("Bytes available.")]
    lines: Annotated[tuple[str, ...], describe("The relevant lines of the log.")]
    log_file: str
    input_file: str
    attempts: Annotated[
        tuple[Attempt, ...],
        Meta(min_length=1),
        describe("All attempts; the last is the one that this record describes."),
    ]
    seconds: Annotated[float, Meta(ge=0)]
    peak_rss: Annotated[Count | None, describe("Peak memory of the process in bytes.")]

    @property
    def failed(self) -> bool:
        """True if the library failed."""
        return self.attempts[-1].outcome != "done" or bool(self.code)
