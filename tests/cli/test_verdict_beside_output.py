"""With `-o`, the verdict appears on standard error for every format of the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import exit_code, run
from context_writer import example_context, example_graph, pack_context
from msgspec import structs

LIST = "id,lower,upper,size\na,0,3,4\nb,2,6,4\n"
MIB = 1 << 20


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with valid and invalid inputs for each verb."""
    monkeypatch.chdir(tmp_path)
    Path("list.csv").write_text(LIST)
    Path("good.json").write_text('{"lpai_backend": {"target_env": "arm"}}')
    Path("bad.json").write_text('{"lpai_graph": {"execute": {"mem_type": "TMC"}}}')
    Path("fail.log").write_text(
        "<E> Failed to allocate memory; Context create from binary failed, error 1002\n"
    )
    Path("small.bin").write_bytes(pack_context(example_context()))
    big = structs.replace(example_context(), graphs=(example_graph(const=3600 * MIB),))
    Path("big.bin").write_bytes(pack_context(big))
    entries = tmp_path / "kb"
    entries.mkdir()
    (entries / "wrong.md").write_text("---\nid: wrong\n---\n")
    return tmp_path


CASES = [
    (("plan", "list.csv", "--capacity", "4"), 1, "does not fit: scratch needs at least 8 bytes"),
    (("plan", "list.csv", "--capacity", "8"), 0, "fits: scratch takes 8 of 8 bytes"),
    (("plan", "list.csv", "list.csv", "small.bin"), 2, "1 of 2 not planned, 1 file planned"),
    (("lint", "bad.json"), 1, "1 error in 1 file"),
    (("lint", "good.json"), 0, "fine: good.json"),
    (("fit", "big.bin"), 1, "does not fit SM8650: "),
    (("fit", "small.bin"), 0, "fits SM8650: "),
    (("fit", "small.bin", "--all-socs", "--budget", "ram=1"), 1, "fits 0 of "),
    (("place", "big.bin", "small.bin"), 1, ""),
    (("footprint", "small.bin"), 0, "11,483,328 bytes (10.95 MiB) of memory on SM8650"),
    (("doctor", "fail.log"), None, ""),
    (("qmem", "small.bin"), 0, "prepare and execute with memhandle"),
    (("socs", "SM8650"), 0, "SM8650"),
]


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(("words", "code", "verdict"), CASES)
def test_the_verdict_is_said_beside_the_file(
    words: Sequence[str], code: int | None, verdict: str, form: Sequence[str], here: Path
) -> None:
    """Standard error holds `Wrote out` and the verdict, so that a build sees a failure."""
    if words[0] == "plan":
        form = ("--format", "json") if form else ()
    shown = run(*words)
    done = run(*words, *form, "-o", "out")
    assert exit_code(done) == exit_code(shown)
    assert code is None or exit_code(done) == code
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.startswith("qnnmem: ")]
    assert said[0] == "Wrote out"
    assert said[1].startswith(verdict)
    assert said[1].split() == shown.stdout.splitlines()[0].split()


def test_a_plan_that_was_not_asked_about_has_no_verdict(here: Path) -> None:
    """A plan without a budget prints no verdict."""
    assert run("plan", "list.csv", "-o", "out").stderr == "Wrote out\n"


def test_what_cannot_be_written_has_no_verdict(here: Path) -> None:
    """If the output cannot be written, no verdict is printed."""
    done = run("plan", "list.csv", "--capacity", "4", "-o", "missing/out")
    assert (exit_code(done), done.stderr) == (2, "")
