"""The console blocks in README and docs show the output of a fresh clone."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from unittest.mock import Mock

import consoles
import pytest
from consoles import Block, Command, Ran, Run

ROOT = Path(__file__).resolve().parent.parent
PAGES = {page.relative_to(ROOT).as_posix(): page for page in consoles.pages()}
BLOCKS = [
    pytest.param(name, number, id=f"{name}:{block.line}")
    for name, page in PAGES.items()
    for number, block in enumerate(consoles.blocks(page))
]

RunPage = Callable[[Path], list[Ran]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Yield a function that runs a command, by fork where the result is the same."""
    if sys.platform != "linux":
        yield consoles.run_in_shell
        return
    from warm_command import warm_commands

    with warm_commands() as warm:
        yield warm


@pytest.fixture(scope="module")
def run_once(run: Run, tmp_path_factory: pytest.TempPathFactory) -> RunPage:
    """Return a function that runs a page once."""
    compiled = tmp_path_factory.mktemp("compiled")
    return cache(partial(consoles.run_page, compiled=compiled, run=run))


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="the pages are written for a shell")
@pytest.mark.parametrize(("name", "number"), BLOCKS)
def test_a_console_block_shows_what_its_commands_say(
    name: str, number: int, run_once: RunPage
) -> None:
    """The commands of a page, run in order in a fresh clone, print what the page shows."""
    ran = run_once(PAGES[name])[number]
    if ran.missing:
        pytest.skip(ran.missing)
    assert ran.faults == [], "run python tools/consoles.py"


def test_few_blocks_are_left_out() -> None:
    """Only installation and remote workers need a package index; every other block runs here."""
    needs = {name: {b.needs for b in consoles.blocks(page)} for name, page in PAGES.items()}
    assert {name for name, found in needs.items() if "index" in found} == {
        *("README.md", "docs/how-to/install.md", "docs/how-to/red-pull-request.md"),
        *("docs/how-to/htp-anywhere.md", "docs/reference/commands/htp-worker.md"),
        "docs/how-to/workbench.md",
    }
    assert {need for found in needs.values() for need in found} == {"", "htp", "index"}
    assert len(BLOCKS) >= 35


def test_no_command_of_ours_hides_in_a_block_of_plain_text() -> None:
    """A qnnmem or python command is in a console block, where it is tested."""
    elsewhere = re.compile(
        r"> ~/|<TAB>|--cluster|s3://|adb |--follow|runner\.log|qnnmem serve"
        # written by the reader
        r"|-- python (app|leaky)\.py|\./app |\./client|\./start-client|device_outputs"
    )
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for name, page in PAGES.items():
        for kind, text in fence.findall(page.read_text("utf-8")):
            lines = text.splitlines() if kind in ("", "text", "sh", "bash", "shell") else []
            ours = [line for line in lines if re.match(r"(\$ )?(qnnmem|python) ", line)]
            assert [line for line in ours if not elsewhere.search(line)] == [], name


# The tool itself


def ran(shown: str, said: str, code: int = 0) -> Ran:
    """Return the run of a one-command block with this output."""
    command = Command(("a",), tuple(shown.splitlines()))
    return Ran(Block(1, 0, 0, "", (command,)), "", (tuple(said.splitlines()),), (code,))


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("", "anything"),
        ("one\ntwo", "one\ntwo"),
        ("…", ""),
        ("one\n…", "one\ntwo\nthree"),
        ("one\n…\nfour", "one\ntwo\nthree\nfour"),
        ("…\ntwo\n…\nfour\n…", "one\ntwo\nthree\nfour\nfive"),
        ("took 0.1 s at 0x55974d80e144", "took 2.51 s at 0xffff7aa184a0"),
        ("cut …", "cut by the page"),
        ("… and 3 more", "… and 3 more"),
        ("a   1\nb  22", "a      1\nb     22"),
        ("made by qnnmem 0.1.0", "made by qnnmem 1.12.0"),
    ],
)
def test_what_may_vary_is_no_difference(shown: str, said: str) -> None:
    """Times, addresses, versions, widths and omitted lines may differ from the page."""
    assert ran(shown, said).faults == []


