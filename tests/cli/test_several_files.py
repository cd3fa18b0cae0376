"""`qnnmem plan` and `lint` for several files, patterns, folders and standard input."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result
from command_line import exit_code, run, sentence

from qnnmem.cli.verbs import qnnmem
from qnnmem.results.schema import load_schema
from qnnmem.verbs import named_files as named

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = "id,lower,upper,size\na,0,3,4\nb,2,6,4\n"
LARGE = "id,lower,upper,size\na,0,3,4000\n"
GOOD = '{"lpai_backend": {"target_env": "arm"}}'
BAD = '{"lpai_graph": {"execute": {"mem_type": "TMC"}}}'


def with_input(data: bytes, *words: str | Path) -> Result:
    """Run `qnnmem` with this standard input."""
    return CliRunner().invoke(qnnmem, list(map(str, words)), data, standalone_mode=False)


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with models and other files."""
    below = tmp_path / "models" / "below"
    below.mkdir(parents=True)
    (tmp_path / "models" / "a.csv").write_text(SMALL)
    (tmp_path / "models" / "b.csv").write_text(LARGE)
    (below / "c.csv").write_text(SMALL)
    (below / "prices.csv").write_text("year,price\n1999,3\n")
    (below / "readme.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("models/a.csv", "models/b.csv"), ["models/a.csv", "models/b.csv"]),
        (("models/*.csv",), ["models/a.csv", "models/b.csv"]),
        (("models/[ab].csv", "models/a.csv"), ["models/a.csv", "models/b.csv"]),
        (
            ("models/**/c.csv", "models/?.csv"),
            ["models/below/c.csv", "models/a.csv", "models/b.csv"],
        ),
        (("models",), ["models/a.csv", "models/b.csv", "models/below/c.csv"]),
        (("models/",), ["models/a.csv", "models/b.csv", "models/below/c.csv"]),
    ],
)
def test_files_patterns_and_folders(words: tuple[str, ...], names: list[str], lists: Path) -> None:
    """Files, patterns and folders give the same files, each once."""
    done = run("plan", *words, "--format", "json")
    values = json.loads(done.stdout)
    assert (exit_code(done), [one["input"] for one in values["plans"]]) == (0, names)


def test_the_table_gives_one_answer_first(lists: Path) -> None:
    """The table has the verdict, a row per file and a command for the file that does not fit."""
    done = run("plan", "models/a.csv", "models/b.csv", "--budget", "scratch=1K")
    lines = done.stdout.splitlines()
    assert exit_code(done) == 1
    assert lines[0] == "does not fit: 1 of 2 (models/b.csv)"
    assert lines[2].split() == ["file", "scratch", "persistent", "constants", "answer"]
    assert lines[3].split() == ["models/a.csv", "8", "0", "0", "fits"]
    assert lines[4].split() == ["models/b.csv", "4,000", "0", "0", "does", "not", "fit"]
    assert lines[-1].endswith("qnnmem plan models/b.csv --budget scratch=1K -v")
    assert max(map(len, lines)) <= 80


def test_a_table_stays_within_eighty_columns(lists: Path) -> None:
    """The table keeps to 80 columns by shortening names, not numbers or answers."""
    for name in ("x" * 70, "models/" + "y" * 100, "z"):
        path = lists / "models" / f"{name.replace('/', '_')}_{name[-3:]}.csv"
        path.write_text(SMALL.replace(",4\n", ",400000000000\n"))
    (lists / "models" / f"{'damaged' * 20}.csv").write_text("id,lower,upper,size\nnonsense\n")
    done = run("plan", "models", "--budget", "scratch=1K")
    table = done.stdout.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    rows = [row for row in table if "800,000,000,000" in row]
    assert [row.split()[-3:] for row in rows] == [["does", "not", "fit"]] * 3
    assert len([row for row in table if row.endswith("not planned")]) == 1


