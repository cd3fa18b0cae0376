"""Run the console blocks of README and docs, and write the real output of their commands.

    python tools/consoles.py                 runs every page, rewrites changed outputs
    python tools/consoles.py --check         only reports differences, exits with 1
    python tools/consoles.py README.md ...   only these pages

Each page is independent: its commands run in sequence in one empty folder with `examples/`, as in a
fresh clone. `qnnmem` and `python` are those that run this script. A line `…` stands for omitted
lines, and `…` inside a line for omitted text. A command without output in the page may print
anything, but must succeed. Times, addresses, process ids, versions of qnnmem, learned scales and
column widths are ignored.

A comment before a block states its requirements:

    <!-- needs: htp -->      the HTP compiler, which needs Linux on x86-64
    <!-- needs: index -->    a package index; such a block is never run

A block that reads `.cache/models/` needs these models, see `tools/models.py`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>\w+) -->\n+)?^```console\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PROMPT = "$ "
LEFT_OUT = "…"
SECONDS = 900
CACHED = re.compile(r"\.cache/models/([\w.-]+)")
# Text that can differ between runs or machines although nothing is wrong.
VARYING = (
    (re.compile(r"\b\d+\.\d+ s\b|^\d+\.\d+ms\b|\b[\d,]+ ns\b"), "TIME"),
    (re.compile(r"(?<=\s)\d+\.\d$"), "TIME"),  # the last column of a table
    (re.compile(r"\bpid:\d+"), "pid:N"),
    (re.compile(r"\b0x[0-9a-f]{8,}\b"), "ADDRESS"),
    (re.compile(r"\b(v?qnnmem[- ])\d+\.\d+\.\d+\w*"), r"\1VERSION"),
    (re.compile(r"[\d.,]+ [KMG]iB of host memory"), "SIZE of host memory"),
    # Computed by running a model, whose kernels round differently on different kinds of CPU.
    (re.compile(r"\bscale [\d.e+-]+ zero point -?\d+"), "scale S zero point Z"),
    (re.compile(r"(?<=off by up to )[\d.]+%|(?<=on these samples: )[\d.]+%"), "ERROR"),
    (re.compile(r" {2,}"), " "),
)


@dataclass(frozen=True, slots=True)
class Command:
    """Command in a page, and the output shown below it."""

    written: tuple[str, ...]  # lines without the prompt
    shown: tuple[str, ...]

    @property
    def text(self) -> str:
        """Text for the shell."""
        return "\n".join(self.written)


@dataclass(frozen=True, slots=True)
class Block:
    """Console block of a page."""

    line: int
    start: int  # offset of its text in the page
    end: int
    needs: str
    commands: tuple[Command, ...]

    @property
    def missing(self) -> str:
        """Reason why the block cannot run here; empty if it can."""
        if self.needs == "index":
            return "needs a package index"
        if self.needs == "htp" and not _htp_is_here():
            return "needs the compiler of HTP"
        named = {name for c in self.commands for name in CACHED.findall(c.text)}
        gone = sorted(name for name in named if not (ROOT / ".cache/models" / name).is_file())
        return f"needs {', '.join(gone)}, which tools/models.py fetches" if gone else ""


Said = tuple[tuple[str, ...], int]
Run = Callable[[Command, Path, Path], Said]


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcome of a block: the output of its commands, or the reason why it did not run."""

    block: Block
    missing: str = ""
    said: tuple[tuple[str, ...], ...] = ()
    codes: tuple[int, ...] = ()

    @property
    def faults(self) -> list[str]:
        """Differences between page and output, a paragraph for each command."""
        return [
            fault
            for command, said, code in zip(self.block.commands, self.said, self.codes, strict=False)
            if (fault := _fault(command, said, code))
        ]

    @property
    def text(self) -> str:
        """Corrected text of the block."""
        if self.missing:
            return _written(self.block.commands)
        pairs = zip(self.block.commands, self.said, self.codes, strict=True)
        return _written(
            Command(c.written, _shown(c, said) if _fault(c, said, code) else c.shown)
            for c, said, code in pairs
        )


def pages() -> list[Path]:
    """Return all pages for readers: README and docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the console blocks of a page."""
    text = page.read_text("utf-8")
    return [
        Block(
            text.count("\n", 0, found.start("text")),
            found.start("text"),
            found.end("text"),
            found["needs"] or "",
            tuple(_commands(found["text"])),
        )
        for found in BLOCK.finditer(text)
    ]


def run_page(page: Path, compiled: Path, run: Run | None = None) -> list[Ran]:
    """Run the blocks of a page in order, in a new folder, by a shell or by `run`.

    `compiled` holds the compiled objects of earlier pages: a compile changes no output, and takes a
    second.
    """
    found = blocks(page)
    if not found:
        return []
    with tempfile.TemporaryDirectory(prefix="consoles-") as scratch:
        here, programs = Path(scratch, "clone"), Path(scratch, "bin")
        kept = Path(scratch, "cache", "qnnmem", "compiled")
        shutil.copytree(compiled, kept)
        _furnish(here)
        _programs(programs)
        ran = [_run_block(block, here, programs, run or run_in_shell) for block in found]
        shutil.copytree(kept, compiled, dirs_exist_ok=True)
        return ran


def corrected(page: Path, ran: Sequence[Ran]) -> str:
    """Return the page with the real outputs."""
    text = page.read_text("utf-8")
    for one in reversed(ran):
        text = text[: one.block.start] + one.text + text[one.block.end :]
    return text


