from __future__ import annotations

from pathlib import Path

import command_line
import pytest
from budget_project import make_project

from qnnmem.errors import LoadError, QnnMemError, UsageError
from qnnmem.gate.config import entry_of, find_config, read_config


def written(folder: Path, text: str) -> Path:
    """Write a qnnmem.toml and return its path."""
    path = folder / "qnnmem.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no models are set"),
        ('model = "a"', "model must be a list of tables"),
        ("model = [1]", "model 1: the entry is not a table"),
        ("[[model]]\nbits = 8", "model 1: path is missing"),
        ('models = ["a"]\nbugdet = {}', "bugdet is not a key; did you mean budget?"),
        ('[[model]]\npath = "a"\nshape = {}', "model 1: shape is not a key; did you mean shapes?"),
        ('models = ["a"]\nbudget = { scrath = 1 }', "'scrath' is not a pool; did you mean scratch"),
        ('models = ["a"]\nbudget = { scratch = "1X" }', "'1X' is not a size"),
        ('models = ["a"]\nbudget = { scratch = true }', "budget.scratch must be a size"),
        ('models = ["a"]\nbudget = { scratch = -1 }', "budget.scratch must be between"),
        ('models = ["a"]\nbudget = "4K"', "budget must be a table"),
        ("models = [1]", "models must be a string or a list"),
        ("models = []", "models must be a string or a list"),
        ('models = ["a"]\ntolerance = "some"', "is not a tolerance"),
        ('models = ["a"]\ntolerance = -3', "tolerance must be written like"),
        ('models = ["a"]\ndims = { N = "1" }', "dims.N must be a number"),
        ('models = ["a"]\nshapes = { x = "1x?" }', "shapes.x must be a shape"),
        ('models = ["a"]\nvalues = { x = { y = 1 } }', "values.x must be a number"),
        ('models = ["a"]\nio = "beside"', "io must be inside or outside"),
        ('models = ["a"]\nbits = 7', "bits must be 8 or 16 or 32, not 7"),
        ('models = ["a"]\ninplace = 1', "inplace must be true or false"),
        ('models = ["a"]\ntarget = "dsp"', "target must be lpai or htp"),
        ('models = ["a"]\ntime_limit = -1', "time_limit must be a number"),
        ("models = [", "is not TOML"),
        ("a" * (2 << 20), "over the limit of 256.00 KiB"),
        ("a = " + "[" * 5000, "is not TOML"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_file(text: str, words: str, tmp_path: Path) -> None:
    """A config error names the file and the key, and suggests the nearest key."""
    with pytest.raises(QnnMemError) as caught:
        read_config(written(tmp_path, text))
    assert words in str(caught.value)
    assert "qnnmem.toml" in str(caught.value)


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    """The nearest config is used: qnnmem.toml first, pyproject.toml only with budgets."""
    project = make_project(tmp_path / "project")
    below = project / "a" / "b"
    below.mkdir(parents=True)
    (below.parent / "pyproject.toml").touch()
    (below / "pyproject.toml").write_text("[tool.other]\nx = 1\n", "utf-8")
    assert find_config(below) == project / "pyproject.toml"
    own = written(project, 'models = ["models/*.csv"]')
    assert find_config(below) == own


def test_the_search_ends_at_the_top_of_the_repository(tmp_path: Path) -> None:
    """The search for a config ends at the top of the repository."""
    written(tmp_path, 'models = ["a"]')
    inner = tmp_path / "clone"
    (inner / ".git").mkdir(parents=True)
    with pytest.raises(UsageError, match="no budgets are configured"):
        find_config(inner)


def test_common_settings_hold_where_a_table_says_nothing(tmp_path: Path) -> None:
    """Top-level settings apply unless an entry overrides them; each entry has its line."""
    text = 'models = ["*.csv"]\nalign = 16\n[[model]]\npath = "a.onnx"\nalign = "1K"\n'
    config = read_config(written(tmp_path, text))
    assert [(one.paths, one.get("align"), one.line) for one in config.entries] == [
        (("a.onnx",), 1024, 4),
        (("*.csv",), 16, 1),
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('path = "models/none.onnx"', "no such file"),
        ('path = "models/*.none"', "no file matches 'models/*.none'"),
        ('path = "models/tiny.eaix"\nvtcm_mb = 4', "vtcm_mb is for HTP"),
        ('path = "models/small_htp.bin"\nbits = 8', "bits is for LPAI"),
        ('path = "models/small_htp.bin"\ntarget = "lpai"', "the file is a binary for HTP"),
        ('path = "models/tiny.eaix"\nbudget = { vtcm = 1 }', "vtcm is not a pool of LPAI"),
        ('path = "models/small_htp.bin"\nbudget = { scratch = 1 }', "scratch is not a pool of HTP"),
        ('path = "models/spotter.csv"\nbudget = { constants = 1, weights = 2 }', "two budgets"),
        ('path = "models/spotter.csv"\nbits = 8', "are for models"),
        ('path = "models/*"\nname = "all"', "a named entry must match exactly one"),
        ('path = "models/small_htp.bin"\nsocs = "SM0"', "SM0"),
        ('path = ["models/a.onnx"]\nvalues = { m = "@m.npy" }', "no such file"),
    ],
)
def test_what_contradicts_a_file_is_said(
    table: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that contradicts its file gives exit code 2."""
    monkeypatch.chdir(make_project(tmp_path / "project"))
    written(Path(), f"[[model]]\n{table}\n")
    done = command_line.run("check")
    assert command_line.exit_code(done) == 2
    said = command_line.sentence(done) if done.exception else done.stdout
    assert words in said


def test_two_tables_for_one_file_need_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two entries for one file need different names."""
    monkeypatch.chdir(make_project(tmp_path / "project"))
    table = '[[model]]\npath = "models/tiny.eaix"\n{}\n'
    written(Path(), table.format("") + table.format("align = 256"))
    assert "set a different name for each" in command_line.sentence(command_line.run("check"))
    written(Path(), table.format("") + table.format('align = 256\nname = "wide"'))
    done = command_line.run("check")
    assert command_line.exit_code(done) == 0
    assert "wide: no budget" in done.stdout


def test_a_key_of_many_parts_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A key with many parts is refused before parsing, which would take a minute."""
    path = tmp_path / "qnnmem.toml"
    path.write_text(f"{'a.' * 40_000}b = 1\n", "utf-8")
    with pytest.raises(LoadError, match="line 1 has a key of more than 50 parts"):
        read_config(path)
    path.write_text(f'models = ["{"." * 200}/*.csv"]\n', "utf-8")
    assert read_config(path).entries


def test_a_thousand_models_may_have_tables(tmp_path: Path) -> None:
    """A config with 1,000 models is read; a config with 1,001 is refused."""
    tables = ["[[model]]\npath = 'a'\n"] * 1001
    config = read_config(written(tmp_path, "".join(tables[1:])))
    assert len(config.entries) == 1000
    with pytest.raises(QnnMemError, match="model must be a list of tables"):
        read_config(written(tmp_path, "".join(tables)))


def test_io_is_a_place_or_a_pool() -> None:
    """`io` as text is a place, as a number a budget."""
    assert entry_of("a", {"io": "outside"}).own.get("budget") is None
    assert entry_of("a", {"io": 4096}).own["budget"]
