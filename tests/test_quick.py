"""`make quick` skips exactly the tests in its table."""

from __future__ import annotations

from conftest import SLOW, TESTS, is_slow


def test_the_table_names_files_and_folders_that_exist() -> None:
    """Every row of the table of slow tests names an existing file or folder."""
    assert [name for name in sorted(SLOW) if not (TESTS / name).exists()] == []


def test_a_folder_of_the_table_is_slow_as_a_whole() -> None:
    """A folder in the table is slow with all its files; other files are not."""
    assert is_slow(TESTS / "cli" / "test_main.py")
    assert is_slow(TESTS / "test_fuzz.py")
    assert not is_slow(TESTS / "test_text.py")
