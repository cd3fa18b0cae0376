"""Finds the QNN library that is used: of this machine, or of a worker that a command starts."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.errors import NoCompiler, QnnMemError, Words, WorkerError
from qnnmem.htp.installed import INSTALL as INSTALL
from qnnmem.htp.installed import Library as Library
from qnnmem.htp.installed import check_platform as check_platform
from qnnmem.htp.installed import check_version as check_version
from qnnmem.htp.installed import compiler_exists as compiler_exists
from qnnmem.htp.installed import installed_library as installed_library
from qnnmem.htp.remote.command import LOCAL, Command, worker_commands


def find_library() -> Library:
    """The library of the first worker that answers, or of this machine where none is named.

    NoCompiler says in one sentence what is missing, WorkerError why a worker does not answer.
    """
    commands = worker_commands()
    if not commands:
        return installed_library()
    failures: list[QnnMemError] = []
    for command in commands:
        try:
            return library_at(command)
        except (NoCompiler, WorkerError) as exc:
            failures.append(exc)
    raise failures[0]


def find_libraries(refused: list[QnnMemError]) -> Iterator[Library]:
    """The library of every worker that answers; `refused` gets why the others do not."""
    for command in worker_commands() or (LOCAL,):
        try:
            yield library_at(command)
        except (NoCompiler, WorkerError) as exc:
            refused.append(exc)


def library_at(command: Command) -> Library:
    """The library of one worker; the connection is kept for whoever asks next."""
    if command == LOCAL:
        return installed_library()
    from qnnmem.htp.remote.connection import connect, park

    connection = connect(command)
    park(connection)
    return connection.library


def library_or(instead: Words) -> Library:
    """The library; where there is none, the error also says what works without."""
    try:
        return find_library()
    except NoCompiler as missing:
        raise missing.with_cure(instead) from None


def library_there() -> bool:
    """Whether a library is here, or a worker is named, which is not asked for that."""
    if worker_commands():
        return True
    try:
        installed_library()
    except NoCompiler:
        return False
    return True
