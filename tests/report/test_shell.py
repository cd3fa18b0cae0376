"""Commands to paste."""

from __future__ import annotations

from pathlib import Path

from qnnmem.report.shell import output_words


def test_a_recommended_file_is_a_new_one(tmp_path: Path) -> None:
    """A suggested output file does not exist yet, so the command neither fails nor overwrites."""
    wanted = tmp_path / "model.bin"
    assert output_words(str(wanted)) == ("-o", str(wanted))
    wanted.touch()
    (tmp_path / "model-2.bin").symlink_to("nowhere")
    assert output_words(str(wanted)) == ("-o", str(tmp_path / "model-3.bin"))
