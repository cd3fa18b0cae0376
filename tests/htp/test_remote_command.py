"""Worker commands come from the variable or the user's file, and errors name their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnmem.errors import NoCompiler, UsageError, WorkerLost
from qnnmem.htp import installed as command
from qnnmem.htp.installed import split_commands, worker_commands
from qnnmem.htp.library import find_libraries, find_library, has_library


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty configuration folder of a user."""
    monkeypatch.delenv("QNNMEM_HTP_WORKER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("APPDATA", str(tmp_path))
    return tmp_path


def configure(folder: Path, text: str) -> None:
    """Write the user's configuration."""
    (folder / "qnnmem").mkdir()
    (folder / "qnnmem" / "config.toml").write_text(text, "utf-8")


def test_without_variable_and_file_the_library_of_this_machine_is_meant() -> None:
    """Without a variable or file, the library of this machine is used."""
    assert worker_commands() == ()


def test_words_are_split_as_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is split like in a shell: quotes keep words together."""
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "ssh box 'cd /x; qnnmem htp-worker'")
    assert worker_commands() == (("ssh", "box", "cd /x; qnnmem htp-worker"),)


def test_a_semicolon_of_its_own_separates_workers() -> None:
    """A separate semicolon separates workers; `local` is this machine."""
    found = split_commands("ssh a qnnmem htp-worker ; local ;", "here")
    assert found == (("ssh", "a", "qnnmem", "htp-worker"), ("local",))


@pytest.mark.parametrize("value", ["'one two'", "['one two']"])
def test_the_file_holds_a_command_or_a_list(nobody: Path, value: str) -> None:
    """The file may contain a command as a string or as a list."""
    configure(nobody, f"htp_worker = {value}")
    assert worker_commands() == (("one", "two"),)


def test_an_empty_variable_goes_before_the_file(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable overrides the configured worker with the library of this machine."""
    configure(nobody, "htp_worker = 'one two'")
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "")
    assert worker_commands() == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [("htp_worker = 3", "a command or a list"), ("htp_worker = ", "not TOML"), ("\xff", "TOML")],
)
def test_a_file_that_cannot_be_read_is_named(nobody: Path, text: str, words: str) -> None:
    """An unreadable configuration file is refused with one sentence that contains its path."""
    (nobody / "qnnmem").mkdir()
    (nobody / "qnnmem" / "config.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=words) as caught:
        worker_commands()
    assert "config.toml" in str(caught.value)


def test_an_open_quote_is_no_command() -> None:
    """An open quote is refused with the name of the variable."""
    with pytest.raises(UsageError, match="VARIABLE is not a valid command: no closing quotation"):
        split_commands("ssh 'box", "VARIABLE")


def test_a_named_worker_counts_as_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured worker counts as a library without a connection; using it reports failures."""
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "no-such-program-anywhere")
    assert has_library()
    with pytest.raises(WorkerLost, match=r"no-such-program-anywhere cannot be started"):
        find_library()


def test_workers_that_do_not_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker that does not answer is skipped with a reason."""
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "no-such-program ; none-either")
    refused: list[Exception] = []
    assert list(find_libraries(refused)) == []  # type: ignore[arg-type]  # a list of its base
    assert [type(one) for one in refused] == [WorkerLost, WorkerLost]


def test_local_is_the_library_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` in a list of workers is the library of this machine."""

    def nowhere() -> None:
        raise NoCompiler("not here")

    monkeypatch.setattr("qnnmem.htp.library.installed_library", nowhere)
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "no-such-program ; local")
    refused: list[Exception] = []
    assert list(find_libraries(refused)) == []  # type: ignore[arg-type]  # as above
    assert str(refused[1]) == "not here"


def test_the_words_for_the_separator_are_those_of_the_code() -> None:
    """The page about remote workers states the separator and the key that the code uses."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "htp-anywhere.md"
    text = page.read_text("utf-8")
    assert f"`{command.SEPARATOR}`" in text
    assert f"{command.KEY} = " in text
