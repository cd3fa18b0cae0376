"""`qnnmem fit` and `place` for several files, patterns and folders, with a limit on files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import exit_code, run, sentence
from context_writer import example_context, example_graph, pack_context
from msgspec import structs

from qnnmem.results.schema import load_schema
from qnnmem.verbs import named_files as named

MIB = 1 << 20
MODEL = b"\x08\x09\x3a\x00"


def binary(path: Path, **graph: Any) -> None:
    """Write a context binary of one graph for SM8650."""
    path.write_bytes(
        pack_context(structs.replace(example_context(), graphs=(example_graph(**graph),)))
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the parent of a folder with three binaries, noise and a text file."""
    below = tmp_path / "made" / "below"
    below.mkdir(parents=True)
    binary(tmp_path / "made" / "a.bin")
    binary(tmp_path / "made" / "b.serialized.bin", const=3600 * MIB)
    binary(below / "c.bin")
    (below / "noise.bin").write_bytes(b"\xff" * 100)
    (below / "readme.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_several_files_are_one_table_for_fit(folder: Path) -> None:
    """Several files give one overall answer, one row per file and the worst exit code."""
    done = run("fit", "made")
    lines = done.stdout.splitlines()
    assert (exit_code(done), lines[0]) == (1, "does not fit: 1 of 3 (made/b.serialized.bin)")
    assert lines[2].split() == ["file", "SoC", "to", "spare", "limit", "answer"]
    assert [line.split()[0] for line in lines[3:6]] == [
        *("made/a.bin", "made/b.serialized.bin", "made/below/c.bin"),
    ]
    assert [line.split("  ")[-1] for line in lines[3:6]] == ["fits", "does not fit", "fits"]
    assert "made: skipped 2 files; only HTP models are read" in done.stderr
    assert exit_code(run("fit", "made/?.bin")) == 0
    assert exit_code(run("fit", "made/a.bin", "made/below/c.bin")) == 0


def test_several_files_as_json(folder: Path) -> None:
    """The JSON holds each file's own answer, with counts and the overall verdict."""
    done = run("fit", "made/*.bin", "gone.bin", "--json")
    values = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.fits/1")).validate(values)
    assert (exit_code(done), values["exit_code"], values["fits"]) == (2, 2, False)
    assert values["counts"] == {
        **{"files": 3, "fits": 1, "does_not_fit": 1, "cannot_tell": 0, "refused": 1}
    }
    alone = json.loads(run("fit", "made/a.bin", "--json").stdout)
    assert values["answers"][0] == alone
    assert "gone.bin" in values["refused"][0]["sentence"]


def test_a_file_that_cannot_be_judged_has_its_reason_below(folder: Path) -> None:
    """A file without a verdict has its reason below the table; a shared reason is printed once."""
    for name in ("m.onnx", "n.onnx"):
        (folder / "made" / name).write_bytes(MODEL)
    done = run("fit", "made")
    assert exit_code(done) == 2
    assert done.stdout.splitlines()[0].startswith(
        "no verdict on 2 of 5 files, does not fit: 1 of 3"
    )
    assert done.stdout.count("no verdict") == 3
    assert "must be compiled first; choose a SoC, e.g. --soc SM8650" in " ".join(
        done.stderr.split()
    )


def test_details_of_each_come_with_v(folder: Path) -> None:
    """`-v` prints the details of each file after the table."""
    text = run("fit", "made", "-v").stdout
    assert text.count("fits SM8650: 0 bytes to spare in the VTCM") == 2
    assert "does not fit SM8650: " in text


@pytest.mark.parametrize("words", [("made",), ("made/**/*.bin",), ("made/a.bin", "made/below")])
def test_place_takes_folders_and_patterns(words: tuple[str, ...], folder: Path) -> None:
    """`place` reads folders and patterns in name order and skips other files in folders."""
    (folder / "made" / "b.serialized.bin").unlink()
    (folder / "made" / "below" / "noise.bin").unlink()
    done = run("place", *words, "--json")
    values = json.loads(done.stdout)
    assert exit_code(done) == 0
    assert [one["file"] for one in values["contexts"]] == ["made/a.bin", "made/below/c.bin"]


def test_place_counts_a_file_as_often_as_it_is_named(folder: Path) -> None:
    """A binary that is named twice counts as two contexts."""
    values = json.loads(run("place", "made/a.bin", "made/a.bin", "--json").stdout)
    assert len(values["contexts"]) == 2


@pytest.mark.parametrize(("verb", "kind"), [("fit", "HTP model"), ("place", "context binary")])
def test_a_folder_without_any_is_refused(verb: str, kind: str, folder: Path) -> None:
    """A folder without any fitting file is refused with one sentence."""
    (folder / "empty").mkdir()
    done = run(verb, "empty")
    assert (exit_code(done), done.stdout) == (2, "")
    assert f"this folder contains no {kind}" in sentence(done)


@pytest.mark.parametrize("word", [".", "**/*.bin", "made"])
@pytest.mark.parametrize("verb", ["fit", "place", "plan", "lint"])
def test_no_walk_is_endless(
    word: str, verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or pattern with more files than the limit is refused."""
    monkeypatch.setattr(named, "_MOST", 4)
    done = run(verb, word)
    assert (exit_code(done), done.stdout) == (2, "")
    assert "contains more than 4 files; name a smaller folder" in sentence(done)
