"""Shell completion: the candidates for each word, through click's protocol and in real shells."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from command_line import run

from qnnmem.cli import completion  # noqa: F401 - registers with click
from qnnmem.cli.verbs import qnnmem
from qnnmem.targets.socs import socs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with files of every kind, with the program on the path."""
    for name in ("a.onnx", "a.txt", "b.bin", "b.CSV", ".hidden.onnx", "c.json", "d.log"):
        (tmp_path / name).touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.onnx").touch()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "sp ace.onnx").touch()
    (tmp_path / "odd" / "x.onnx").touch()
    program = tmp_path / "path" / "qnnmem"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m qnnmem "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(*words: str, last: str = "") -> list[str]:
    """Return the completions that the program gives a shell, as `kind,value`."""
    kind = get_completion_class("bash")
    assert kind is not None
    shell = kind(qnnmem, {}, "qnnmem", "_QNNMEM_COMPLETE")
    return [shell.format_completion(one) for one in shell.get_completions([*words], last)]


def plain(*values: str) -> list[str]:
    """Return the values as plain completions."""
    return [f"plain,{value}" for value in values]


@pytest.mark.usefixtures("folder")
def test_words_are_completed() -> None:
    """Completion offers verbs, options, choices, SoCs, entries, rules and shells."""
    assert sorted(ask(last="pl")) == plain("place", "plan")
    assert ask("kb", last="s") == plain("show")
    assert ask("kb", last="f") == plain("find")
    assert ask("fit", "b.bin", last="--all") == plain("--all-socs")
    assert ask("fit", "b.bin", "--precision", last="") == plain("fp16", "int8", "w8a16")
    assert ask("fit", "b.bin", "--soc", last="SM86") == plain("SM8635", "SM8650")
    assert ask("fit", "b.bin", "--soc", "=", last="sm865") == plain("SM8650")
    assert ask("fit", "b.bin", last="--soc=SM865") == plain("--soc=SM8650")
    assert ask("kb", "show", last="graph-over") == plain("graph-over-limit")
    assert ask("lpai", "rules", last="T") == plain(*(f"T{number}" for number in range(1, 7)))
    assert ask("completion") == plain("bash", "zsh", "fish")
    assert ask("plan", "a.onnx", last="--no-such") == []


@pytest.mark.usefixtures("folder")
def test_files_are_completed_by_what_a_verb_takes() -> None:
    """Completion offers folders and files that the verb reads, and hidden files after a dot."""
    assert ask("plan") == plain("a.onnx", "b.CSV", "models/", "odd/", "path/")
    assert ask("footprint") == plain("a.onnx", "b.bin", "models/", "odd/", "path/")
    assert ask("lint", last="c") == plain("c.json")
    assert ask("plan", last=".h") == plain(".hidden.onnx")
    assert ask("plan", last="models/") == plain("models/m.onnx")
    assert ask("footprint", "b.bin", last="b") == []


@pytest.mark.usefixtures("folder")
def test_what_a_shell_does_better_is_left_to_it() -> None:
    """For a lone folder, a quoted name, an output file or no match, the shell completes files."""
    assert ask("plan", last="mod") == ["file,mod"]
    assert ask("plan", last="odd/") == ["file,odd/"]
    assert ask("plan", "a.onnx", "-o", last="b") == ["file,b"]
    assert ask("plan", last="nothing") == ["file,nothing"]
    assert ask("plan", last="nothing/here") == ["file,nothing/here"]


def test_every_soc_can_be_completed() -> None:
    """Completion of `qnnmem socs` lists every SoC with HTP."""
    assert ask("socs") == plain(*(soc.name for soc in socs() if soc.has_htp))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(shell: str) -> None:
    """The completion script names the environment variable that activates completion."""
    script = run("completion", shell).stdout
    assert f"_QNNMEM_COMPLETE={shell}_complete" in script
    assert script.endswith("\n")


def in_shell(name: str, script: str) -> list[str]:
    """Return the words that a script prints in a real shell; skip if the shell is missing."""
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"there is no {name}")
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=False)
    return done.stdout.split()


@pytest.mark.usefixtures("folder")
def test_bash_completes() -> None:
    """The completion function for bash fills COMPREPLY with verbs and SoC names."""
    start = 'eval "$(qnnmem completion bash)"; '
    call = '; _qnnmem_completion qnnmem; printf "%s\\n" "${COMPREPLY[@]}"'
    assert in_shell("bash", f"{start}COMP_WORDS=(qnnmem expl); COMP_CWORD=1{call}") == ["explain"]
    words = "COMP_WORDS=(qnnmem fit b.bin --soc SM865); COMP_CWORD=4"
    assert in_shell("bash", f"{start}{words}{call}") == ["SM8650"]
    assert in_shell("bash", f"{start}complete -p qnnmem")[-2:] == ["_qnnmem_completion", "qnnmem"]


@pytest.mark.usefixtures("folder")
def test_fish_completes() -> None:
    """`complete -C` of fish returns verbs and SoC names."""
    start = "qnnmem completion fish | source; complete -C "
    assert in_shell("fish", f"{start}'qnnmem expl'")[0] == "explain"
    assert in_shell("fish", f"{start}'qnnmem fit b.bin --soc SM865'") == ["SM8650"]


@pytest.mark.usefixtures("folder")
def test_zsh_takes_the_script() -> None:
    """The zsh script registers its completion function for `qnnmem`."""
    start = 'autoload -U compinit; compinit -D -u; eval "$(qnnmem completion zsh)"; '
    assert in_shell("zsh", f"{start}print $_comps[qnnmem]") == ["_qnnmem_completion"]
