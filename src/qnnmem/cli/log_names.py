"""The logs that arguments name: patterns that no shell expanded, and texts that are no files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from qnnmem.errors import LoadError, UsageError
from qnnmem.text import quote

_STDIN = "-"
_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")
_FEW = 3  # words that the name of a file may have


def log_names(words: Sequence[str]) -> tuple[str, ...]:
    """Files, folders and URLs; a line of a log in place of its file is refused with a way."""
    names = tuple(dict.fromkeys(name for word in words for name in _matches(word)))
    if names and all(map(_is_missing, names)):
        _check_text(names[0], " ".join(names))
    return names


def _matches(word: str) -> Iterator[str]:
    """What a pattern stands for: files, and folders as a shell gives them."""
    from glob import glob, has_magic

    if not has_magic(word) or not _is_missing(word):
        yield word
        return
    found = sorted(glob(word, recursive=True))  # noqa: PTH207 - names stay as they were typed
    if "**" in word:  # whose folders hold what it matches anyway
        found = [name for name in found if not os.path.isdir(name)]  # noqa: PTH112
    if not found and not _pasted(word):
        raise UsageError(f"no file matches {quote(word)}")
    yield from found or [word]


def _is_missing(name: str) -> bool:
    if name == _STDIN or "://" in name or os.path.lexists(name):
        return False
    from qnnmem.doctor.logs.archive import split_name

    return split_name(name) is None


def _pasted(text: str) -> str:
    """The code in a text that is a line of a log rather than the name of a file."""
    from qnnmem.qnn.pasted import read_pasted

    found = read_pasted(text) if _is_text(text) else None
    if found is None or not found.found:
        return ""
    return found.found[0].name if found.code is None else str(found.code)


def _is_text(text: str) -> bool:
    """Whether a text is not even like the name of a file."""
    words = text.split()
    if _ENDING.search(text):
        return len(words) > _FEW
    return len(words) > 1 or not {"/", "\\"} & set(text)


def _check_text(name: str, text: str) -> None:
    from qnnmem.bounded_file import MISSING
    from qnnmem.report.shell import LONGEST, shell_line

    ways = []
    if code := _pasted(text):
        ways.append(f"what the code means: `{shell_line(['qnnmem', 'explain', code])}`")
    if len(text.split()) > 1 and _is_text(text):
        line = f"{shell_line(['echo', text])} | qnnmem doctor -"
        ways += [f"a line of a log: `{line}`"] if len(line) < LONGEST else []
    if ways:
        raise LoadError(
            quote(text) if len(text) > len(name) else name, MISSING, cure="; ".join(ways)
        )