@pytest.mark.parametrize(
    ("budget", "damaged", "code", "fits"),
    [
        ((), False, 0, True),
        (("--budget", "scratch=1K"), False, 1, False),
        ((), True, 2, None),
        (("--budget", "scratch=1K"), True, 2, False),
    ],
)
def test_the_json_of_several_has_a_verdict(
    budget: tuple[str, ...], damaged: bool, code: int, fits: bool | None, lists: Path
) -> None:
    """The JSON has the overall verdict, the exit code and the counts."""
    if damaged:
        (lists / "models" / "a.csv").write_text("nonsense")
    done = run("plan", "models/*.csv", *budget, "--json")
    values = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.plans/1")).validate(values)
    assert (exit_code(done), values["exit_code"], values["fits"]) == (code, code, fits)
    assert sum(values["counts"].values()) == 2 * values["counts"]["files"] == 4
    assert values["counts"]["refused"] == damaged
    for plan in values["plans"]:
        assert plan["exit_code"] == (0 if plan["fits"] else 1)


@pytest.mark.parametrize(
    ("budget", "damaged", "code"),
    [
        ((), False, 0),
        (("--budget", "scratch=1M"), False, 0),
        (("--budget", "scratch=1K"), False, 1),
        ((), True, 2),
        (("--budget", "scratch=1K"), True, 2),
    ],
)
def test_the_worst_of_all_is_the_exit_code(
    budget: tuple[str, ...], damaged: bool, code: int, lists: Path
) -> None:
    """The exit code is the worst: 2 for unplanned files before 1 for too large ones."""
    if damaged:
        (lists / "models" / "b.csv").write_text("nonsense")
    (lists / "models" / "c.csv").write_text(LARGE)
    done = run("plan", "models/*.csv", *budget)
    assert exit_code(done) == code
    assert "models/c.csv" in done.stdout
    assert ("qnnmem: models/b.csv: " in done.stderr) is damaged
    assert ("1 of 3 not planned" in done.stdout.splitlines()[0]) is damaged


def test_dimensions_are_fixed_where_they_are_open(tmp_path: Path) -> None:
    """`--dim` applies to the models that have the dimension; still open dimensions are refused."""
    import onnx.parser

    for name, shape in (("fixed", "2,50"), ("open", "n,50"), ("both", "n,m"), ("other", "k,50")):
        text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[{shape}] x) => (float[{shape}] y) {{ y = Relu(x) }}"""
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    (tmp_path / "list.csv").write_text(SMALL)
    done = run("plan", tmp_path, "--dim", "n=2", "--dim", "m=50", "--format", "json")
    values = json.loads(done.stdout)
    sizes = {Path(one["input"]).stem: one["scratch_bytes"] for one in values["plans"]}
    assert sizes == {"both": 896, "fixed": 896, "open": 896, "list": 8}
    (refused,) = values["refused"]
    assert "these dimensions are open: k (input 'x')" in refused["sentence"]
    assert exit_code(run("plan", tmp_path / "fixed.onnx", "--dim", "n=2")) == 2
    words = ("--dim", "n=2", "--dim", "m=50", "--budget", "scratch=1")
    for name, kept in (("fixed", 0), ("open", 1), ("both", 2)):
        text = run("plan", tmp_path / f"{name}.onnx", tmp_path / "other.onnx", *words).stdout
        command = shlex.split(text[text.index("qnnmem plan") :].splitlines()[0])[1:]
        assert (command.count("--dim"), exit_code(run(*command))) == (kept, 1)


def test_names_that_share_a_folder_are_told_apart(tmp_path: Path) -> None:
    """A long common folder is printed once above the table."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text(SMALL)
    lines = run("plan", folder).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["in", "file", "a.csv", "b.csv"]


