"""Writing a result: to standard output, or to a file that appears whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from qnnmem.errors import OutputError
from qnnmem.text import printable


def write(text: str, path: Path | None, force: bool) -> None:
    """Prints `text`, or writes it to `path` under a temporary name and renames that."""
    write_stream((text,), path, force)


def write_stream(pieces: Iterable[str], path: Path | None, force: bool) -> None:
    """Prints what comes, or writes it to `path`, without ever holding all of it."""
    if path is None:
        _print(pieces)
        return
    from qnnmem.whole_file import write_pieces

    check_free(path, force)
    # A name may hold half a surrogate pair, which UTF-8 cannot.
    write_pieces(path, (piece.encode("utf-8", "backslashreplace") for piece in pieces))
    print(f"Wrote {path}", file=sys.stderr)


def check_free(path: Path, force: bool) -> None:
    """Refuses a path that must not be replaced.

    Renaming replaces whatever has the name, so `-o /dev/null --force` of a superuser would take the
    device away from the whole machine: only ordinary files are ever replaced.
    """
    if not os.path.lexists(path):
        return
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OutputError(f"{path} is not an ordinary file; without -o the result is printed")
    if not force:
        raise OutputError(f"{path} exists already; --force replaces it")


def _print(pieces: Iterable[str]) -> None:
    terminal = sys.stdout.isatty()
    for piece in pieces:
        text = printable(piece, keep="\n") if terminal else piece
        # click.echo would cut what looks like a colour out of names
        if not _is_read(sys.stdout.write, text):
            return
    _is_read(sys.stdout.flush)


def _is_read(put: Callable[..., object], *text: str) -> bool:
    """Puts text out; False when the reader has closed the pipe."""
    try:
        put(*text)
    except BrokenPipeError:
        # The reader has seen enough; what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as exc:
        raise OutputError(f"standard output cannot be written: {exc.strerror or exc}") from exc
    return True
