"""Writing a result: to standard output, or to a file that appears whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click

from qnnmem.errors import OutputError
from qnnmem.whole_file import write_whole


def write(text: str, path: Path | None, force: bool) -> None:
    """Prints `text`, or writes it to `path` under a temporary name and renames that."""
    if path is None:
        _print(text)
        return
    check_free(path, force)
    # A name may hold half a surrogate pair, which UTF-8 cannot.
    write_whole(path, text.encode("utf-8", "backslashreplace"))
    click.echo(f"Wrote {path}", err=True)


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


def _print(text: str) -> None:
    if sys.stdout.isatty():  # names in a CSV are the file's own; a terminal would obey them
        shown = (c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
        text = "".join(shown)
    try:
        sys.stdout.write(text)  # click.echo would cut what looks like a colour out of names
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough; what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as exc:
        raise OutputError(f"standard output cannot be written: {exc.strerror or exc}") from exc
