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
OMITTED = "omitted"  # marks a field in a schema that is being made
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Difference = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]


def describe(text: str, *, is_omitted: bool = False) -> Meta:
    """The sentence about a field in the JSON schema.

    `is_omitted`: the field is left out where it has its default, by `omit_defaults` of its type.
    """
    return Meta(description=text, extra_json_schema={OMITTED: True} if is_omitted else None)


def one_of(*values: str | bool) -> Meta:
    """Values that a field may have, for the schema alone: readers take others, too."""
    return Meta(extra_json_schema={"enum": list(values)})


class SchemaDocument(Struct, frozen=True, kw_only=True, tag_field="schema"):
    """Base of everything with a schema; the subclass has the schema's name as its tag."""

    @property
    def summary(self) -> str:
        """One line for a history of results; empty where a result has none."""
        return ""


class Result(SchemaDocument, frozen=True, kw_only=True):
    """Base of every result: a document that names the program that wrote it."""

    tool: Annotated[str, describe("Program and version that wrote the result.")] = TOOL


class SourcedNumber(Struct, frozen=True):
    """A number and where it comes from."""

    value: Count
    origin: Origin
    source: str = ""

    @classmethod
    def of(cls, number: Sourced) -> Self:
        """Take over a number of the domain."""
        return cls(number.value, number.origin, number.source)

    @property
    def sourced(self) -> Sourced:
        """The number as the domain has it."""
        return Sourced(self.value, self.origin, self.source)


class ErrorResult(Result, frozen=True, kw_only=True, tag="qnnmem.error/1"):
    """What a verb prints in place of its result when JSON was asked for and there is none."""

    error: Annotated[
        str, Meta(min_length=1), describe("The sentence that standard error has, too.")
    ]
    exit_code: Annotated[int, Meta(ge=1), describe("Exit code of the command.")]