@pytest.mark.parametrize(
    ("shown", "said", "code"),
    [
        ("one", "one\ntwo", 0),
        ("one\n…\nfour", "one\nfour\nfive", 0),
        ("1,024 bytes", "1,025 bytes", 0),
        ("…\ntwo\n…", "one\nthree", 0),
        ("", "a failure", 2),
        ("…", "internal error", 70),
        ("…", "not found", 127),
    ],
)
def test_everything_else_is_one(shown: str, said: str, code: int) -> None:
    """Another number, another line or an unexpected exit code is a difference."""
    assert len(ran(shown, said, code).faults) == 1


@pytest.mark.parametrize(
    ("shown", "said", "instead"),
    [
        ("one", "one\ntwo", "one\n…"),
        ("one\ntwo", "three\nfour", "three\nfour"),
        ("old\n…\nlast", "new\nb\nc\nd", "new\n…\nd"),
        ("old\n…\nlast", "new", "new"),
        ("took 0.1 s\nold", "took 9.9 s\nnew", "took 9.9 s\nnew"),
    ],
)
def test_what_differs_is_written_anew(shown: str, said: str, instead: str) -> None:
    """A page is rewritten with as many lines from each end as before."""
    assert ran(shown, said).text == f"$ a\n{instead}\n"


def test_a_page_knows_nothing_of_earlier_runs(tmp_path: Path) -> None:
    """A page's commands use a cache of their own."""
    here = tmp_path / "clone"
    here.mkdir()
    said, code = consoles.run_in_shell(Command(('echo "$XDG_CACHE_HOME"',), ()), here, tmp_path)
    assert (said, code) == ((str(tmp_path / "cache"),), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize(
    ("text", "is_forked", "code"),
    [
        ("qnnmem plan examples/small.onnx \\\n    --dim N=1", True, 0),  # starts a child
        ("qnnmem plan 'no file.csv'", True, 2),
        ("qnnmem plan examples/keyword_spotting.csv --capacity 15K || exit 5", False, 5),
        ("qnnmem plan examples/keyword_spotting.csv --capacity 15K || true", True, 0),
        ("python examples/plan_buffers.py", True, 0),
        ("python -c 'print(1)'", False, 0),
    ],
)
def test_a_forked_command_says_what_a_shell_would_show(
    text: str, is_forked: bool, code: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command without shell syntax is forked, with the same output and exit code."""
    here, programs = tmp_path / "clone", tmp_path / "bin"
    consoles._furnish(here)
    consoles._programs(programs)
    command = Command(tuple(text.splitlines()), ())
    shown = consoles.run_in_shell(command, here, programs)
    in_shell = Mock(return_value=shown)
    monkeypatch.setattr(consoles, "run_in_shell", in_shell)
    assert run(command, here, programs) == shown
    assert in_shell.called is not is_forked
    assert shown[0]
    assert shown[1] == code


def test_a_page_is_run_and_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` names differing blocks; otherwise the page is rewritten.

    The commands of a page share one folder.
    """
    page = tmp_path / "page.md"
    (tmp_path / "examples").mkdir()
    text = "```console\n$ echo one \\\n    two > file\n$ cat file\nold\n```\n"
    page.write_text(f"before\n{text}\n<!-- needs: index -->\n\n```console\n$ false\n```\nafter\n")
    monkeypatch.setattr(consoles, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["consoles.py", "--check", str(page)])
    assert consoles.main() == 1
    assert "differs page.md:2: `cat file`" in (said := capsys.readouterr().out)
    assert "not run page.md:11: needs a package index" in said
    monkeypatch.setattr(sys, "argv", ["consoles.py", str(page)])
    assert consoles.main() == 0
    assert "$ cat file\none two\n```\n" in page.read_text("utf-8")
    shutil.rmtree(tmp_path / "examples")
