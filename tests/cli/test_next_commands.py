"""Commands after `next:` run when pasted into a shell and keep the given options."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx.parser
import pytest
from click.testing import Result
from command_line import exit_code, run
from context_writer import example_context, old_context, pack_context
from fix_samples import wide_picture
from msgspec import structs

from qnnmem.report.shell import LONGEST, file_word, next_line, shell_line, shell_word

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[n,50] x, float[3] h_in) => (float[n,50] y, float[3] h_out)
{ a = Relu(x) b = Tanh(a) y = Mul(a, b) h_out = Tanh(h_in) }"""
PLAIN = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,50] x) => (float[2,50] y) { a = Relu(x) b = Tanh(a) y = Mul(a, b) }"""


def pasted(done: Result) -> list[str]:
    """Return the words of the recommended command, parsed as a shell does."""
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("next: "))
    program, *words = shlex.split(line[line.index("qnnmem ") :])
    assert program == "qnnmem"
    return words


def model(folder: Path, text: str = MODEL, name: str = "my model.onnx") -> Path:
    """Write an ONNX model."""
    path = folder / name
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


@pytest.mark.parametrize(
    "options",
    [
        ("--budget", "scratch=300", "--dim", "n=2"),
        ("--budget=scratch=300", "--shape", "x=2x50"),
        ("--dim=n=2", "--align", "4K", "--io", "outside"),
        ("--dim", "n=2", "--state", "h_in=h_out", "--budget", "persistent=1", "--inplace"),
        ("--dim", "n=2", "--seed", "3", "--time-limit", "2", "--budget", "tcm=1", "--bits", "8"),
        ("--dim", "n=2", "--reorder", "--bits", "16", "--budget", "constants=1K"),
    ],
)
def test_plan_recommends_what_asks_the_same(
    options: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command keeps every given option and runs; an exceeded budget stays exceeded."""
    monkeypatch.chdir(tmp_path)
    options = [word if word != "4K" else "4096" for word in options]
    path = model(tmp_path)
    before = run("plan", path, *options)
    words = pasted(before)
    after = run(*words)
    assert exit_code(after) != 2
    for part in " ".join(options).replace("=", " ").split():
        assert part in " ".join(words).replace("=", " ").split()
    if "scratch=300" in " ".join(options):
        assert (exit_code(before), exit_code(after)) == (1, 1)


def test_a_chain_of_recommendations_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasting each next command ends in a `fix` that meets the budget, within six steps."""
    monkeypatch.chdir(tmp_path)
    words = ["plan", str(model(tmp_path, PLAIN)), "--budget", "scratch=64"]
    seen: list[list[str]] = []
    while words not in seen:
        seen.append(words)
        done = run(*words)
        if words[0] == "fix":
            break
        assert exit_code(done) == 1
        words = pasted(done)
        assert "--budget" in words
    assert exit_code(done) == 0, done.stdout
    assert done.stdout.startswith("fits")
    assert 3 <= len(seen) <= 6


def test_how_a_result_is_shown_is_not_kept(tmp_path: Path) -> None:
    """Format, output file and -v are not repeated in the next command."""
    out = tmp_path / "out.txt"
    run("plan", model(tmp_path, PLAIN), "-o", out, "--force", "--format", "text", "-v")
    (line,) = (line for line in out.read_text().splitlines() if line.startswith("next: "))
    assert not {"-o", "--force", "--format", "--output"} & set(line.split())


@pytest.mark.parametrize("options", [(), ("--soc", "SM8550")])
@pytest.mark.parametrize("verb", ["footprint", "inspect", "qmem"])
def test_verbs_about_binaries_recommend_what_runs(
    verb: str, options: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command for a binary keeps the file and the SoC, and runs."""
    if verb == "inspect" and options:
        pytest.skip("inspect takes no SoC")
    monkeypatch.chdir(tmp_path)
    Path("-a b.bin").write_bytes(pack_context(example_context()))
    words = pasted(run(verb, *options, "./-a b.bin"))
    assert "./-a b.bin" in words
    if options and words[0] == verb:
        assert " ".join(options) in " ".join(words)
    if "--run" not in words:  # needs the real library
        assert exit_code(run(*words)) == 0


