"""`qnnmem config`: the files it writes, the settings it refuses, and writing both files or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from command_line import verb

from qnnmem import QnnMemError, atomic_file
from qnnmem.flags import flag
from qnnmem.lpai.config.check import lint_files
from qnnmem.lpai.config.settings import read_run_config

PAIR = ["eaiParams_direct.conf", "eaiParams_direct.json"]


def run(folder: Path, *options: str) -> Result:
    """Run `qnnmem config --backend lpai` with this output folder."""
    return verb("config", "--backend", "lpai")("-o", folder, *options)


def names(folder: Path) -> list[str]:
    """Return the names of all files in a folder, hidden files included."""
    return sorted(path.name for path in folder.iterdir())


def test_a_tcm_pair_is_written_and_passes(tmp_path: Path) -> None:
    """TCM selects direct mode on the aDSP, and lint has no findings in the pair."""
    folder = tmp_path / "new" / "folder"
    result = run(folder, "--mem-type", "tcm")
    assert result.return_value == 0
    assert names(folder) == PAIR
    assert lint_files([folder / PAIR[1]], strict=True).findings == ()
    config = read_run_config(folder / PAIR[1])
    assert (config.lpai.execute.mem_type, config.lpai.target_env) == ("tcm", "adsp")
    assert config.context.is_persistent_binary


def test_it_says_what_it_wrote_and_what_to_run(tmp_path: Path) -> None:
    """The output has the verdict, the two files, and a `qnn-net-run` command to paste."""
    lines = run(tmp_path, "--mem-type", "tcm").stdout.splitlines()
    assert lines[0] == "LPAI v6, direct mode on the aDSP, IO and model binary in TCM"
    assert lines[1:3] == [f"Wrote {tmp_path / PAIR[1]}", f"Wrote {tmp_path / PAIR[0]}"]
    assert "qnn-net-run" in lines[3]
    assert "--direct_mode adsp --config_file eaiParams_direct.json" in lines[3]


def test_every_option_reaches_the_file(tmp_path: Path) -> None:
    """Every option of `qnnmem config` appears in the written config file."""
    options = ["--target-env", "x86", "--hw-ver", "v5_1", "--fps", "7", "--ftrt-ratio", "20"]
    options += ["--client-type", "non_real_time", "--affinity", "hard", "--core-selection", "2"]
    assert run(tmp_path, *options, "--exclude-io").return_value == 0
    assert json.loads((tmp_path / "lpaiParams.conf").read_text()) == {
        "lpai_backend": {"target_env": "x86", "enable_hw_ver": "v5_1"},
        "lpai_graph": {
            "prepare": {"exclude_io": True},
            "execute": {
                "fps": 7,
                "ftrt_ratio": 20,
                "client_type": "non_real_time",
                "affinity": "hard",
                "core_selection": 2,
            },
        },
    }


@pytest.mark.parametrize(
    "options",
    [
        ["--mem-type", "tcm", "--target-env", "arm"],
        ["--mem-type", "tcm", "--hw-ver", "v5_1"],
        ["--fps", "0"],
        ["--core-selection", "3"],
        ["--fps", "-1"],
        ["--hw-ver", "v3"],
    ],
)
def test_contradictions_end_with_2_and_write_nothing(options: list[str], tmp_path: Path) -> None:
    """Contradicting options end with exit code 2 before the folder is created."""
    folder = tmp_path / "new"
    result = run(folder, *options)
    assert getattr(result.exception, "exit_code", None) == 2
    assert not folder.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--mem-type", "tcm", "--target-env", "arm"],
            "TCM works only in direct mode on the aDSP, not with target arm; use --target-env adsp "
            "or --mem-type ddr",
        ),
        (
            ["--mem-type", "tcm", "--hw-ver", "v5_1"],
            "TCM needs LPAI v6 or later, not v5_1; use --hw-ver v6 or --mem-type ddr",
        ),
        (
            ["--fps", "0"],
            "a real_time client needs more than 0 frames per second; "
            "use --fps 1 or more, or --client-type non_real_time",
        ),
    ],
)
def test_a_contradiction_names_the_options_that_end_it(
    options: list[str], sentence: str, tmp_path: Path
) -> None:
    """The refusal names the command-line options that resolve the contradiction."""
    exc = run(tmp_path / "new", *options).exception
    assert isinstance(exc, QnnMemError)
    assert exc.sentence(flag) == sentence


@pytest.mark.parametrize("taken", PAIR)
def test_existing_files_are_kept_without_force(taken: str, tmp_path: Path) -> None:
    """If either file of the pair exists, neither is written without --force."""
    (tmp_path / taken).write_text("mine")
    assert "already exists; force replaces it" in str(run(tmp_path).exception)
    assert names(tmp_path) == [taken]
    assert run(tmp_path, "--force").return_value == 0
    assert names(tmp_path) == PAIR
    assert "mine" not in (tmp_path / taken).read_text()


@pytest.mark.parametrize("blocked", PAIR)
def test_both_files_appear_or_none(
    blocked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one rename fails, the old file is restored and the new file is removed."""
    (tmp_path / PAIR[0]).write_text("mine")
    place = atomic_file.put_in_place

    def fail_for_one(temporary: Path, path: Path, *, force: bool) -> None:
        if path == tmp_path / blocked:
            raise OSError(28, "No space left on device")
        place(temporary, path, force=force)

    monkeypatch.setattr(atomic_file, "put_in_place", fail_for_one)
    result = run(tmp_path, "--force")
    assert "No space left on device" in str(result.exception)
    assert names(tmp_path) == [PAIR[0]]
    assert (tmp_path / PAIR[0]).read_text() == "mine"


def test_a_folder_made_for_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write leaves no empty folder behind."""

    def fail(temporary: Path, path: Path, *, force: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file, "put_in_place", fail)
    assert run(tmp_path / "new" / "newer").exception is not None
    assert names(tmp_path) == []


def test_the_output_must_be_a_folder(tmp_path: Path) -> None:
    """A file in place of the output folder is refused."""
    path = tmp_path / "file"
    path.write_text("mine")
    assert "is not a folder" in str(run(path).exception)
    assert "cannot be created: Not a directory" in str(run(path / "below").exception)
