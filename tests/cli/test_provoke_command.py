"""`qnnmem provoke`: it stores real failures, and nothing without a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import verb

from qnnmem.errors import CannotTell, OutputError
from qnnmem.htp import provoke as recipes
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.log import Cause, CompileLog, Refusal
from qnnmem.htp.provoke import FailureKind, Provoked, record_of
from qnnmem.results.provoked import Attempt
from qnnmem.results.schema import load_schema

run = verb("provoke")


def outcome(kind: FailureKind, soc: Any, code: int | None, cause: Cause | None) -> Provoked:
    """Return a fake outcome of a recipe."""
    refusals = () if cause is None else (Refusal(cause, "a line"),)
    attempt = Attempt("a try", "refused" if code else "done", code)
    record = record_of(
        *(kind, soc, "onnxruntime-qnn 2.7.0", "compile", (attempt,), "because"),
        input_name="model.onnx",
        code=code,
        log=CompileLog("v2.51.0.1", refusals=refusals),
        lines=("a line",) if code else (),
        seconds=1.5,
        peak_rss=1 << 20,
    )
    return Provoked(record, b"whole log\xff", b"model")


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the outcome of every recipe, so that no library is needed."""

    def tell(code: int | None, cause: Cause | None) -> None:
        monkeypatch.setattr(
            recipes, "provoke", lambda kind, soc, **_other: outcome(kind, soc, code, cause)
        )

    return tell


def test_a_failure_is_stored(answer: Any, tmp_path: Path) -> None:
    """Record, log and input are stored, and the first line names the code."""
    answer(1002, Cause.GRAPH_LIMIT)
    done = run("graph-limit", "--soc", "8 gen 3", "-o", tmp_path / "new")
    assert done.return_value == 0
    first = "graph-limit on SM8650: the library failed to compile with 1002 "
    assert done.stdout.startswith(first)
    record = json.loads((tmp_path / "new" / "graph-limit-SM8650.json").read_text("utf-8"))
    assert (record["kind"], record["code"], record["seconds"]) == ("graph-limit", 1002, 1.5)
    assert (tmp_path / "new" / record["log_file"]).read_bytes() == b"whole log\xff"
    assert (tmp_path / "new" / record["input_file"]).read_bytes() == b"model"


def test_json_is_the_record(answer: Any, tmp_path: Path) -> None:
    """`--json` prints the stored record, which follows its schema."""
    import jsonschema

    answer(1002, Cause.GRAPH_LIMIT)
    done = run("graph-limit", "--soc", "SM8650", "-o", tmp_path, "--json")
    assert done.stdout == (tmp_path / "graph-limit-SM8650.json").read_text("utf-8")
    values = json.loads(done.stdout)
    jsonschema.validate(values, load_schema("qnnmem.provoked/1"))


def test_no_failure_stores_nothing(answer: Any, tmp_path: Path) -> None:
    """Without a failure, the command exits with 1 and stores nothing."""
    answer(None, None)
    done = run("pd-full", "--soc", "SM8650", "-o", tmp_path)
    assert done.return_value == 1
    assert done.stdout.startswith("the library did not fail: pd-full does not happen on SM8650")
    assert list(tmp_path.iterdir()) == []


def test_another_failure_exits_with_3(answer: Any, tmp_path: Path) -> None:
    """An unexpected failure is stored and gives exit code 3."""
    answer(1002, Cause.HOST_MEMORY)
    done = run("op-over-vtcm", "--soc", "SM8650", "-o", tmp_path)
    assert done.return_value == 3
    assert "but this is not op-over-vtcm" in done.stdout
    record = json.loads((tmp_path / "op-over-vtcm-SM8650.json").read_text("utf-8"))
    assert record["as_expected"] is False


def test_records_are_kept_unless_forced(answer: Any, tmp_path: Path) -> None:
    """Existing records are replaced only with --force."""
    answer(1002, Cause.GRAPH_LIMIT)
    words = ("graph-limit", "--soc", "SM8650", "-o", tmp_path)
    assert run(*words).return_value == 0
    assert isinstance(run(*words).exception, OutputError)
    assert run(*words, "--force").return_value == 0


def test_the_folder_must_be_one(answer: Any, tmp_path: Path) -> None:
    """A file in place of the output folder is refused."""
    answer(1002, Cause.GRAPH_LIMIT)
    (tmp_path / "file").write_text("x", "utf-8")
    done = run("graph-limit", "--soc", "SM8650", "-o", tmp_path / "file")
    assert isinstance(done.exception, OutputError)


def test_a_soc_without_htp_cannot_be_told(tmp_path: Path) -> None:
    """A SoC without HTP gives exit code 3, since no library can fail for it."""
    done = run("graph-limit", "--soc", "SM8250", "-o", tmp_path)
    assert isinstance(done.exception, CannotTell)


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
def test_a_real_failure_is_stored(tmp_path: Path) -> None:
    """The stored log of a real failure contains the record's decisive line."""
    assert run("op-over-vtcm", "--soc", "SM7325", "-o", tmp_path).return_value == 0
    record = json.loads((tmp_path / "op-over-vtcm-SM7325.json").read_text("utf-8"))
    assert (record["code"], record["cause"]) == (1002, "op-over-vtcm")
    log = (tmp_path / record["log_file"]).read_text("utf-8", "replace")
    assert any("not sufficiently tiled" in line and line in log for line in record["lines"])


@pytest.mark.parametrize("failure", [CannotTell("no library"), OutputError("no room")])
def test_a_failure_of_ours_leaves_no_folder(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of qnnmem leaves no new folder behind."""

    def fail(*_given: object, **_options: object) -> None:
        raise failure

    monkeypatch.setattr(recipes, "provoke", fail)
    done = run("pd-full", "--soc", "SM8650", "-o", tmp_path / "new" / "one")
    assert done.exception is failure
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_does_not_fail_leaves_no_folder(answer: Any, tmp_path: Path) -> None:
    """Without a failure, no output folder is created."""
    answer(None, None)
    assert run("pd-full", "--soc", "SM8650", "-o", tmp_path / "new").return_value == 1
    assert list(tmp_path.iterdir()) == []
