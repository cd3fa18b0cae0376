"""`qnnmem sweep`: refusals, the table, the JSON and resumption."""

from __future__ import annotations

import json
from pathlib import Path

import click
import jsonschema
import pytest
from click.testing import CliRunner
from command_line import exit_code, verb
from sliced_model import sliced

from qnnmem.cli.verbs import qnnmem
from qnnmem.errors import QnnMemError
from qnnmem.htp import sweep as sweeps
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.report import sweep as report
from qnnmem.results.schema import load_schema

ROOT = Path(__file__).parents[2]


run = verb("sweep")


@pytest.mark.parametrize(
    "words",
    [
        ["--soc", "nonsense", "--vary", "batch=1"],
        ["--soc", "SM8650", "--vary", "batch"],
        ["--soc", "SM8650", "--vary", "batch=1", "--max", "other"],
        ["--soc", "SM8650", "--vary", "precision=fp16", "--max", "precision"],
        ["--soc", "SM8650", "--vary", "batch=1", "--vary", "batch=2"],
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: list[str]) -> None:
    """Invalid arguments are refused before anything is compiled."""
    done = run(sliced(tmp_path / "m.onnx", "batch"), "--cache", tmp_path / "cache", *words)
    assert isinstance(done.exception, QnnMemError)
    assert not (tmp_path / "cache").exists()


def test_the_text_says_what_failed() -> None:
    """A failure reason that several rows share is printed once; names are escaped."""
    rows = [
        sweeps.SweepRow({"ba\x1btch": 1}, sweeps.SweepOutcome("fits", seconds=1.5)),
        sweeps.SweepRow({"ba\x1btch": 2}, sweeps.SweepOutcome("failed", "ended by SIGKILL")),
        sweeps.SweepRow({"ba\x1btch": 3}, sweeps.SweepOutcome("failed", "ended by SIGKILL"), True),
    ]
    text = report.render_text(rows, (), "m.onnx", "SM8650")
    assert text.splitlines()[0] == "1 of 3 settings fit SM8650, 2 failed; 1 from the cache"
    assert text.count("ended by SIGKILL") == 1
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (
            sweeps.Largest("n", {}, "big", value=7, next_value=8, predicted=7),
            "largest n that fits SM8650 is 7; 8 does not: big",
        ),
        (
            sweeps.Largest(
                *("n", {}, "big"),
                value=7,
                next_value=8,
                until="compiles",
                predicted=9,
                halved=True,
            ),
            "largest n that compiles for SM8650 is 7; 8 does not: big",
        ),
    ],
)
def test_the_first_line_says_which_question_was_answered(
    largest: sweeps.Largest, words: str
) -> None:
    """The first line answers the question of --until; a later line says how it was found."""
    lines = report.render_text([], [largest], "m.onnx", "SM8650").splitlines()
    assert lines[0] == words
    how = "confirmed by compiling" if largest.predicted == 7 else "7 was found by bisection"
    assert how in lines[2]


def test_ctrl_c_shows_the_rows_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C prints the finished rows as text or JSON and aborts."""
    from qnnmem.verbs import sweep as verb

    class Broken:
        """A compiler that is interrupted at the third point."""

        def run(self, point: sweeps.SweepPoint) -> sweeps.SweepOutcome:
            if point["batch"] == 3:
                raise KeyboardInterrupt
            return sweeps.SweepOutcome("fits", pd_need=12_345)

        def close(self) -> None:
            pass

    monkeypatch.setattr(verb, "_compilers", lambda *_given: ("library 1", [Broken]))
    words = (sliced(tmp_path / "m.onnx", "batch"), "--soc", "SM8650", "--vary", "batch=1,2,3,4")
    typed = ("sweep", *map(str, words), "--cache", str(tmp_path / "cache"))
    done = CliRunner().invoke(qnnmem, typed, standalone_mode=False)
    assert isinstance(done.exception, click.Abort)  # click turns Ctrl-C into Abort
    first, *rest = done.stdout.splitlines()
    assert first == "interrupted; so far, 2 of 2 settings fit SM8650"
    assert sum("12,345" in line for line in rest) == 2
    again = CliRunner().invoke(qnnmem, (*typed, "--json"), standalone_mode=False)
    values = json.loads(again.stdout)
    jsonschema.validate(values, load_schema("qnnmem.sweep/1"))
    assert (values["interrupted"], len(values["rows"])) == (True, 2)


def test_until_needs_a_search(tmp_path: Path) -> None:
    """`--until` without --max is refused."""
    words = ("--soc", "SM8650", "--vary", "batch=1,2", "--until", "fits")
    done = run(sliced(tmp_path / "m.onnx", "batch"), *words)
    assert "needs --max" in str(done.exception)


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
class TestRealLibrary:
    """A real sweep over a model that compiles quickly."""

    def test_the_largest_batch_is_found_and_kept(self, tmp_path: Path) -> None:
        """Batch 2047 is the largest that fits SM8350; a second run comes from the cache."""
        words = (
            *(
                sliced(tmp_path / "m.onnx", "batch"),
                "--soc",
                "SM8350",
                "--vary",
                "batch=2044..2051",
            ),
            *("--max", "batch", "--cache", tmp_path / "cache"),
        )
        done = run(*words)
        first = done.stdout.splitlines()[0]
        assert first.startswith("largest batch that fits SM8350 is 2047; 2048 does not: ")
        assert done.return_value == 0
        assert len(json.loads(run(*words, "--json").stdout)["rows"]) <= 5
        again = json.loads(run(*words, "--json").stdout)
        assert all(row["from_cache"] for row in again["rows"])

    def test_the_json_obeys_its_schema(self, tmp_path: Path) -> None:
        """The JSON follows its schema; without a fitting row, the exit code is 1."""
        words = (
            sliced(tmp_path / "m.onnx", "batch"),
            "--soc",
            "SM8350",
            "--cache",
            tmp_path / "cache",
        )
        done = run(*words, "--vary", "batch=2,3000", "--json", "--jobs", "2")
        values = json.loads(done.stdout)
        jsonschema.validate(values, load_schema("qnnmem.sweep/1"))
        assert [row["state"] for row in values["rows"]] == ["fits", "over"]
        assert run(*words, "--vary", "batch=3000").return_value == 1

    def test_a_name_that_the_model_does_not_have_is_said(self, tmp_path: Path) -> None:
        """An axis that the model does not have is refused."""
        done = run(
            *(sliced(tmp_path / "m.onnx", "batch"), "--soc", "SM8350", "--vary", "bach=1"),
            *("--cache", tmp_path / "cache"),
        )
        assert isinstance(done.exception, QnnMemError)


def test_a_cluster_without_the_library_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If cluster workers have no library, the sweep exits with 3 before sending work."""
    from concurrent.futures import ThreadPoolExecutor

    from qnnmem.errors import NoCompiler

    def missing() -> None:
        raise NoCompiler("it is not installed")

    place = "qnnmem.doctor.fleet.executors.cluster_executor"
    monkeypatch.setattr(place, lambda _address: ThreadPoolExecutor(1))
    monkeypatch.setattr("qnnmem.htp.library.find_library", missing)
    words = ("--soc", "SM8650", "--vary", "N=1,2", "--cluster", "tcp://there:8786")
    model = Path(__file__).parents[2] / "examples" / "small.onnx"
    done = run(model, *words, "--cache", tmp_path)
    assert exit_code(done) == 3
    assert "the workers of the cluster have no library: it is not installed" in str(done.exception)
