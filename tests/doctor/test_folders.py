"""Untrusted folders of logs: pipes, devices, links and unreadable files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, sentence, verb

from qnnmem.doctor.folder import LeftOut, files_in, open_regular, reason
from qnnmem.doctor.logs import source
from qnnmem.doctor.logs.source import find_logs, find_streams, open_part, size_of
from qnnmem.errors import LoadError, UsageError

doctor = verb("doctor")
FAILING = "E QnnDsp: graph requires estimated allocation of 4194304 KB, limit is 3670016 KB\n"
HEALTHY = "QNN is well\n"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one healthy log, below the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(HEALTHY)
    return tmp_path / "logs"


def files(names: list[str]) -> list[str]:
    """Return every file that would be read."""
    return [part for stream in find_streams(names) for part in stream.parts]


def test_what_is_no_file_is_left_out_and_said(logs: Path) -> None:
    """Pipes, devices and broken links are skipped without waiting, each with a note."""
    os.mkfifo(logs / "pipe.log")
    (logs / "zero.log").symlink_to("/dev/zero")
    (logs / "piped.log").symlink_to("pipe.log")
    (logs / "gone.log").symlink_to("nowhere")
    (logs / "circle.log").symlink_to("circle.log")
    (logs / "around").symlink_to(".")
    done = doctor("logs")
    assert exit_code(done) == 0
    assert done.output.startswith("healthy: no known failure in 1 line")
    assert [line for line in done.output.splitlines() if line.startswith("note: ")] == [
        "note: skipped: logs/circle.log: a broken link",
        "note: skipped: logs/gone.log: a broken link",
        "note: skipped: logs/pipe.log: a pipe",
        "note: skipped: logs/piped.log: a link to a pipe",
        "note: skipped: logs/zero.log: a link to a device",
    ]
    notes = json.loads(doctor("logs", "--json").output)["notes"]
    assert len(notes) == 5
    assert "note: skipped: logs/pipe.log: a pipe" in doctor("logs", "--group-by", "cause").output
    assert "logs/pipe.log: a pipe" in doctor("logs", "--format", "markdown").output
    assert "logs/pipe.log: a pipe" in doctor("logs", "--format", "sarif").output


def test_what_has_no_name_of_a_log_is_only_counted(logs: Path) -> None:
    """Pipes and broken links without a log's name are only counted."""
    os.mkfifo(logs / "pipe.json")
    (logs / ".gone").symlink_to("nowhere")
    found = find_logs(["logs"])
    assert found.notes == ("skipped: files in logs that are not named like logs: 2",)
    assert not found.unread


def test_what_changes_during_the_look_is_said(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that cannot be followed counts as unread; a vanished pipe does not."""
    os.mkfifo(logs / "pipe.log")
    (logs / "link.log").symlink_to("a.log")
    refuse(monkeypatch, os, "stat", "link.log")
    refuse(monkeypatch, os, "lstat", "pipe.log")
    found = [one for one in files_in("logs", below=True) if isinstance(one, LeftOut)]
    monkeypatch.undo()
    assert found == [
        LeftOut("logs/link.log", "Permission denied", unread=True),
        LeftOut("logs/pipe.log", "Permission denied", unread=False),
    ]


def test_reasons_are_few_words() -> None:
    """A reason is the text of the system or of Python, or else the error type."""
    errors = (FileNotFoundError(2, "x"), OSError(13, "No"), ValueError("nul"), OSError())
    assert [reason(error) for error in errors] == ["no such file", "No", "nul", "OSError"]


def test_links_count_for_what_they_lead_to_inside_the_folder(logs: Path, tmp_path: Path) -> None:
    """A link out of the folder is noted and gives exit code 2; a link inside is read."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "failing.log").write_text(FAILING)
    (logs / "same.log").symlink_to("a.log")
    (logs / "file.log").symlink_to(tmp_path / "secret" / "failing.log")
    (logs / "folder").symlink_to("../secret")
    assert files(["logs"]) == ["logs/a.log", "logs/same.log"]
    done = doctor("logs")
    assert exit_code(done) == 2
    assert done.output.startswith("not all logs could be read; no known failure in 2 lines")
    assert done.output.count("a link out of the folder; name its target instead") == 2
    assert exit_code(doctor("logs/file.log")) == 1  # a path given by name may be a link
    assert exit_code(doctor("logs/folder")) == 1


def test_a_folder_that_is_itself_a_link_is_read(logs: Path, tmp_path: Path) -> None:
    """A folder that is itself a link is read."""
    (tmp_path / "linked").symlink_to("logs")
    (logs / "same.log").symlink_to("a.log")
    assert files(["linked"]) == ["linked/a.log", "linked/same.log"]


def refuse(monkeypatch: pytest.MonkeyPatch, module: Any, call: str, name: str) -> None:
    """Make a system call fail for one path, as for users without root rights."""
    real = getattr(module, call)

    def refused(path: Any, *values: Any, **more: Any) -> Any:
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *values, **more)

    monkeypatch.setattr(module, call, refused)


