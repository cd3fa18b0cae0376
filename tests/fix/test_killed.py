"""A killed `fix` leaves no half-written file, and the next run continues."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fix_samples import wide_picture
from seeds import seeds

from qnnmem import temporary_folder
from qnnmem.errors import OutputError
from qnnmem.verbs.fix import FixFolder, fix_folder

TOOL = Path(__file__).parents[2] / "tests" / "kill_fix.py"
posix = pytest.mark.skipif(os.name != "posix", reason="forks and kills")


@posix
def test_kills_at_any_moment(tmp_path: Path) -> None:
    """`fix` survives kills at random moments and just before a file is renamed."""
    model = wide_picture(tmp_path / "wide.onnx")
    words = ["--kills", str(len(seeds(2))), "--model", str(model), "--", "--dim", "batch=1"]
    done = subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["nothing was wrong"], done.stdout + done.stderr


NAMES = ("a.onnx", "a.report.md", "a.recipe.json")
CONTENTS = dict.fromkeys(NAMES, b"whole")


def left_by_a_kill(folder: Path, content: bytes) -> FixFolder:
    """Return a folder as a killed run leaves it: one file complete, two temporary files."""
    (folder / NAMES[0]).write_bytes(content)
    for name in NAMES[1:]:
        (folder / f".{name}.{'0' * 16}").write_text("half")
    return FixFolder(folder, "a")


def test_the_next_run_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    """The next run keeps identical files and removes temporary ones."""
    place = left_by_a_kill(tmp_path, b"whole")
    with fix_folder(place, NAMES):
        place.write(CONTENTS)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == CONTENTS


def test_what_is_not_the_same_is_not_replaced(tmp_path: Path) -> None:
    """A file with other content is not replaced without --force."""
    place = left_by_a_kill(tmp_path, b"other")
    with fix_folder(place, NAMES), pytest.raises(OutputError, match="already exists"):
        place.write(CONTENTS)
    assert (tmp_path / NAMES[0]).read_bytes() == b"other"
    forced = FixFolder(tmp_path, "a", force=True)
    with fix_folder(forced, NAMES):
        forced.write(CONTENTS)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == CONTENTS


def test_files_of_others_are_in_the_way(tmp_path: Path) -> None:
    """Files of another origin are refused before the search, and stay."""
    (tmp_path / NAMES[0]).write_bytes(b"mine")
    (tmp_path / ".a.recipe.json.backup").write_bytes(b"mine")
    place = FixFolder(tmp_path, "a")
    with pytest.raises(OutputError), fix_folder(place, NAMES):
        raise AssertionError("never here")
    assert len(list(tmp_path.iterdir())) == 2


@posix
def test_abandoned_scratch_folders_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abandoned temporary folders are removed after a while; locked, new and user folders stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, held, new = (f"qnnmem~{end}" for end in ("dead0000", "held0000", "new00000"))
    users = {"other-dead", "qnnmem-notes", "qnnmem-results1", f"{dead}-kept"}
    for name in (dead, held, *users):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - 60,) * 2)
    (tmp_path / new).mkdir()
    lock = temporary_folder.lock_folder(tmp_path / held)
    temporary_folder._remove_abandoned.cache_clear()
    with temporary_folder.temporary_folder() as own:
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {held, new, Path(own).name, *users}
    assert lock is not None
    os.close(lock)