def test_json_of_several_satisfies_its_schema(lists: Path) -> None:
    """Each plan in the JSON follows its own schema, and refused files are listed."""
    (lists / "models" / "b.csv").write_text("nonsense")
    done = run("plan", "models/a.csv", "models/b.csv", "--format", "json")
    values = json.loads(done.stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.plans/1")).validate(values)
    jsonschema.Draft202012Validator(load_schema("qnnmem.plan/1")).validate(values["plans"][0])
    (refused,) = values["refused"]
    assert (exit_code(done), refused["input"]) == (2, "models/b.csv")


def test_csv_of_several_has_a_row_for_each(lists: Path) -> None:
    """The CSV has one row per file and quotes odd file names."""
    odd = lists / 'models/o"d,d.csv'
    odd.write_text(SMALL)
    done = run("plan", "models/a.csv", odd, "models/b.csv", "--format", "csv", "--budget", "io=0")
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows[0][:2] == ["file", "scratch_bytes"]
    assert [row[1] for row in rows[1:]] == ["8", "8", "4000"]
    assert rows[2][0] == str(odd)


def test_verbose_adds_the_whole_report_of_each(lists: Path) -> None:
    """With -v, the full report of every file follows the table."""
    done = run("plan", "models/a.csv", "models/b.csv", "-v")
    assert done.stdout.count("peak at step") == 2


def test_a_pattern_for_nothing_is_said(lists: Path) -> None:
    """A pattern without a match is refused as a pattern."""
    done = run("plan", "models/*.onnx")
    assert (exit_code(done), sentence(done)) == (2, "no file matches 'models/*.onnx'")


def test_a_file_may_look_like_a_pattern(lists: Path) -> None:
    """An existing file whose name is a pattern is planned."""
    (lists / "a[1].csv").write_text(SMALL)
    done = run("plan", "a[1].csv")
    assert done.stdout.startswith("scratch 8 bytes, proven minimal")


def test_a_folder_says_what_it_left_out(lists: Path) -> None:
    """In a folder, pipes and broken links are skipped by name, and other files are counted."""
    os.mkfifo(lists / "models" / "pipe.csv")
    (lists / "models" / "away.csv").symlink_to(lists / "elsewhere.csv")
    done = run("plan", "models")
    assert exit_code(done) == 0
    assert "models/pipe.csv: a pipe; skipped" in done.stderr
    assert "models/away.csv: a broken link; skipped" in done.stderr
    assert "models: skipped 2 files; only models are read" in done.stderr


def test_a_pattern_gives_a_table_whatever_it_finds(lists: Path) -> None:
    """A pattern or a folder gives the result form of several files, even for one match."""
    for word in ("models/a*", "models/below"):
        values = json.loads(run("plan", word, "--format", "json").stdout)
        assert (values["schema"], len(values["plans"])) == ("qnnmem.plans/1", 1)
    assert run("plan", "models/a*", "--format", "c").stdout.startswith("/* Memory plan of models/a")


def test_many_odd_things_in_a_folder_are_counted(lists: Path) -> None:
    """Of many skipped files, five are named and the others are counted."""
    for number in range(7):
        os.mkfifo(lists / "models" / f"pipe{number}")
    said = run("plan", "models").stderr.splitlines()
    assert len([line for line in said if "a pipe; skipped" in line]) == 5
    assert "models: skipped 2 more files" in said


def test_a_folder_without_models_is_said(lists: Path) -> None:
    """A folder without models is refused."""
    (lists / "other").mkdir()
    (lists / "other" / "a.txt").write_text("a")
    done = run("plan", "other")
    assert (exit_code(done), sentence(done)) == (
        2,
        "other: this folder contains no model, only 1 other file",
    )


@pytest.mark.parametrize("form", ["text", "json", "csv", "c"])
def test_standard_input_is_a_file(form: str) -> None:
    """Standard input can be planned in every format, without a temporary name in the output."""
    done = with_input(SMALL.encode(), "plan", "-", "--format", form)
    assert exit_code(done) == 0
    assert "/standard_input" not in done.stdout
    assert "next: " not in done.stdout  # standard input cannot be read twice
    text = (EXAMPLES / "tiny.eaix").read_bytes()
    assert exit_code(with_input(text, "plan", "-", "--format", form)) == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "standard input is empty"),
        (b"nonsense", "standard input is text, which qnnmem cannot plan"),
        (b"id,lower,upper,size\na,0,3\n", "standard input: "),
    ],
)
def test_what_is_wrong_with_standard_input_is_said_of_it(data: bytes, words: str) -> None:
    """Errors about standard input name it and show no temporary path."""
    done = with_input(data, "plan", "-")
    assert exit_code(done) == 2
    assert sentence(done).startswith(words)
    assert "standard_input" not in sentence(done)


