"""Write a result to standard output, or to a file, which is written completely or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.cli.screen import fitted
from qnnmem.cli.streams import discard_output, note, say
from qnnmem.errors import OutputError
from qnnmem.text import counted, shorten

if TYPE_CHECKING:
    from msgspec import Struct

    from qnnmem.htp.compile import CompileFailure
    from qnnmem.verbs import VerbCall

_LONGEST = 2000  # characters of a verdict


class Output(NamedTuple):
    """Output options of a verb: format, path, and details."""

    form: str = "text"
    path: Path | None = None  # None: standard output
    force: bool = False
    verbose: bool = False

    @property
    def is_json(self) -> bool:
        """True for JSON output."""
        return self.form == "json"

    def to_terminal(self) -> Output:
        """Return a copy that writes to the terminal instead of a file."""
        return self._replace(path=None)

    def write(self, text: str, verdict: str = "") -> None:
        """Write the result; if it goes to a file, print the verdict to standard error."""
        write(text, self.path, self.force, verdict)

    def show(self, result: Struct, render: Callable[[], str], verdict: str = "") -> None:
        """Write the result as JSON if the user asked for JSON, else the text of `render`."""
        if not self.is_json:
            self.write(render(), verdict)
            return
        from qnnmem.results.schema import encode

        self.write(encode(result), verdict)

    def show_failure(self, failure: CompileFailure, missing: str, call: VerbCall) -> int:
        """Print why a compile gave no result; return the exit code. `missing` names the result."""
        from qnnmem.verbs.refusal import failure_code, say_failure

        text = say_failure(failure, missing, call.flags, as_json=self.is_json)
        self.to_terminal().write(text)
        return failure_code(failure)


def write(text: str, path: Path | None, force: bool, verdict: str = "") -> None:
    """Print `text`, or write it atomically to `path`.

    If the text goes to a file, the verdict is printed to standard error, which build servers show.
    """
    write_stream((text,), path, force)
    if path is not None:
        say_verdict(verdict)


def say_verdict(verdict: str) -> None:
    """Print the verdict of a result file to standard error; control characters are replaced."""
    for line in verdict.splitlines():
        note(shorten(line, _LONGEST))


def say_refused(rows: Iterable[object]) -> None:
    """Print the failed files to standard error, grouped by reason."""
    from qnnmem.results.files import RefusedFile

    groups: dict[str, list[RefusedFile]] = {}
    for row in rows:
        if isinstance(row, RefusedFile):
            groups.setdefault(row.reason, []).append(row)
    for reason, group in groups.items():
        more = f" and {counted(len(group) - 1, 'other file')}" if len(group) > 1 else ""
        shown = f"{group[0].input}{more}: {reason}" if more else group[0].sentence
        say(shown, group[0].exit_code)


def write_stream(pieces: Iterable[str], path: Path | None, force: bool) -> None:
    """Print pieces of text or write them to `path`, without holding all of them in memory."""
    if path is None:
        _print(pieces)
        return
    from qnnmem.atomic_file import check_replaceable, shown, write_pieces

    check_replaceable(path, force=force)
    # A name may contain a lone surrogate, which UTF-8 cannot encode.
    encoded = (piece.encode("utf-8", "backslashreplace") for piece in pieces)
    write_pieces(path, encoded, force=force)
    note(f"Wrote {shown(path)}")


def _print(pieces: Iterable[str]) -> None:
    for text in fitted(pieces, sys.stdout):
        # click.echo would remove colour codes from names
        if not _is_read(sys.stdout.write, text):
            return
    _is_read(sys.stdout.flush)


def _is_read(put: Callable[..., object], *text: str) -> bool:
    """Write text; return False if the reader has closed the pipe."""
    try:
        put(*text)
    except BrokenPipeError:
        discard_output()  # the reader closed the pipe
        return False
    except OSError as exc:
        raise OutputError(f"standard output cannot be written: {exc.strerror or exc}") from exc
    return True
