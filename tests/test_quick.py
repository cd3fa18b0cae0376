"""`make quick` leaves out what its table names, and nothing else."""

from __future__ import annotations

from conftest import SLOW, TESTS, is_slow


def test_the_table_names_files_and_folders_that_exist() -> None:
    """A test that moves takes its row along."""
    assert [name for name in sorted(SLOW) if not (TESTS / name).exists()] == []


def test_a_folder_of_the_table_is_slow_as_a_whole() -> None:
    """With the files in it, and no other."""
    assert is_slow(TESTS / "cli" / "test_main.py")
    assert is_slow(TESTS / "test_fuzz.py")
    assert not is_slow(TESTS / "test_text.py")
