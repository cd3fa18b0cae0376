"""What every result type is built from.

    class PlanResult(Result, frozen=True, kw_only=True, tag="qnnmem.plan/1"):
        scratch_bytes: Annotated[Count, describe("Size of the scratch pool in bytes.")]

The tag is the schema's name and the first field of the JSON. A field with a default may be missing
in results of older versions; the program itself writes every field.
"""

from __future__ import annotations

from typing import Annotated, Self

from msgspec import Meta, Struct

from qnnmem.provenance import Origin, Sourced
from qnnmem.version import __version__

TOOL = f"qnnmem {__version__}"
# No memory is larger, and every reader of JSON keeps such a number exact.
MAX_COUNT = 1 << 53
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Difference = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]


def describe(text: str) -> Meta:
    """The sentence about a field in the JSON schema."""
    return Meta(description=text)


class SchemaDocument(Struct, frozen=True, kw_only=True, tag_field="schema"):
    """Base of everything with a schema; the subclass has the schema's name as its tag."""


class Result(SchemaDocument, frozen=True, kw_only=True):
    """Base of every result: a document that names the program that wrote it."""

    tool: Annotated[str, describe("Program and version that wrote the result.")] = TOOL

    @property
    def summary(self) -> str:
        """The result in a line, for a history; empty where there is none."""
        return ""


class SourcedBytes(Struct, frozen=True):
    """A size in bytes and where it comes from."""

    bytes: Count
    origin: Origin
    source: str = ""

    @classmethod
    def of(cls, number: Sourced) -> Self:
        """Take over a number of the domain."""
        return cls(number.value, number.origin, number.source)


class SourcedNumber(Struct, frozen=True):
    """A number and where it comes from."""

    value: Count
    origin: Origin
    source: str = ""

    @classmethod
    def of(cls, number: Sourced) -> Self:
        """Take over a number of the domain."""
        return cls(number.value, number.origin, number.source)
