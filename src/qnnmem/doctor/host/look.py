"""Read-only access to a machine, local or through adb: files, folders, permissions, commands.

The machine is not changed, and no privilege is needed. For a value that cannot be read, an `Unseen`
with the reason is returned.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from qnnmem.doctor.host.command import CommandAnswer, ask
from qnnmem.text import shorten

CALL_S = 5.0  # seconds for one command
TOTAL_S = 30.0  # seconds for all readings
_MOST_TEXT = 1 << 16  # bytes of one file or answer
_MOST_LISTED = 1 << 20  # bytes of the names in one folder
_MOST_NAMES = 20_000
_GONE = ("error: ", "adb: ")  # messages of adb itself, not of the device
_ABSENT = ("no such file", "not found", "no such process", "not a directory")
_DENIED = ("permission denied", "operation not permitted", "access denied")
_RIGHTS = (
    'for p in "$@"; do f=-; [ -r "$p" ] && f=r; [ -w "$p" ] && f="${f}w"; '
    'echo "= $f $p"; ls -ld "$p" 2>&1; done'
)


@dataclass(frozen=True, slots=True)
class Unseen:
    """Stands for a value that could not be read, and says why."""

    reason: str
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class Rights:
    """Permissions of the current user on an existing file."""

    readable: bool
    writable: bool
    owner: str = ""  # mode, user and group, if visible


class Look(Protocol):
    """Interface for reading a machine with the rights of an ordinary user."""

    @property
    def place(self) -> str:
        """Name of the machine for use in sentences."""

    def read_file(self, path: str) -> str | Unseen:
        """Return the text of a file."""

    def list_folder(self, path: str) -> tuple[str, ...] | Unseen:
        """Return the names in a folder."""

    def rights(self, *paths: str) -> Mapping[str, Rights] | Unseen:
        """Return the current user's permissions for each of `paths` that exists."""

    def run(self, *words: str) -> str | Unseen:
        """Return the output of a command, or the reason why there is none."""


@dataclass(frozen=True, slots=True)
class ShellLook:
    """Access to a Linux or Android machine through common shell commands, until a deadline."""

    place: str
    until: float  # of time.monotonic()
    remote: tuple[str, ...] = ()  # command that runs another on the machine; empty for this one

    def read_file(self, path: str) -> str | Unseen:
        """Return the text of a file, truncated if it is long."""
        return self.run("cat", path)

    def list_folder(self, path: str) -> tuple[str, ...] | Unseen:
        """Return the names in a folder, or only the first `_MOST_NAMES` if there are more."""
        text = self._run(("ls", "-1", f"{path}/"), _MOST_LISTED)
        return text if isinstance(text, Unseen) else tuple(text.splitlines()[:_MOST_NAMES])

    def rights(self, *paths: str) -> Mapping[str, Rights] | Unseen:
        """Return the permissions of the files that exist, read with one command."""
        text = self.run("sh", "-c", _RIGHTS, "sh", *paths)
        if isinstance(text, Unseen):
            return text
        found, path, flags = {}, "", ""
        for line in text.splitlines():
            if line.startswith("= "):
                flags, _, path = line.removeprefix("= ").partition(" ")
            elif path in paths and not _says(line, _ABSENT):
                words = [] if _says(line, _DENIED) else line.split()
                owner = shorten(" ".join([*words[:1], *words[2:4]])) if len(words) > 4 else ""
                found[path] = Rights("r" in flags, "w" in flags, owner)
        return found

    def run(self, *words: str) -> str | Unseen:
        """Return what a command writes to standard output, even if the command then fails."""
        return self._run(words, _MOST_TEXT)

    def _run(self, words: tuple[str, ...], most: int) -> str | Unseen:
        left = min(CALL_S, self.until - time.monotonic())
        if left <= 0:
            return Unseen(f"the checks stopped after {TOTAL_S:.0f} seconds")
        command = (*self.remote, shlex.join(words)) if self.remote else words
        try:
            answer = ask(command, left, most)
        except FileNotFoundError:
            return Unseen(f"there is no command {command[0]}", is_absent=True)
        except OSError as exc:
            return Unseen(f"{command[0]} cannot be started ({exc.strerror or exc})")
        return _text_or_reason(answer, words[0])


def _text_or_reason(answer: CommandAnswer, program: str) -> str | Unseen:
    if answer.code is None:
        return Unseen(f"no answer in {CALL_S:.0f} seconds")
    # Before Android 7, adb returned no exit code and mixed errors into the output.
    is_complaint = answer.text.startswith((f"{program}: ", "/system/bin/sh: "))
    complained = answer.text if is_complaint else answer.errors
    if not is_complaint and (answer.text.strip() or answer.code == 0):
        return answer.text
    line = (complained.strip().splitlines() or [f"exit code {answer.code}"])[-1]
    if line.startswith(_GONE):
        return Unseen(f"the device does not answer ({shorten(line, 80)})")
    if _says(line, _DENIED):
        return Unseen("permission denied")
    if _says(line, _ABSENT):
        return Unseen("not found", is_absent=True)
    return Unseen(shorten(line, 120))


def _says(line: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in line.lower() for phrase in phrases)
