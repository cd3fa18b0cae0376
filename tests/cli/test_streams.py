"""Standard streams that are closed, full or replaced by the parent process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qnnmem
from qnnmem.cli import streams

SOURCE = Path(qnnmem.__file__).parents[1]
# Close streams, reopen them, and report the access mode and inheritance of each.
PROGRAM = """
import fcntl, os, sys
kept = os.dup(1)
closed = [int(digit) for digit in sys.argv[1]]
for number in closed:
    os.close(number)
for number, name in enumerate(("stdin", "stdout", "stderr")):
    if number in closed:
        setattr(sys, name, None)
before = (sys.stdin, sys.stdout, sys.stderr)
from qnnmem.cli.streams import open_closed
open_closed()
found = []
for number in closed:
    way = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    found.append((number, way, os.get_inheritable(number)))
streams = (sys.stdin, sys.stdout, sys.stderr)
about = [(s.fileno(), s.mode, s.errors) for s in streams]
about[0] = about[0][:2]  # the rest depends on the language
same = [number for number in range(3) if streams[number] is before[number]]
for number in closed:
    streams[number].close()
    os.fstat(number)  # still taken
os.write(kept, repr((found, about, same)).encode())
"""


@pytest.mark.parametrize("closed", ["", "0", "1", "2", "01", "12", "012"])
def test_a_closed_stream_is_opened_the_wrong_way_round(closed: str) -> None:
    """A closed stream is reopened in the opposite direction, so that no file gets its number."""
    command = [sys.executable, "-c", PROGRAM, closed]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    ways = {"0": os.O_WRONLY, "1": os.O_RDONLY, "2": os.O_WRONLY}
    found = [(int(digit), ways[digit], True) for digit in closed]
    about = [(0, "r"), (1, "w", "backslashreplace"), (2, "w", "backslashreplace")]
    same = [number for number in range(3) if str(number) not in closed]
    assert done.stdout.decode() == repr((found, about, same))


def test_a_stream_of_another_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream object of another type is left alone."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, object())
    streams.open_closed()


class Broken:
    """A standard output whose flush fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def flush(self) -> None:
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "said", "discarded"),
    [
        (BrokenPipeError(32, "pipe"), None, 1),
        (OSError(28, "full"), "[Errno 28] full", 1),
        (ValueError("closed file"), "closed file", 1),
    ],
)
def test_output_that_is_lost_is_said(
    error: Exception, said: str | None, discarded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost output is returned as an OSError and discarded once; a broken pipe is no error."""
    done: list[int] = []
    monkeypatch.setattr(sys, "stdout", Broken(error))
    monkeypatch.setattr(streams, "discard_output", lambda: done.append(1))
    found = streams.finish_output()
    assert isinstance(found, OSError) == (said is not None)
    assert (None if found is None else str(found), len(done)) == (said, discarded)


def test_output_that_was_written_is_not_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that was flushed is not discarded."""
    monkeypatch.setattr(streams, "discard_output", lambda: pytest.fail("discarded"))
    assert streams.finish_output() is None


def test_discarded_output_goes_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Discarded output is written neither now nor at exit."""
    path = tmp_path / "out"
    with path.open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        file.write("late")
        streams.discard_output()
        file.flush()
        monkeypatch.undo()
    assert path.read_text() == ""