def test_a_binary_without_a_soc_gets_one(tmp_path: Path) -> None:
    """For a binary without a SoC, the next command has an example SoC and runs."""
    path = tmp_path / "model.bin"
    path.write_bytes(pack_context(structs.replace(old_context(), soc_model=None)))
    done = run("footprint", path)
    words = pasted(done)
    assert words[-2:] == ["--soc", "SM8650"]
    assert exit_code(run(*words)) in (0, 3)


EVIL = (
    "a b",
    "a'b",
    "$(reboot)",
    "`x`",
    "two\nlines",
    "\x1b[31m",
    "日本",
    "\udcff",
    "a\\b",
    "!",
    "",
)


@pytest.mark.parametrize("word", EVIL)
def test_words_come_back_from_a_shell_as_they_were(word: str) -> None:
    """A quoted word is printable, and bash reads it back byte for byte."""
    shown = shell_word(word)
    assert shown.isprintable()
    script = f"printf %s {shown}"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    done = subprocess.run([bash, "-c", script], capture_output=True, check=True)
    assert done.stdout == word.encode("utf-8", "surrogateescape")


def test_a_recommended_file_is_never_an_option() -> None:
    """A file name with a leading dash gets `./` in a command; `-` stays standard input."""
    assert [file_word(name) for name in ("-x.onnx", "-", "a-b")] == ["./-x.onnx", "-", "a-b"]


def test_what_is_added_replaces_what_was_given() -> None:
    """An added option replaces the given one; values that look like options stay attached."""
    given = ["qnnmem", "plan", "a.onnx", "--time-limit=5", "--dim=n=1", "--state=-a=b"]
    assert next_line("search longer", given, "--time-limit=60") == (
        "next: search longer: qnnmem plan a.onnx --dim n=1 --state=-a=b --time-limit 60"
    )


def test_what_nobody_pastes_is_not_recommended() -> None:
    """A command over the length limit is omitted, not truncated."""
    assert next_line("why", ["qnnmem", "plan", "x" * LONGEST]) == ""
    assert shell_line(["a", "b c"]) == "a 'b c'"


def test_the_whole_program_recommends_the_same(tmp_path: Path) -> None:
    """The command that the program recommends runs in /bin/sh with the same verdict."""
    path = model(tmp_path, PLAIN)
    command = [sys.executable, "-m", "qnnmem", "plan", str(path), "--budget", "scratch=64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = done.stdout[done.stdout.index("qnnmem plan") :].splitlines()[0]
    script = line.replace("qnnmem", f"{shlex.quote(sys.executable)} -m qnnmem", 1)
    again = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, again.returncode) == (1, 1)
    assert "does not fit" in again.stdout


def test_check_recommends_the_fix_that_meets_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `fix` command that `check` recommends writes a model that passes the same check."""
    monkeypatch.chdir(tmp_path)
    wide_picture(tmp_path / "wide.onnx")
    table = '[[model]]\npath = "{}"\n{}budget = {{ scratch = "{}" }}\n'
    config = tmp_path / "qnnmem.toml"
    sizes = "dims = { batch = 1 }\n"
    before = json.loads(run("plan", "wide.onnx", "--dim", "batch=1", "--json").stdout)
    limit = before["scratch_bytes"] * 7 // 10
    config.write_text(table.format("wide.onnx", sizes, limit), "utf-8")
    over = run("check")
    assert exit_code(over) == 1
    words = pasted(over)
    assert words[0] == "fix"
    assert f"scratch={limit}" in words
    fixed = run(*words)
    assert exit_code(fixed) == 0, fixed.stdout
    config.write_text(table.format("fixed/wide.onnx", "", limit), "utf-8")
    assert exit_code(run("check")) == 0
