"""The QNN library of this machine, and the commands that start workers on other machines."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qnnmem.errors import NoCompiler, UsageError
from qnnmem.installation import PACKAGE, command_for, package_folder
from qnnmem.text import printable, sentence

VARIABLE = "QNNMEM_HTP_WORKER"
KEY = "htp_worker"
LOCAL = ("local",)  # means the library of this machine
SEPARATOR = ";"
_MAX_FILE = 1 << 20
_MAX_COMMANDS = 256
_SHOWN = 120  # characters of a command shown in a sentence

Command = tuple[str, ...]


def worker_commands() -> tuple[Command, ...]:
    """Return the commands that start workers; empty if the library of this machine is used.

    The environment variable overrides the config file; an empty variable means this machine.
    """
    text, path = os.environ.get(VARIABLE), config_path()
    if text is not None:
        commands = split_commands(text, VARIABLE)
    else:
        commands = () if path is None else _from_file(path)
    return () if commands == (LOCAL,) else commands


def config_path() -> Path | None:
    """Return the user's config file; a project's file is not read: it could start any command."""
    base = os.environ.get("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117
        return Path(base, "qnnmem", "config.toml")
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises for unknown users
    return Path(home, ".config", "qnnmem", "config.toml") if os.path.isabs(home) else None  # noqa: PTH117


def split_commands(text: str, where: str) -> tuple[Command, ...]:
    """Return the commands in a string, split as by a shell; a separate `;` ends a command."""
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise UsageError(f"{where} is not a valid command: {sentence(exc).lower()}") from exc
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
        settings = tomllib.loads(read_bytes(path, _MAX_FILE).decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"is not TOML: {sentence(exc)}", where=path) from exc
    value = settings.get(KEY, [])
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UsageError(f"{KEY} must be a command or a list of commands", where=path)
    return tuple(one for line in lines for one in split_commands(line, f"{path}: {KEY}"))


def show_command(command: Command) -> str:
    """Return a command as one printable line of limited length."""
    line = printable(shlex.join(command))
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."


# --- The package with the library -----------------------------------------------------------------


INSTALL = command_for("htp")
_LIBRARIES = ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSystem.so")


@dataclass(frozen=True, slots=True)
class Library:
    """The QNN libraries of an installed package, here or on a worker."""

    package_version: str  # of onnxruntime-qnn
    onnxruntime_version: str
    folder: Path
    command: tuple[str, ...] = ()  # starts the worker that has the library; empty for this machine

    @property
    def name(self) -> str:
        """Package and version, used as the source of measured numbers."""
        return f"{PACKAGE} {self.package_version}"


@cache
def installed_library() -> Library:
    """Return the library of this machine; raise NoCompiler if a part is missing."""
    from importlib.metadata import PackageNotFoundError, version

    check_platform(sys.platform, platform.machine())
    try:
        found, runtime = version(PACKAGE), version("onnxruntime")
    except PackageNotFoundError as exc:
        cure = (
            f"{INSTALL} installs {PACKAGE}, which contains the library; or set {VARIABLE} "
            "to a command that starts a worker on a machine that has the library"
        )
        raise NoCompiler("the real HTP library is not installed", cure=cure) from exc
    check_version(found)
    return Library(found, runtime, _folder(found))


def compiler_exists(system: str = sys.platform, machine: str = "") -> bool:
    """Return True if an HTP compiler is published for a platform, by default this one."""
    return system == "linux" and (machine or platform.machine()) in ("x86_64", "AMD64")


def check_platform(system: str, machine: str) -> None:
    """Raise NoCompiler for a platform without a published HTP compiler."""
    if not compiler_exists(system, machine):
        raise NoCompiler(
            f"the HTP compiler exists for Linux on x86-64 only; this machine is {system} "
            f"on {machine}",
            cure=f"set {VARIABLE} to a command that starts a worker on Linux x86-64, with "
            "ssh, docker or qemu-user",
        )


def check_version(found: str) -> None:
    """Raise NoCompiler for library versions with an unknown interface."""
    parts = found.split(".")
    number = tuple(int(part) if part.isdigit() else 0 for part in parts[:2])
    if not (2, 7) <= number < (3, 0):
        problem = f"{PACKAGE} {found} is not supported; it must be 2.7 or a later 2.x"
        raise NoCompiler(problem, cure=f"{INSTALL} installs a supported version")


def _folder(found: str) -> Path:
    place = package_folder(_LIBRARIES)
    if place is not None:
        return place
    cure = f"{INSTALL} on Linux x86-64 installs a version with the compiler"
    raise NoCompiler(f"{PACKAGE} {found} contains no HTP compiler for this machine", cure=cure)