def test_standard_input_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input over the size limit is refused."""
    monkeypatch.setattr("qnnmem.cli.plan._LARGEST_INPUT", 1000)
    done = with_input(SMALL.encode() + b" " * 2000, "plan", "-")
    assert (exit_code(done), sentence(done)) == (
        2,
        "standard input: over the limit of 1000 B",
    )


def test_standard_input_that_is_closed(tmp_path: Path) -> None:
    """A closed standard input gives exit code 2 and one sentence."""
    command = f"{sys.executable} -m qnnmem plan - <&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("qnnmem: standard input cannot be read")
    assert done.stderr.count("\n") == 1


def test_standard_input_is_read_alone(lists: Path) -> None:
    """Standard input cannot be planned together with files, as it has no name for the table."""
    done = with_input(SMALL.encode(), "plan", "-", "models/a.csv")
    assert (exit_code(done), sentence(done)) == (
        2,
        "standard input cannot be planned together with other files",
    )


def test_nothing_of_standard_input_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary copy of standard input is removed after success and failure."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with_input(SMALL.encode(), "plan", "-")
    with_input(b"nonsense", "plan", "-")
    assert list(tmp_path.iterdir()) == []


def test_lint_checks_a_folder(tmp_path: Path) -> None:
    """Lint of a folder checks QNN config files, even damaged ones, and skips others."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (below / "lpaiParams.conf").write_text(BAD)
    (tmp_path / "good.json").write_text(GOOD)
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "notes.txt").write_text("lpai_graph")
    done = run("lint", tmp_path)
    assert exit_code(done) == 1
    assert done.stdout.startswith("1 error in 2 files\n")
    assert "skipped 2 files; only config files are read" in done.stderr
    (tmp_path / "cut.json").write_text('{"lpai_graph": {')
    done = run("lint", tmp_path)
    assert exit_code(done) == 2
    assert "cut.json" in done.stderr


def test_lint_of_a_folder_opens_ordinary_files_only(tmp_path: Path) -> None:
    """Lint of a folder skips a pipe, which would block."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "good.json").write_text(GOOD)
    done = run("lint", tmp_path)
    assert exit_code(done) == 0
    assert "pipe.json: a pipe; skipped" in done.stderr


def test_lint_reads_standard_input() -> None:
    """Lint reads standard input; findings name it `-`."""
    done = with_input(BAD.encode(), "lint", "-")
    assert exit_code(done) == 1
    assert "\n-:1:" in done.stdout
    done = with_input(b"", "lint", "-")
    assert exit_code(done) == 2
    assert done.stderr.startswith("qnnmem: -: ")


def test_explain_reads_standard_input() -> None:
    """Explain reads one code per line from standard input and skips empty lines."""
    done = with_input(b"1002\n\n0x3ea\n", "explain", "-", "--json")
    assert (exit_code(done), len(json.loads(done.stdout)["codes"])) == (0, 2)
    done = with_input(b"\n", "explain", "-")
    assert (exit_code(done), sentence(done)) == (2, "standard input is empty")


def test_named_files_are_each_meant_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files named twice are read once, in the order of their first mention."""
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a"):
        Path(name).write_text("")
    found = named.named_files(["b", "[ab]", "b"], lambda _path: True, "file")
    assert found.files == ("b", "a")
