"""`qnnmem fix` of several models, Ctrl-C, and the cache of answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import exit_code, run, sentence
from fix_samples import wide_picture

from qnnmem.cli.progress import ProgressBar
from qnnmem.fix.tiling.region_search import RegionSearch
from qnnmem.options.fix import FixOptions
from qnnmem.results.files import RefusedFile
from qnnmem.results.fix import FixedModel, RemedyTrial
from qnnmem.results.schema import load_schema
from qnnmem.verbs.fix import FixTask, memory_of
from qnnmem.verbs.fix_many import rows_with


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two models of one name in two folders, a broken model and a text file."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path("models", name).mkdir(parents=True)
        wide_picture(Path("models", name, "wide.onnx"))
    Path("models/broken.onnx").write_bytes(b"\x08\x09\x3a\x05broken")
    Path("models/readme.txt").write_text("hello")
    return tmp_path


def test_a_folder_of_models_is_a_table(folder: Path) -> None:
    """Each model of a folder gets a row and an output folder, and an unreadable model a row."""
    done = run("fix", "models", "--dim", "batch=1", "-o", "out", "--cache", "kept", "--json")
    told = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.fixes/1")).validate(told)
    for one in told["results"]:
        jsonschema.Draft202012Validator(load_schema("qnnmem.fix/1")).validate(one)
    assert (exit_code(done), told["exit_code"]) == (2, 2)
    assert [one["input"] for one in told["refused"]] == ["models/broken.onnx"]
    assert sorted(path.name for path in Path("out").iterdir()) == ["wide", "wide-2"]
    made = [Path("out", name, "wide.onnx").read_bytes() for name in ("wide", "wide-2")]
    assert made[0] == made[1]
    again = run("fix", "models/a/wide.onnx", "models/*.onnx", "-o", "new", "--cache", "kept")
    assert again.stdout.splitlines()[2].split() == [
        *("file", "before", "after", "ratio", "remedy", "results", "answer"),
    ]


def test_processes_give_what_one_gives(folder: Path) -> None:
    """`--jobs 2` returns the same rows in the order of the files."""
    words = ("models/a/wide.onnx", "models/b/wide.onnx", "--dim", "batch=1", "--cache", "kept")
    alone = run("fix", *words, "-o", "out", "--json")
    spread = run("fix", *words, "-o", "out", "--force", "--jobs", "2", "--json")
    assert (exit_code(alone), exit_code(spread)) == (0, 0)
    rows = [json.loads(done.stdout)["results"] for done in (alone, spread)]
    for row in (one for told in rows for one in told):
        for tried in row["tried"]:
            del tried["seconds"]
    assert rows[0] == rows[1]


class _Losing(Executor):
    """An executor that loses its worker for one model a given number of times."""

    def __init__(self, model: str, deaths: int) -> None:
        self._model, self._deaths = model, deaths

    def submit(self, fn: Any, /, *words: Any, **named: Any) -> Future[Any]:
        """Return a finished job, or a job whose worker died."""
        job: Future[Any] = Future()
        if words[0].model == self._model and self._deaths:
            self._deaths -= 1
            job.set_exception(BrokenExecutor())
        else:
            tried = RemedyTrial(remedy="none", change="", bytes=1, fits=True, identical=True)
            job.set_result(FixedModel(input=words[0].model, fits=True, best=0, tried=(tried,)))
        return job


@pytest.mark.parametrize(("deaths", "kind"), [(1, FixedModel), (2, RefusedFile)])
def test_a_worker_that_dies_costs_one_row_at_most(deaths: int, kind: type) -> None:
    """A job whose worker dies is retried once; after a second death its row is a refusal."""
    tasks = [FixTask(name, FixOptions()) for name in "abc"]
    rows = {row.input: row for _, row in rows_with(_Losing("b", deaths), tasks, ProgressBar)}
    assert rows.keys() == {"a", "b", "c"}
    assert isinstance(rows["b"], kind)
    assert rows["a"].exit_code == rows["c"].exit_code == 0


def test_jobs_and_a_cluster_exclude_each_other(folder: Path) -> None:
    """`--jobs` and `--cluster` are refused together."""
    words = ("--jobs", "2", "--cluster", "tcp://nowhere:1")
    done = run("fix", "models/a/wide.onnx", "models/b/wide.onnx", *words, "-o", "out")
    assert exit_code(done) == 2
    assert "cannot be combined" in sentence(done)


def interrupted_at(monkeypatch: pytest.MonkeyPatch, search: int) -> None:
    """Raise KeyboardInterrupt when this search begins."""
    real, seen = RegionSearch.fewest, [0]

    def fewest(self: RegionSearch) -> Any:
        seen[0] += 1
        if seen[0] == search:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(RegionSearch, "fewest", fewest)


def test_ctrl_c_keeps_the_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C, the best proven model is written and reported with exit code 130."""
    interrupted_at(monkeypatch, 2)
    words = ("--dim", "batch=1", "-o", "out", "--cache", "kept")
    done = run("fix", "models/a/wide.onnx", *words)
    assert exit_code(done) == 130
    assert "note: interrupted" in done.stdout
    assert "Wrote out/wide.onnx" in done.stdout
    assert Path("out/wide.onnx").exists()


def test_ctrl_c_ends_several(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C, finished rows are shown and no further model is started."""
    interrupted_at(monkeypatch, 1)
    words = ("models/a/wide.onnx", "models/b/wide.onnx", "--dim", "batch=1", "--cache", "kept")
    done = run("fix", *words, "-o", "out", "--json")
    assert exit_code(done) == 130
    assert [one["input"] for one in json.loads(done.stdout)["results"]] == ["models/a/wide.onnx"]


def test_without_a_home_nothing_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cache is in the user's cache folder by default; without a home, fix works uncached."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    words: Sequence[str] = ("models/a/wide.onnx", "--dim", "batch=1", "--time-limit", "0")
    assert exit_code(run("fix", *words, "-o", "out")) == 0
    assert not Path("/nonexistent").exists()
    task = memory_of(str(tmp_path))
    assert task is not None
    assert task.folder == tmp_path / "fix"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = memory_of(None)
    assert kept is not None
    assert kept.folder == tmp_path / "cache" / "qnnmem" / "fix"
