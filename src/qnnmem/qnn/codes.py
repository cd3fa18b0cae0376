"""QNN's error codes: numbers, names and meanings."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from qnnmem.errors import QnnError
from qnnmem.finding import Finding

UNKNOWN = "unknown QNN code"

# An error handle has 64 bits; the code is in the lowest 16.
_CODE_MASK = 0xFFFF


class Code(Struct, frozen=True):
    """A number that a QNN call can return, with its name and meaning."""

    code: int
    name: str
    component: str
    meaning: str
    aliases: tuple[str, ...] = ()


def code_name(code: int) -> str:
    """Return QNN's name for a code, e.g. `QNN_GRAPH_ERROR_INVALID_ARGUMENT`."""
    return describe(code).name


def describe(code: int) -> Code:
    """Return the meaning of a code; a number that QNN does not define is marked unknown."""
    unknown = Code(code, UNKNOWN, "", "the number is not a QNN error code")
    return codes().get(code, unknown)


def code_of(handle: int) -> int:
    """Return the code in a 64-bit error handle."""
    return handle & _CODE_MASK


@cache
def codes() -> Mapping[int, Code]:
    """Return all codes by number; if a number has several names, the others are aliases."""
    text = Path(__file__).with_name("codes.csv").read_text("utf-8")
    by_number = {int(row["code"]): _code(row) for row in csv.DictReader(text.splitlines())}
    return MappingProxyType(by_number)


def _code(row: Mapping[str, str]) -> Code:
    return Code(
        int(row["code"]),
        row["name"],
        row["component"],
        row["meaning"],
        tuple(row["aliases"].split()),
    )


def qnn_error(code: int, finding: Finding) -> QnnError:
    """Return the exception for a call that fails with a QNN code."""
    return QnnError(code, code_name(code), finding)
