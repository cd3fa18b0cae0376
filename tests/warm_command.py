"""Runs the pages' commands by forking a process that has done their imports.

A command is its own process with the folder, environment and output that a shell would give it, and
so are its children. A command with shell syntax, or of another program, starts in a shell.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import consoles
import warm_start
from consoles import Command, Run, Said

import qnnmem
from qnnmem import child, cli
from qnnmem.quiet_onnxruntime import SILENCE

HERE = Path(__file__).parent
_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}#~!]")
_LIBRARIES = ("numpy", "rich.console", "rich.table", "tflite", "ssl", "urllib.request")
_OTHERS = ("__main__", "pytest_plugin", "workbench")


@contextmanager
def warm_commands() -> Iterator[Run]:
    """Yield a function that runs a command of a page."""
    settings = consoles.environment(Path("/"), Path("/"))
    settings |= {**SILENCE, **child._ONE_THREAD}  # as in a child
    settings["PYTHONPATH"] = os.pathsep.join(
        (settings["PYTHONPATH"], str(HERE), str(HERE.parent / "tools"))
    )
    server = warm_start.WarmServer(settings, ["warm_command", *_LIBRARIES, *_modules()])
    try:
        yield partial(_run, server)
    finally:
        server.end()


def _modules() -> Iterator[str]:
    """Yield all modules of the package, except programs and modules with optional imports."""
    source = Path(qnnmem.__file__).parent
    for path in sorted(source.rglob("*.py")):
        words = path.relative_to(source.parent).with_suffix("").parts
        if words[-1] not in _OTHERS and words[1] not in _OTHERS and "compiled" not in words:
            yield ".".join(words).removesuffix(".__init__")


def _run(server: warm_start.WarmServer, command: Command, here: Path, programs: Path) -> Said:
    text = command.text.replace("\\\n", " ")
    plain = text.removesuffix(" || true")
    words = [] if _SHELL.search(plain) else shlex.split(plain)
    if words[:1] != ["qnnmem"] and not _is_example(words):
        return consoles.run_in_shell(command, here, programs)
    with tempfile.TemporaryFile() as said, Path(os.devnull).open("rb") as nothing:
        output, line = said.fileno(), server.line.fileno()
        started = server.start(
            ["", "", "", "warm_command", *words],
            {0: nothing.fileno(), 1: output, 2: output, warm_start.LINE: line},
            folder=str(here),
            environment=consoles.environment(here, programs),
        )
        try:
            code = started.wait(consoles.SECONDS)
        except subprocess.TimeoutExpired:
            child.kill_group(started)
            raise
        said.seek(0)
        return consoles.lines(said.read()), code if plain == text else 0


def _is_example(words: list[str]) -> bool:
    return words[:1] == ["python"] and words[1].endswith(".py")


def main() -> int:
    """Run the command line or a Python program; return the exit code."""
    for place in (HERE, HERE.parent / "tools"):  # folders that no command has on its path
        sys.path.remove(str(place))
    warm_start.start_here_too()
    words = sys.argv[1:]
    if _is_example(words):
        sys.argv = words[1:]
        sys.path.insert(0, str(Path(words[1]).resolve().parent))
        runpy.run_path(words[1], run_name="__main__")
    else:
        sys.argv = words
        cli.main()
    return 0
