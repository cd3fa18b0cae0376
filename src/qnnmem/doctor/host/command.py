"""Run an external command with limits on time and size; its output is untrusted."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from qnnmem.child import kill_group

_MOST_ERRORS = 4096
_PIECE = 1 << 16
_NOTHING: Mapping[str, str] = {}
_REST_S = 2.0  # seconds for the rest of the pipes, and for a killed process


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Output and exit code of a command.

    The exit code is None after a timeout, and 0 if the command was killed because it printed too
    much.
    """

    code: int | None
    text: str
    errors: str


def ask(
    command: Sequence[str], seconds: float, most: int, environment: Mapping[str, str] = _NOTHING
) -> CommandAnswer:
    """Run a command without input for at most `seconds`; return up to `most` bytes of its output.

    A command that prints more is killed, and its output up to then is returned. Raise OSError if
    the command cannot start.
    """
    process = subprocess.Popen(  # noqa: S603  no shell
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "LC_ALL": "C", **environment},  # errors are recognised by text
        start_new_session=True,
    )
    try:
        said, complained = _Kept(process, process.stdout, most), _Kept(process, process.stderr, 0)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        in_time = process.returncode is not None
        if not in_time:
            kill_group(process)
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: give up
                process.wait(_REST_S)
        # Do not read to the end of the pipe: a server started by adb may hold it open forever.
        until = time.monotonic() + _REST_S
        text, errors = said.rest(until), complained.rest(until)
        code = process.returncode if in_time else None
        return CommandAnswer(0 if said.is_full else code, text, errors)
    except RuntimeError as exc:  # no thread available
        if process.stderr is not None:
            process.stderr.close()
        raise OSError(str(exc)) from exc
    finally:
        kill_group(process)


class _Kept:
    """Thread that reads a pipe and keeps its first bytes."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: IO[bytes] | None, most: int) -> None:
        self.is_full = False
        self._process, self._pipe, self._most = process, pipe, most
        self._data = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._close()
            raise

    def rest(self, until: float) -> str:
        """Wait for the reader, but at most until a given time, and return the text read so far."""
        self._thread.join(max(0.0, until - time.monotonic()))
        text = bytes(self._data[: self._most or _MOST_ERRORS]).decode("utf-8", "replace")
        return text.replace("\r\n", "\n")

    def _close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()

    def _read(self) -> None:
        # The reader itself closes the pipe. If another thread closed it, the descriptor could be
        # reused for another pipe, and the waiting reader would take bytes from that.
        try:
            while self._pipe is not None and (piece := self._pipe.read(_PIECE)):
                if len(self._data) <= (self._most or _MOST_ERRORS):
                    self._data += piece
                # Excess error output is discarded; it does not end the command.
                if self._most and len(self._data) > self._most:
                    self.is_full = True
                    kill_group(self._process)
                    return
        except OSError:
            pass  # the bytes read before count
        finally:
            self._close()
