"""Help: complete summaries, examples that run, and no imports for a list."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from command_line import every_verb, exit_code, run

from qnnmem.cli.examples import BY_THE_LIBRARY, ELSEWHERE, EXAMPLES
from qnnmem.cli.verbs import SECTIONS, qnnmem
from qnnmem.htp.library import has_library

ROOT = Path(__file__).resolve().parents[2]
SHELL = re.compile(r"[>$&|]")  # syntax that only a shell understands


VERBS = every_verb()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that holds only the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def page(*words: str, width: int = 80) -> str:
    """Return the help text for a terminal of this width."""
    return CliRunner().invoke(qnnmem, [*words, "--help"], terminal_width=width).stdout


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("words", ["", *VERBS])
def test_no_summary_is_cut_off(words: str, width: int) -> None:
    """Help cuts off no summary, and every line fits the terminal width."""
    text = page(*words.split(), width=width)
    assert re.findall(r"[a-z`](?:\.\.\.|…)$", text, re.MULTILINE) == []
    examples = EXAMPLES.get(words, ())
    assert [one for one in text.split("\n") if len(one) > width and one[2:] not in examples] == []


def test_every_verb_has_one_line_in_one_section() -> None:
    """The verb list has each verb once, with a summary of at most 64 characters."""
    listed = [name for section in SECTIONS.values() for name in section]
    assert sorted(listed) == sorted(qnnmem.commands)
    summaries = [text for section in SECTIONS.values() for text in section.values()]
    assert [text for text in summaries if len(text) > 64 or text[-1] not in ".?"] == []
    lines = page().split("\n")
    assert all(any(line.endswith(text) for line in lines) for text in summaries)


@pytest.mark.parametrize("words", VERBS)
def test_help_fits_a_screen_and_begins_with_two_examples(words: str) -> None:
    """Help has at most 40 lines, with two complete examples before the options."""
    one, two = EXAMPLES[words]
    text = page(*words.split())
    assert f"\nExamples:\n  {one}\n  {two}\n" in text.partition("\nOptions:\n")[0]
    assert len(text.splitlines()) <= 40
    assert one != two


def test_no_example_is_of_another_verb() -> None:
    """Every example is listed under the verb that it calls."""
    assert set(EXAMPLES) == set(VERBS)
    for words, pair in EXAMPLES.items():
        assert all(f"qnnmem {words}" in one for one in pair), words


def examples(*, by_the_library: bool) -> list[str]:
    """Return every example once, except those that another test runs."""
    every = dict.fromkeys(one for pair in EXAMPLES.values() for one in pair)
    ending = (one for one in every if one not in ELSEWHERE)
    return [one for one in ending if (one in BY_THE_LIBRARY) == by_the_library]


def works(example: str) -> None:
    """Assert that an example runs and ends with `yes`, `no` or `cannot tell`."""
    if SHELL.search(example):
        program = f'qnnmem() {{ {shlex.quote(sys.executable)} -m qnnmem "$@"; }}\n'
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        bash = shutil.which("bash")
        if bash is None:
            pytest.skip("there is no bash")
        script = [bash, "-c", program + example]
        done = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return
    result = run(*shlex.split(example)[1:])
    assert result.exception is None, result.exception
    assert exit_code(result) in (0, 1, 3)


@pytest.mark.parametrize("example", examples(by_the_library=False))
@pytest.mark.usefixtures("checkout")
def test_an_example_can_be_pasted(example: str) -> None:
    """Every example of the help runs on its own in a checkout."""
    works(example)


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the QNN library is not installed")
@pytest.mark.parametrize("example", examples(by_the_library=True))
@pytest.mark.usefixtures("checkout")
def test_an_example_for_the_library_can_be_pasted(example: str) -> None:
    """Every example that needs the HTP compiler runs, too."""
    works(example)


@pytest.mark.parametrize("words", VERBS)
def test_help_all_lists_every_option_and_the_exit_codes(words: str) -> None:
    """`--help-all` lists every option and the exit codes; `--help` names the shared options."""
    command: click.Command = qnnmem
    for name in words.split():
        assert isinstance(command, click.Group)
        command = command.commands[name]
    spelled = {max(one.opts, key=len) for one in command.params if one.param_type_name == "option"}
    every = CliRunner().invoke(qnnmem, [*words.split(), "--help-all"]).stdout
    assert spelled <= set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", every, re.MULTILINE))
    assert "Shared options: " in page(*words.split())
    assert isinstance(command, click.Group) or "Exit codes: 0 " in " ".join(every.split())


def test_the_list_of_verbs_imports_none_of_them() -> None:
    """`qnnmem --help` imports only the table of summaries, none of the verbs."""
    code = (
        "import sys; sys.argv = ['qnnmem', '--help']\n"
        "from qnnmem.cli.verbs import run; run()\n"
        "loaded = [m for m in sys.modules if m.startswith('qnnmem')]\n"
        "heavy = {'numpy', 'onnx', 'msgspec', 'rich', 'difflib', 'textwrap'} & set(sys.modules)\n"
        "print(sorted(loaded), sorted(heavy - {'textwrap'}), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    names = ["cli", *(f"cli.{one}" for one in ("examples", "help", "screen"))]
    names += ["cli.verbs", "text"]
    loaded = ["qnnmem", *(f"qnnmem.{name}" for name in names), "qnnmem.version"]
    assert done.stderr.strip() == f"{loaded} []"
