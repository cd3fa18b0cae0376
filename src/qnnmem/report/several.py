"""Tables about several files: what could not be judged, and columns that stay within a line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from qnnmem.results.several import FileCounts, RefusedFile
from qnnmem.text import printable, shorten

_LINE = 80  # columns of a table
_NAME = 30  # columns for a file, where nothing is cut
_SHORTEST = 12  # columns for a file at least
ANSWERS = {True: "fits", False: "does not fit", None: "cannot tell"}


def overall_values(
    answers: Sequence[bool | None], refused: Sequence[RefusedFile], code: int
) -> dict[str, Any]:
    """What a program asks first about several files: whether all fit, and how many of each kind."""
    counts = FileCounts.of(answers, len(refused))
    return {"fits": counts.all_fit, "exit_code": code, "counts": to_builtins(counts)}


def refused_values(refused: Sequence[RefusedFile]) -> list[dict[str, str]]:
    """The files without an answer."""
    return [{"input": file.input, "sentence": file.sentence} for file in refused]


def common_folder(files: Sequence[str]) -> str:
    """The folder that all lie in, where their names are too long with it."""
    if all(len(file) <= _NAME for file in files):
        return ""
    start = os.path.commonprefix(files)  # noqa: RUF071 - cut at a slash below
    return start[: start.rfind("/") + 1]


def table_lines(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A name, numbers to the right, and words at the end; long names are cut in the middle."""
    folder = common_folder([row[0] for row in rows])
    if folder:
        yield f"in {shorten(folder, 200)}"
    named = [(printable(row[0].removeprefix(folder)), *row[1:]) for row in rows]
    cells = [tuple(titles), *named]
    sizes = [2 + max(map(len, column)) for column in list(zip(*cells, strict=True))[1:-1]]
    last = max(len(line[-1]) for line in cells)
    room = max(_SHORTEST, _LINE - sum(sizes) - 2 - last)  # what is left of a line is for names
    width = min(room, max(len(line[0]) for line in cells))
    for name, *numbers, word in cells:
        columns = (f"{number:>{size}}" for number, size in zip(numbers, sizes, strict=True))
        yield f"{shorten(name, width):<{width}}{''.join(columns)}  {word}".rstrip()
