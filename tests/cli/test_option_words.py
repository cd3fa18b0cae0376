"""Option values as people type them: accepted if unambiguous, otherwise explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import exit_code, run, sentence

from qnnmem.errors import UsageError
from qnnmem.options import parsers

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples" / "tiny.eaix"


@pytest.mark.parametrize(
    "text",
    ["x=1x3x64", "x=1,3,64", "x=[1, 3, 64]", "x=(1,3,64,)", "x=1X3X64", "x=1*3*64", "x=1 x 3 x 64"],
)
def test_a_shape_is_taken_as_any_tool_writes_it(text: str) -> None:
    """A shape may be written with x, commas, brackets or asterisks."""
    assert parsers.shape(text) == ("x", (1, 3, 64))


def test_names_may_hold_what_separates_sizes() -> None:
    """Only the last `=` separates name and sizes, so names may contain `=`, `,` and `:`."""
    assert parsers.shape("box,x=2:0=1,3") == ("box,x=2:0", (1, 3))
    assert parsers.shape("input:0=1x2") == ("input:0", (1, 2))
    assert parsers.dimension("a,b=3") == ("a,b", 3)
    assert parsers.shape("x=[]") == parsers.shape("x=scalar") == ("x", ())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--dim", "batch:1"), "did you mean --dim batch=1?"),
        (("--dim", "batch 1"), "did you mean --dim batch=1?"),
        (("--dim", "batch", "1"), "e.g. --dim batch=1"),
        (("--dim", "batch=1,seq=2"), "write a separate option for each: --dim batch=1 --dim seq=2"),
        (("--shape", "x:1,3,64"), "did you mean --shape x=1,3,64?"),
        (("--shape", "x:0"), "e.g. --shape x=1x3x224x224"),
        (
            ("--shape", "x=1x3,y=2x4"),
            "write a separate option for each: --shape x=1x3 --shape y=2x4",
        ),
        (("--shape", "x=1,,3"), "'x=1,,3' is not of the form tensor=1x3x224x224: '' is not a"),
        (("--value", "sr:16000"), "did you mean --value sr=16000?"),
        (("--value", "sr", "16000"), "e.g. --value sr=16000"),
        (("--state", "h:o"), "did you mean --state h=o?"),
        (("--budget", "scratch:256K"), "did you mean --budget scratch=256K?"),
        (("--dim", "a" * 100_000 + ":" * 100_000), "is not of the form"),
        (("--shape", "a=1," + "b" * 100_000), "is not of the form"),
    ],
)
def test_what_is_meant_is_shown(words: tuple[str, ...], hint: str) -> None:
    """An invalid option value is refused with the correct form."""
    done = run("plan", *words, TINY)
    assert (exit_code(done), done.stdout) == (2, "")
    assert hint in sentence(done)


def test_values_may_be_in_brackets() -> None:
    """A bracketed value stays a list, even with one element."""
    assert parsers.value("ids=[1, 2]") == ("ids", (1, 2))
    assert parsers.value("ids=[5]") == ("ids", (5,))
    with pytest.raises(UsageError, match="has no value"):
        parsers.value("ids=[1, 2")


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("plan.json", '{\n "schema": "qnnmem.plan/1"'),
        ("plan.JSON", '{\n "schema": "qnnmem.plan/1"'),
        ("plan.csv", "id,lower,upper,size"),
        ("plan.h", "/*"),
        ("plan.txt", "scratch "),
        ("plan", "scratch "),
    ],
)
def test_the_suffix_says_the_form(name: str, start: str, tmp_path: Path) -> None:
    """The suffix of the output file selects its format, without a note."""
    done = run("plan", TINY, "-o", tmp_path / name)
    assert (exit_code(done), done.stderr) == (0, f"Wrote {tmp_path / name}\n")
    assert (tmp_path / name).read_text("utf-8").startswith(start)


@pytest.mark.parametrize(
    ("words", "form", "start"),
    [
        (("-o", "plan.html"), "text", "scratch "),
        (("-o", "plan.json", "--format", "csv"), "csv", "id,lower"),
        (("-o", "plan.h", "--json"), "json", "{"),
    ],
)
def test_another_form_than_the_suffix_says_is_told(
    words: tuple[str, ...], form: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--format` takes precedence over the suffix; a note says that they disagree."""
    monkeypatch.chdir(tmp_path)
    done = run("plan", TINY, *words)
    note = f"note: {words[1]} is written as {form}, despite its suffix\n"
    assert done.stderr == f"{note}Wrote {words[1]}\n"
    assert Path(words[1]).read_text("utf-8").startswith(start)


@pytest.mark.parametrize("words", [("socs", "SM8650"), ("explain", "1002"), ("lpai", "rules")])
def test_other_verbs_do_so_too(words: tuple[str, ...], tmp_path: Path) -> None:
    """Other verbs infer the format from the suffix, too."""
    run(*words, "-o", tmp_path / "out.json")
    assert "schema" in json.loads((tmp_path / "out.json").read_text("utf-8"))
