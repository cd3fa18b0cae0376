"""Results about files: several files together, refused files and written files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from msgspec import Struct

from qnnmem.results.result import Count, Result, describe


class RefusedFile(Struct, frozen=True):
    """A file without a result, and the reason."""

    input: Annotated[str, describe("Path of the file as given.")]
    sentence: Annotated[str, describe("Why there is no answer, in one sentence.")]
    exit_code: Annotated[int, describe("Exit code for this file alone.")] = 2

    @property
    def reason(self) -> str:
        """The reason, without the file name at the start."""
        if self.sentence.startswith(f"{self.input} "):
            return f"the file{self.sentence.removeprefix(self.input)}"
        return self.sentence.removeprefix(f"{self.input}: ")


class FileCounts(Struct, frozen=True):
    """Number of files by result."""

    files: Annotated[Count, describe("Number of files.")]
    fits: Annotated[Count, describe("Number of files that fit.")]
    does_not_fit: Annotated[Count, describe("Number of files that do not fit.")]
    cannot_tell: Annotated[Count, describe("Number of undecided files.")]
    refused: Annotated[Count, describe("Number of refused files, which could not be processed.")]

    @classmethod
    def of(cls, answers: Sequence[bool | None], refused: int) -> Self:
        """Return the counts of files with each answer, and of refused files."""
        return cls(
            files=len(answers) + refused,
            fits=answers.count(True),
            does_not_fit=answers.count(False),
            cannot_tell=answers.count(None),
            refused=refused,
        )

    @property
    def all_fit(self) -> bool | None:
        """False if any file does not fit; None if any is undecided or refused; else True."""
        if self.does_not_fit:
            return False
        return None if self.cannot_tell or self.refused else True


NO_FILES = FileCounts(0, 0, 0, 0, 0)


class SeveralFiles(Result, frozen=True, kw_only=True):
    """Base of results for several files; a subclass adds a field with the result of each file."""

    fits: Annotated[
        bool | None,
        describe("Whether all files fit; null if one is undecided or has no answer."),
    ] = None
    exit_code: Annotated[int, describe("Exit code of the command: that of the worst file.")] = 0
    counts: Annotated[FileCounts, describe("Number of files by answer.")] = NO_FILES
    refused: Annotated[
        tuple[RefusedFile, ...], describe("Refused files, which could not be processed.")
    ] = ()

    listed: ClassVar[str]  # the field that holds the results

    @property
    def each(self) -> tuple[Any, ...]:
        """The results of all files that were not refused."""
        results: tuple[Any, ...] = getattr(self, self.listed)
        return results

    @classmethod
    def of(cls, rows: Iterable[Any]) -> Self:
        """Return one result for `rows`, which are results and refused files."""
        listed = tuple(rows)
        refused = tuple(row for row in listed if isinstance(row, RefusedFile))
        results = tuple(row for row in listed if not isinstance(row, RefusedFile))
        counts = FileCounts.of([result.fits for result in results], len(refused))
        facts: dict[str, Any] = {
            "fits": counts.all_fit,
            "exit_code": worst_code(row.exit_code for row in listed),
            "counts": counts,
            "refused": refused,
        }
        return cls(**facts | {cls.listed: results})


def worst_code(codes: Iterable[int]) -> int:
    """Return the most severe exit code: unreadable, does not fit, timeout, unknown, success."""
    known = set(codes)
    return next((code for code in (2, 1, 4, 3) if code in known), 0)


class WrittenFile(Struct, frozen=True):
    """A written file and its size."""

    file: Annotated[str, describe("Path of the file.")]
    bytes: Annotated[Count, describe("Size in bytes.")]


class WrittenResult(Result, frozen=True, kw_only=True, tag="qnnmem.written/1"):
    """Files that a verb wrote, and the next command."""

    verb: Annotated[str, describe("Verb that wrote the files.")]
    files: Annotated[tuple[WrittenFile, ...], describe("Files that were written.")]
    next: Annotated[str, describe("The next command; empty if there is none.")] = ""


def written_result(verb: str, files: Iterable[Path], next_step: str = "") -> WrittenResult:
    """Return the result for written files, with their sizes from disk."""
    written = tuple(WrittenFile(str(file), file.stat().st_size) for file in files)
    return WrittenResult(verb=verb, files=written, next=next_step)
