"""Files and logs named by arguments: paths, patterns, folders, `-` for standard input.

A shell expands patterns itself, but not in quotes, and not on Windows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

from qnnmem.bounded_file import MISSING
from qnnmem.errors import LoadError, QnnMemError, Setting, UsageError
from qnnmem.loader.file_kind import CARRIERS, IN_FOLDERS, bundle_config, is_kind, kinds_for
from qnnmem.text import counted, lazy_pattern, plain_or_quoted, quote
from qnnmem.units import format_size

if TYPE_CHECKING:
    from qnnmem.results.files import RefusedFile

_T = TypeVar("_T")

STDIN = "-"
_STDIN_WORDS = "standard input"
_NAMED = 5  # skipped files named in a note
_MOST = 50_000  # files visited in a folder and below
_STEP = 1 << 20
_TEXT = 1 << 20  # bytes of lines on standard input
_ENDING = lazy_pattern(r"\.[A-Za-z]\w{0,7}$")
_WILDCARDS = frozenset("*?[")
_FEW = 3  # words that a file name may have


class NamedFiles(NamedTuple):
    """Files named by arguments, in order, and notes about skipped files."""

    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # sentences


def named_files(
    words: Sequence[str], is_wanted: Callable[[Path], bool], kind: str, *, each_once: bool = True
) -> NamedFiles:
    """Return files by name, by pattern and by folder; `is_wanted` filters files in folders."""
    files: list[str] = []
    left_out: list[str] = []
    for word in words:
        if word != STDIN and os.path.isdir(word) and not bundle_config(Path(word)):  # noqa: PTH112
            inside = _in_folder(word, is_wanted, kind)
            left_out += inside.left_out
            files += inside.files
        else:
            files += _matches(word)
    return NamedFiles(tuple(dict.fromkeys(files)) if each_once else tuple(files), tuple(left_out))


def read_by(verb: str) -> Callable[[Path], bool]:
    """Return a function that says whether a verb reads a file that it finds in a folder."""
    # In a folder, archives are skipped unless they are named, and config files are skipped because
    # a config file selects its whole folder.
    left_out = set(CARRIERS) - set(IN_FOLDERS)
    kinds = tuple(kind for kind in kinds_for(verb) if kind not in left_out)
    return lambda path: is_kind(path, kinds)


def _is_pattern(word: str) -> bool:
    """Return True if a name has a wildcard; `glob` is imported only for such names."""
    return not _WILDCARDS.isdisjoint(word)


def _matches(word: str) -> Sequence[str]:
    if word == STDIN or not _is_pattern(word) or os.path.lexists(word):
        return (word,)
    from glob import glob

    if "**" in word:
        _check_walk(word)
    names = sorted(name for name in glob(word, recursive=True) if not Path(name).is_dir())  # noqa: PTH207
    if not names:
        raise UsageError(f"no file matches {quote(word)}")
    return names


def _check_walk(pattern: str) -> None:
    """Raise LoadError for a pattern whose folder contains too many files."""
    from qnnmem.doctor.folder import files_in

    parts = pattern.split("/")
    fixed = "/".join(parts[: next(i for i, part in enumerate(parts) if _is_pattern(part))])
    folder = fixed or ("/" if pattern.startswith("/") else ".")
    if os.path.isdir(folder):  # noqa: PTH112
        for _ in _bounded(files_in(folder, below=True), folder):
            pass


def _bounded(paths: Iterable[_T], folder: str) -> Iterator[_T]:
    """Yield the paths of a walk; raise LoadError if there are too many."""
    for number, item in enumerate(paths):
        if number >= _MOST:
            why = f"contains more than {_MOST:,} files; name a smaller folder or single files"
            raise LoadError(folder, why)
        yield item


def _in_folder(folder: str, is_wanted: Callable[[Path], bool], kind: str) -> NamedFiles:
    from qnnmem.doctor.folder import LeftOut, files_in

    files, odd, others = [], [], 0
    for item in _bounded(files_in(folder.rstrip("/") or "/", below=True), folder):
        if isinstance(item, LeftOut):
            odd.append(f"{plain_or_quoted(item.path, 200)}: {item.why}; skipped")
        elif is_wanted(Path(item)):
            files.append(item)
        else:
            others += 1
    if not files:
        beside = f", only {counted(others, 'other file')}" if others else ""
        raise LoadError(folder, f"this folder contains no {kind}{beside}")
    notes = odd[:_NAMED]
    if len(odd) > _NAMED:
        left = counted(len(odd) - _NAMED, "more file")
        notes.append(f"{plain_or_quoted(folder, 200)}: skipped {left}")
    if others:
        where = plain_or_quoted(folder, 200)
        notes.append(f"{where}: skipped {counted(others, 'file')}; only {kind}s are read")
    return NamedFiles(tuple(files), tuple(notes))


@contextmanager
def opened(word: str, limit: int, suffix: str = "") -> Iterator[Path]:
    """Yield the path of a file; for `-`, the path of a temporary copy of standard input.

    Errors about the copy name standard input.
    """
    if word != STDIN:
        yield Path(word)
        return
    from qnnmem.temporary_folder import temporary_folder

    with temporary_folder() as folder:
        path = Path(folder) / f"standard_input{suffix}"
        try:
            _copy(sys.stdin, path, limit)
            yield path
        except QnnMemError as exc:
            raise _about_input(exc, path) from exc.__cause__


def refused(file: str, exc: QnnMemError, exit_code: int = 2) -> RefusedFile:
    """Return the table row of a failed file: the error in one sentence."""
    # The doctor reads a short log with few imports.
    from qnnmem.flags import flag
    from qnnmem.results.files import RefusedFile

    sentence = exc.sentence(flag)
    named = sentence if str(Path(file)) in sentence else f"{file}: {sentence}"
    return RefusedFile(file, named, exit_code)


def input_lines() -> list[str]:
    """Return the non-empty lines of standard input."""
    with opened(STDIN, _TEXT) as path:
        text = path.read_bytes().decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise LoadError(_STDIN_WORDS, "is empty")
    return lines


def _copy(stdin: IO[str] | None, path: Path, limit: int) -> None:
    source = getattr(stdin, "buffer", None)
    try:
        with path.open("xb") as file:
            size = 0
            while source is not None and (piece := source.read(_STEP)):
                size += len(piece)
                if size > limit:
                    allowed = format_size(limit)
                    raise LoadError(_STDIN_WORDS, f"over the limit of {allowed}")
                file.write(piece)
    except OSError as exc:
        raise LoadError(_STDIN_WORDS, f"cannot be read ({exc.strerror or exc})") from exc


def _about_input(exc: QnnMemError, path: Path) -> QnnMemError:
    """Return the error with standard input named in place of the temporary copy."""

    def renamed(text: str) -> str:
        return text.replace(str(path), _STDIN_WORDS)

    def words(words_: str | tuple[str | Setting, ...]) -> str | tuple[str | Setting, ...]:
        if isinstance(words_, str):
            return renamed(words_)
        return tuple(renamed(part) if isinstance(part, str) else part for part in words_)

    exc.where, exc.what, exc.cure = renamed(exc.where), words(exc.what), words(exc.cure)
    exc.args = (exc.sentence(),)
    return exc


def log_names(words: Sequence[str]) -> tuple[str, ...]:
    """Return files, folders and URLs; raise UsageError for a pasted log line."""
    names = tuple(dict.fromkeys(name for word in words for name in _matching_logs(word)))
    if names and all(map(_is_missing, names)):
        _check_text(names[0], " ".join(names))
    return names


def _matching_logs(word: str) -> Iterator[str]:
    """Yield the paths that match a pattern; any other word is yielded unchanged.

    A pattern also matches folders. A pattern with `**` does not, because it matches their files.
    """
    if not _is_pattern(word) or not _is_missing(word):
        yield word
        return
    from glob import glob

    names = sorted(glob(word, recursive=True))  # noqa: PTH207 - unchanged names
    if "**" in word:  # their files match anyway
        names = [name for name in names if not os.path.isdir(name)]  # noqa: PTH112
    if not names and not _pasted(word):
        raise UsageError(f"no file matches {quote(word)}")
    yield from names or [word]


def _is_missing(name: str) -> bool:
    if name == STDIN or "://" in name or os.path.lexists(name):
        return False
    from qnnmem.doctor.logs.archive import split_name

    return split_name(name) is None


def _pasted(text: str) -> str:
    """Return the error code if a text is a log line rather than a file name; else ""."""
    from qnnmem.qnn.pasted import read_pasted

    code = read_pasted(text) if _is_text(text) else None
    if code is None or not code.found:
        return ""
    return code.found[0].name if code.code is None else str(code.code)


def _is_text(text: str) -> bool:
    """Return True if a text looks like a log line rather than a file name."""
    words = text.split()
    if _ENDING.search(text):
        return len(words) > _FEW
    return len(words) > 1 or not {"/", "\\"} & set(text)


def _check_text(name: str, text: str) -> None:
    from qnnmem.report.shell import LONGEST, shell_line

    ways = []
    if code := _pasted(text):
        ways.append(f"to look up the code: `{shell_line(['qnnmem', 'explain', code])}`")
    if len(text.split()) > 1 and _is_text(text):
        line = f"{shell_line(['echo', text])} | qnnmem doctor -"
        ways += [f"to diagnose a log line: `{line}`"] if len(line) < LONGEST else []
    if ways:
        raise LoadError(
            quote(text) if len(text) > len(name) else name, MISSING, cure="; ".join(ways)
        )
