"""Base types of all results.

    class PlanResult(Result, frozen=True, kw_only=True, tag="qnnmem.plan/1"):
        scratch_bytes: Annotated[Count, describe("Size of the scratch pool in bytes.")]

The tag is the schema's name and the first field of the JSON. A field with a default can be missing
in results of older versions; the program itself writes every field.
"""

from __future__ import annotations

import math
from typing import Annotated, Self

from msgspec import Meta, Struct

from qnnmem.provenance import Origin, Sourced
from qnnmem.version import __version__

TOOL = f"qnnmem {__version__}"
# No memory is larger, and every JSON reader represents such a number exactly.
MAX_COUNT = 1 << 53
OMITTED = "omitted"  # marks a field while its schema is generated
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Difference = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]


def describe(text: str, *, is_omitted: bool = False) -> Meta:
    """Return the description of a field for the JSON schema.

    `is_omitted` marks a field that is left out if its value is the default (`omit_defaults`).
    """
    return Meta(description=text, extra_json_schema={OMITTED: True} if is_omitted else None)


def one_of(*values: str | bool) -> Meta:
    """Return the allowed values of a field for the schema; readers also accept other values."""
    return Meta(extra_json_schema={"enum": list(values)})


def finite(number: float) -> float | None:
    """Return the number; None for infinity and NaN, which JSON cannot represent."""
    return number if math.isfinite(number) else None


class SchemaDocument(Struct, frozen=True, kw_only=True, tag_field="schema"):
    """Base of every type with a schema; the tag of a subclass is the schema's name."""

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results; empty for a type without a summary."""
        return ""


class Result(SchemaDocument, frozen=True, kw_only=True):
    """Base of every result: a document that names the program that wrote it."""

    tool: Annotated[str, describe("Program and version that wrote the result.")] = TOOL


class SourcedNumber(Struct, frozen=True):
    """A number, its origin and its source."""

    value: Count
    origin: Origin
    source: str = ""

    @classmethod
    def of(cls, number: Sourced) -> Self:
        """Return the JSON form of a number and its source."""
        return cls(number.value, number.origin, number.source)

    @property
    def sourced(self) -> Sourced:
        """The number as `Sourced`, the type used in computations."""
        return Sourced(self.value, self.origin, self.source)


class ErrorResult(Result, frozen=True, kw_only=True, tag="qnnmem.error/1"):
    """The JSON output of a verb that failed."""

    error: Annotated[str, Meta(min_length=1), describe("Message on standard error.")]
    exit_code: Annotated[int, Meta(ge=1), describe("Exit code of the command.")]
