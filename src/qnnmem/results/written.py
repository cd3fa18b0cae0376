"""Files that a verb wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from qnnmem.results.result import Count, Result, describe


class WrittenFile(Struct, frozen=True):
    """A file and its size."""

    file: Annotated[str, describe("Path of the file.")]
    bytes: Annotated[Count, describe("Size in bytes.")]


class WrittenResult(Result, frozen=True, kw_only=True, tag="qnnmem.written/1"):
    """Files that a verb wrote, and the command to go on with."""

    verb: Annotated[str, describe("The verb.")]
    files: Annotated[tuple[WrittenFile, ...], describe("Files that were written.")]
    next: Annotated[str, describe("The command to go on with; empty where there is none.")] = ""


def written_result(verb: str, files: Iterable[Path], next_step: str = "") -> WrittenResult:
    """Look up the sizes of files that were just written."""
    written = tuple(WrittenFile(str(file), file.stat().st_size) for file in files)
    return WrittenResult(verb=verb, files=written, next=next_step)
