"""Which commands start workers of the HTP library: a variable, or the user's configuration."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from qnnmem.errors import UsageError
from qnnmem.text import printable, sentence

VARIABLE = "QNNMEM_HTP_WORKER"
KEY = "htp_worker"
LOCAL = ("local",)  # stands for the library of this machine
SEPARATOR = ";"
_MAX_FILE = 1 << 20
_MAX_COMMANDS = 256
_SHOWN = 120  # characters of a command in a sentence

Command = tuple[str, ...]


def worker_commands() -> tuple[Command, ...]:
    """Commands of workers in their order; none where the library of this machine is meant.

    The variable goes before the file, and an empty one means this machine.
    """
    text = os.environ.get(VARIABLE)
    if text is not None:
        found = split_commands(text, VARIABLE)
    else:
        path = config_path()
        found = () if path is None else _from_file(path)
    return () if found == (LOCAL,) else found


def config_path() -> Path | None:
    """The user's configuration, not a project's: that would start what strangers wrote into it."""
    base = os.environ.get("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117
        return Path(base, "qnnmem", "config.toml")
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises for unknown users
    return Path(home, ".config", "qnnmem", "config.toml") if os.path.isabs(home) else None  # noqa: PTH117


def split_commands(text: str, where: str) -> tuple[Command, ...]:
    """Commands as a shell would split them, with a `;` that stands alone between two."""
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise UsageError(f"{where} is not a command: {sentence(exc).lower()}") from exc
    commands: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            commands.append([])
        else:
            commands[-1].append(word)
    found = tuple(tuple(command) for command in commands if command)
    if len(found) > _MAX_COMMANDS:
        raise UsageError(f"{where} lists more than {_MAX_COMMANDS} commands")
    return found


def _from_file(path: Path) -> tuple[Command, ...]:
    import tomllib

    from qnnmem.bounded_file import is_there, read_bytes

    if not is_there(path):
        return ()
    try:
        found = tomllib.loads(read_bytes(path, _MAX_FILE).decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"is not TOML: {sentence(exc)}", where=path) from exc
    value = found.get(KEY, [])
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UsageError(f"{KEY} is a command, or a list of commands", where=path)
    return tuple(one for line in lines for one in split_commands(line, f"{path}: {KEY}"))


def show_command(command: Command) -> str:
    """A command in a sentence."""
    line = printable(shlex.join(command))
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