def test_an_unreadable_subfolder_is_not_healthy(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable subfolder gives exit code 2, unless an incident is found."""
    (logs / "sub.json").mkdir()
    (logs / "sub.json" / "failing.log").write_text(FAILING)
    assert exit_code(doctor("logs")) == 1
    refuse(monkeypatch, os, "scandir", "sub.json")
    done = doctor("logs")
    assert exit_code(done) == 2
    assert "note: skipped: logs/sub.json: Permission denied" in done.output
    (logs / "b.log").write_text(FAILING)
    assert exit_code(doctor("logs")) == 1  # an incident takes precedence over an unread file


def test_an_unreadable_file_is_not_healthy(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable file gives exit code 2, in a folder and by name."""
    (logs / "b.log").write_text(FAILING)
    refuse(monkeypatch, os, "open", "b.log")
    done = doctor("logs")
    assert exit_code(done) == 2
    assert "note: skipped: logs/b.log: Permission denied" in done.output
    assert sentence(doctor("logs/b.log")) == "logs/b.log: Permission denied"


def test_an_unreadable_folder_is_refused(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable folder is refused with its reason."""
    refuse(monkeypatch, os, "scandir", "logs")
    done = doctor("logs")
    assert (exit_code(done), sentence(done)) == (2, "logs: Permission denied")


def test_a_folder_of_pipes_alone_is_refused(tmp_path: Path) -> None:
    """A folder with only pipes is refused, and the message names them."""
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(UsageError, match=r"no log in .*; skipped: .*pipe.log: a pipe"):
        find_logs([str(tmp_path)])


def test_names_that_are_no_logs_are_counted(logs: Path) -> None:
    """Files without a log's name are counted as skipped."""
    (logs / "x.json").write_text(FAILING)
    (logs / ".hidden").write_text(FAILING)
    assert find_logs(["logs"]).notes == ("skipped: files in logs that are not named like logs: 2",)


def test_so_many_files_and_no_more(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the limit of files is read, one more is refused; pipes count, other names do not."""
    monkeypatch.setattr(source, "_MAX_FILES", 4)
    (logs / "sub").mkdir()
    for name in ("b.log", "sub/c.log"):
        (logs / name).write_text(HEALTHY)
    os.mkfifo(logs / "pipe.log")
    (logs / "x.png").write_text("")
    assert len(files(["logs"])) == 3
    (logs / "sub" / "d.log").write_text(HEALTHY)
    with pytest.raises(UsageError, match=r"^logs: more than 4 files$"):
        find_logs(["logs"])


def test_many_things_left_out_are_counted(logs: Path) -> None:
    """Of 50 broken links, 20 are noted and the others are counted."""
    for number in range(50):
        (logs / f"gone{number}.log").symlink_to("nowhere")
    notes = find_logs(["logs"]).notes
    assert len(notes) == 21
    assert notes[-1] == "skipped: 30 more"


def test_a_file_that_is_swapped_for_a_pipe_is_not_waited_for(logs: Path) -> None:
    """A file replaced by a pipe after the listing is refused, not waited for."""
    (stream,) = find_logs(["logs"]).streams
    assert not stream.named
    (logs / "a.log").unlink()
    os.mkfifo(logs / "a.log")
    with pytest.raises(LoadError, match="a pipe"):
        open_part(stream.parts[0], stream.named)
    with pytest.raises(LoadError, match="is a folder"):
        open_regular("logs")
    assert size_of("logs/a.log") is None


@pytest.mark.parametrize("words", [[], ["--jobs", "2"]], ids=["alone", "jobs"])
def test_a_pipe_that_is_named_is_read(tmp_path: Path, words: list[str]) -> None:
    """A named pipe given as an argument is read, alone and with workers."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(FAILING,), daemon=True)
    writer.start()
    done = doctor(pipe, *words)
    writer.join(300)
    assert exit_code(done) == 1


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/urandom", "file:///dev/zero"])
def test_a_device_that_is_named_is_refused(name: str) -> None:
    """A device is refused, as it has no end; /dev/null is an empty log."""
    done = doctor(name)
    assert (exit_code(done), sentence(done)) == (2, f"{name}: a device, not a log")
    assert exit_code(doctor("/dev/null")) == 0


def test_a_device_as_standard_input_is_refused() -> None:
    """A device as standard input is refused."""
    command = [sys.executable, "-m", "qnnmem", "doctor", "-"]
    with Path("/dev/zero").open("rb") as zero:
        done = subprocess.run(command, stdin=zero, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "qnnmem: -: a device, not a log\n")


def test_a_folder_behind_a_file_url_is_a_folder(logs: Path) -> None:
    """A file:// URL of a folder is read as a folder, with pipes skipped."""
    os.mkfifo(logs / "pipe.log")
    found = find_logs([f"file://{logs}/"])
    assert [stream.parts for stream in found.streams] == [(f"file://{logs}/a.log",)]
    assert found.notes == (f"skipped: {logs}/pipe.log: a pipe",)


@pytest.mark.parametrize(
    "url", ["foo://x", "foo://x/", "s3:/x://", "github://a", "data:///x", "zip://a::file:///nope"]
)
def test_a_url_that_nothing_opens_is_one_sentence(url: str) -> None:
    """A URL that cannot be opened gives exit code 2 and a sentence with the URL."""
    pytest.importorskip("fsspec")
    done = doctor(url)
    assert exit_code(done) == 2
    assert url in sentence(done)


class Odd(Exception):
    """An unknown exception class."""


def test_a_store_that_breaks_while_reading_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown error while reading a URL gives exit code 2 and one sentence."""
    fsspec = pytest.importorskip("fsspec")

    class Breaking:
        def read(self, _count: int) -> bytes:
            raise Odd("the line is dead")

        def seekable(self) -> bool:
            return False

        def close(self) -> None:
            raise Odd("closing too")

    class Opened:
        def open(self) -> Breaking:
            return Breaking()

    monkeypatch.setattr(fsspec, "open", lambda *_: Opened())
    done = doctor("odd://x")
    assert (exit_code(done), sentence(done)) == (2, "odd://x: the line is dead")


def test_files_of_a_folder_alone(logs: Path) -> None:
    """A knowledge folder is read without its subfolders."""
    (logs / "deeper").mkdir()
    (logs / "deeper" / "b.log").write_text(HEALTHY)
    assert list(files_in(str(logs), below=False)) == [f"{logs}/a.log"]
    assert len(list(files_in(str(logs), below=True))) == 2
