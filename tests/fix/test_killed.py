"""A fix that is killed leaves nothing half done, and the next run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fix_samples import wide_picture

from qnnmem import scratch_folder
from qnnmem.cli.fix_output import FixTargets, fix_folder, write_fixed
from qnnmem.errors import OutputError

TOOL = Path(__file__).parents[2] / "tools" / "kill_fix.py"
posix = pytest.mark.skipif(os.name != "posix", reason="forks and kills")


@posix
def test_kills_at_any_moment(tmp_path: Path) -> None:
    """Half of them at a random moment, half just before a file gets its name."""
    model = wide_picture(tmp_path / "wide.onnx")
    words = ["--kills", "6", "--model", str(model), "--", "--dim", "batch=1"]
    done = subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["nothing was wrong"], done.stdout + done.stderr


def left_by_a_kill(folder: Path) -> tuple[Path, ...]:
    """What a run leaves that is killed after the first of three files has its name."""
    folder.mkdir()
    targets = FixTargets.of(folder, "a")
    targets.recipe.write_text("{}")
    for target in targets[1:]:
        (folder / f".{target.name}.{'0' * 16}").write_text("half")
    return targets


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """Its recipe is not in the way: the model that it belongs to never came."""
    targets = left_by_a_kill(tmp_path / "out")
    with fix_folder(tmp_path / "out", targets, force=False):
        write_fixed(dict.fromkeys(targets, b"whole"), force=False)
    assert sorted((tmp_path / "out").iterdir()) == sorted(targets)


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    """A recipe that somebody kept without its model is replaced with --force only."""
    targets = FixTargets.of(tmp_path, "a")
    targets.recipe.write_text("mine")
    other = tmp_path / ".a.onnx.backup"
    other.write_text("mine, too")
    with pytest.raises(OutputError), fix_folder(tmp_path, targets, force=False):
        pass
    assert (targets.recipe.read_text(), other.read_text()) == ("mine", "mine, too")


@posix
def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    """While another run writes there, nothing is tidied."""
    targets = left_by_a_kill(tmp_path / "out")
    lock = scratch_folder.lock_folder(tmp_path / "out")
    assert lock is not None
    with pytest.raises(OutputError), fix_folder(tmp_path / "out", targets, force=False):
        pass
    os.close(lock)
    assert len(list((tmp_path / "out").iterdir())) == 3


@posix
def test_abandoned_scratch_folders_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that nobody holds, after a while; not those in use, and not those of others."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old = {name: tmp_path / name for name in ("qnnmem-dead", "qnnmem-held", "other-dead")}
    for folder in old.values():
        folder.mkdir()
        os.utime(folder, (time.time() - 60,) * 2)
    (tmp_path / "qnnmem-new").mkdir()
    lock = scratch_folder.lock_folder(old["qnnmem-held"])
    scratch_folder._remove_abandoned.cache_clear()
    with scratch_folder.scratch_folder() as own:
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"qnnmem-held", "other-dead", "qnnmem-new", Path(own).name}
    assert lock is not None
    os.close(lock)