def main() -> int:
    """Run the pages and write or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help=("write nothing, list the differences")
    )
    parser.add_argument("pages", nargs="*", type=Path, help="[default: README and docs]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="consoles-") as compiled:
        chosen = [path.resolve() for path in given.pages] or pages()
        differing = sum(_is_different(page, Path(compiled), given.check) for page in chosen)
    return 1 if differing and given.check else 0


def _is_different(page: Path, compiled: Path, check: bool) -> bool:
    ran = run_page(page, compiled)
    name = page.relative_to(ROOT)
    differs = False
    for one in ran:
        where = f"{name}:{one.block.line}"
        if one.missing:
            print(f"not run {where}: {one.missing}")
        for fault in one.faults:
            differs = True
            print(f"differs {where}: {fault}")
    text = corrected(page, ran)
    if not check and text != page.read_text("utf-8"):
        page.write_text(text, "utf-8")
        print(f"Wrote {name}")
    return differs


# --- Pages ------------------------------------------------------------------------------------


def _commands(text: str) -> Iterator[Command]:
    written: list[str] = []
    shown: list[str] = []
    for line in text.splitlines():
        if written and not shown and written[-1].endswith("\\"):
            written.append(line)
        elif line.startswith(PROMPT):
            if written:
                yield Command(tuple(written), tuple(shown))
            written, shown = [line.removeprefix(PROMPT)], []
        else:
            shown.append(line)
    if written:
        yield Command(tuple(written), tuple(shown))


def _written(commands: Sequence[Command] | Iterator[Command]) -> str:
    lines: list[str] = []
    for command in commands:
        lines += [f"{PROMPT}{command.written[0]}", *command.written[1:], *command.shown]
    return "".join(f"{line}\n" for line in lines)


# --- Running ----------------------------------------------------------------------------------


def _furnish(here: Path) -> None:
    """Create the content of a fresh clone that pages use."""
    here.mkdir()
    shutil.copytree(ROOT / "examples", here / "examples")
    (here / "tools").symlink_to(ROOT / "tools")
    if (ROOT / ".cache" / "models").is_dir():
        (here / ".cache").mkdir()
        (here / ".cache" / "models").symlink_to(ROOT / ".cache" / "models")


def _programs(folder: Path) -> None:
    """Write scripts `qnnmem` and `python` that behave as in an active environment."""
    folder.mkdir()
    for name, words in (("qnnmem", "-m qnnmem"), ("python", "")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)


def _run_block(block: Block, here: Path, programs: Path, run: Run) -> Ran:
    if missing := block.missing:
        return Ran(block, missing)
    done = [run(command, here, programs) for command in block.commands]
    return Ran(block, "", tuple(said for said, _ in done), tuple(code for _, code in done))


def run_in_shell(command: Command, here: Path, programs: Path) -> Said:
    """Run a command in a folder, with these programs first on PATH; return output and exit code."""
    done = subprocess.run(  # noqa: S603 - the commands of this project's pages
        ["/bin/sh", "-c", command.text],
        cwd=here,
        env=environment(here, programs),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
        check=False,
    )
    return lines(done.stdout), done.returncode


def environment(here: Path, programs: Path) -> dict[str, str]:
    """Return the environment variables for the commands of a page."""
    source = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    settings = {"PATH": path, "PYTHONPATH": source, "NO_COLOR": "1", "COLUMNS": "80"}
    # An earlier run's cache would change the output; a reader's first run has no cache.
    settings["XDG_CACHE_HOME"] = str(here.parent / "cache")
    return {**os.environ, **settings, "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}


def lines(said: bytes) -> tuple[str, ...]:
    """Return the lines of a command's output."""
    return tuple(said.decode("utf-8", "replace").rstrip("\n").splitlines())


def _htp_is_here() -> bool:
    from qnnmem.htp.library import has_library

    return has_library()


# --- Comparing --------------------------------------------------------------------------------


def _fault(command: Command, said: Sequence[str], code: int) -> str:
    """Return how a command's output differs from the page; empty if it does not."""
    if code in (70, 127) or code < 0 or (code and not command.shown):
        return f"`{command.text}` ended with {code}: {' '.join(said)[-300:]}"
    if not command.shown or _matches(command.shown, said):
        return ""
    lines = unified_diff(list(command.shown), list(said), "page", "run", lineterm="", n=1)
    return f"`{command.text}`\n" + "\n".join(lines)


def _matches(shown: Sequence[str], said: Sequence[str]) -> bool:
    """Return True if the output matches the page, with any lines in place of omitted lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == LEFT_OUT else f"{_line_pattern(line)}\\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{plain(line)}\n" for line in said)) is not None


def _line_pattern(line: str) -> str:
    """Return a regex for a line, with any text in place of omitted text."""
    whole = plain(line)
    cut = ".*".join(map(re.escape, whole.split(LEFT_OUT)))
    return f"(?:{re.escape(whole)}|{cut})" if LEFT_OUT in whole else cut


def plain(line: str) -> str:
    """Return a line without its varying parts."""
    for pattern, instead in VARYING:
        line = pattern.sub(instead, line)
    return line.rstrip()


def _shown(command: Command, said: Sequence[str]) -> tuple[str, ...]:
    """Return the output to show in a page, with as many lines from either end as before."""
    shown = command.shown
    if LEFT_OUT not in shown:
        return (*shown, LEFT_OUT) if _matches((*shown, LEFT_OUT), said) else tuple(said)
    head = shown.index(LEFT_OUT)
    tail = len(shown) - head - 1 if shown.count(LEFT_OUT) == 1 else 0
    if len(said) <= head + tail:
        return tuple(said)
    return (*said[:head], LEFT_OUT, *said[len(said) - tail :])


if __name__ == "__main__":
    sys.exit(main())
