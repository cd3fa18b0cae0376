"""The program as a process: exit codes, streams and pipes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import qnnmem.cli
from qnnmem.collector import collector_paused

LIST = Path(__file__).parents[2] / "examples" / "keyword_spotting.csv"
ROWS = "id,lower,upper,size\na,0,3,4\nb,2,6,4\n"


def run(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Start the program and return the finished process."""
    command = [sys.executable, "-m", "qnnmem", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=False, cwd=folder
    )


def buffers(folder: Path, content: str = ROWS) -> Path:
    """Write a small list of buffers."""
    path = folder / "buffers.csv"
    path.write_text(content, "utf-8")
    return path


def test_a_plan_goes_to_standard_output(tmp_path: Path) -> None:
    """Standard output holds only the plan, and standard error is empty."""
    done = run("plan", buffers(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("scratch 8 bytes, proven minimal for these lifetimes\n")


def test_what_does_not_fit_ends_with_1(tmp_path: Path) -> None:
    """`does not fit` is an answer: standard output holds it, and the exit code is 1."""
    done = run("plan", buffers(tmp_path), "--capacity", "7")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("does not fit: scratch needs at least 8 bytes, 1 more than 7\n")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "empty.onnx"),
        (b"", "empty.tflite"),
        (bytes(range(256)) * 8, "random.onnx"),
        (bytes(range(256)) * 8, "random.tflite"),
        (bytes(range(256)) * 8, "random.eaix"),
        (bytes(range(256)) * 8, "random.csv"),
        (bytes(range(1, 256)) * 8, "random"),
        (b'{"graphs": [', "cut.eaix"),
        (b"id,lower,upper,size\na,0,3", "cut.csv"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00", "cut.tflite"),
        (b"\x08\x08:\xff\x01", "cut.onnx"),
    ],
)
def test_an_unreadable_file_ends_with_2_and_one_sentence(
    content: bytes, name: str, tmp_path: Path
) -> None:
    """An unreadable file gives exit code 2, one line on standard error and no traceback."""
    path = tmp_path / name
    path.write_bytes(content)
    done = run("plan", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"qnnmem: {path}")
    assert done.stderr.count("\n") == 1


def test_help_names_the_exit_codes() -> None:
    """`-h` describes the program and its exit codes."""
    done = run("-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: qnnmem ")
    assert "Exit codes: 0 fits, 1 does not fit" in done.stdout


def test_the_version_is_that_of_the_package() -> None:
    """`--version` prints the program name and the package version."""
    assert run("--version").stdout == f"qnnmem {qnnmem.__version__}\n"


def test_both_ways_to_start_are_the_same_program() -> None:
    """`python -m qnnmem.cli` does what `python -m qnnmem` does."""
    command = [sys.executable, "-m", "qnnmem.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_a_reader_that_stops_reading_is_no_error(form: str, tmp_path: Path) -> None:
    """A closed pipe ends the output silently with exit code 0."""
    rows = "".join(f"buffer {i},{i},{i + 2},{i}\n" for i in range(5000))
    path = buffers(tmp_path, f"id,lower,upper,size\n{rows}")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "qnnmem", "plan", str(path), "--format", form]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", [("--help",), ("plan", "--help"), ("--version",), ()])
def test_a_reader_of_the_help_that_is_gone_is_no_error(words: tuple[str, ...]) -> None:
    """A closed pipe does not change the exit code of help, which click would make 1."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "qnnmem", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no full device")
def test_a_full_disk_behind_standard_output_is_said(tmp_path: Path) -> None:
    """A full disk behind standard output gives exit code 2 and a reason."""
    command = [sys.executable, "-m", "qnnmem", "plan", str(buffers(tmp_path))]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == ("qnnmem: standard output cannot be written: No space left on device\n")


def test_a_terminal_never_gets_what_a_name_hides(tmp_path: Path) -> None:
    """On a terminal, CSV output replaces bidirectional control characters in names."""
    import pty

    path = buffers(tmp_path, "id,lower,upper,size\n\u202ered,0,1,4\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "qnnmem", "plan", str(path), "--format", "csv"]
    subprocess.run(command, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert shown.replace("\r\n", "\n") == "id,lower,upper,size,offset\n\ufffdred,0,1,4,0\n"


def test_a_broken_pipe_does_not_change_the_answer(tmp_path: Path) -> None:
    """A broken pipe keeps exit code 1 of a plan that does not fit."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "qnnmem", "plan", str(buffers(tmp_path)), "--capacity", "7"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_pipe_gets_the_names_unchanged(tmp_path: Path) -> None:
    """A pipe gets the names in the CSV byte for byte."""
    path = buffers(tmp_path, "id,lower,upper,size\n\u202ered,0,1,4\n")
    assert "\n\u202ered,0,1,4,0\n" in run("plan", path, "--format", "csv").stdout


def test_a_narrow_encoding_is_no_error(tmp_path: Path) -> None:
    """With an ASCII output encoding, other characters are written as escapes."""
    path = buffers(tmp_path, "id,lower,upper,size\né,0,1,4\n")
    command = [sys.executable, "-m", "qnnmem", "plan", str(path), "-v"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert done.stderr == b""
    assert b"\\xe9" in done.stdout


def test_a_file_name_that_is_no_text_is_no_error(tmp_path: Path) -> None:
    """A file name that is not UTF-8 is planned, or refused in one sentence."""
    name = os.fsencode(tmp_path) + b"/\xff\x1b[31m.csv"
    command = [sys.executable.encode(), b"-m", b"qnnmem", b"plan", name]
    missing = subprocess.run(command, capture_output=True, check=False)
    assert missing.returncode == 2
    assert missing.stderr.count(b"\n") == 1
    assert b"\x1b" not in missing.stderr
    Path(os.fsdecode(name)).write_text(ROWS)
    found = subprocess.run(command, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
    assert b"\x1b" not in found.stdout


def test_a_process_that_goes_on_can_collect_its_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `main` returns to a calling program, the garbage collector still frees cycles."""

    class Ring:
        """An object that refers to itself."""

    monkeypatch.setattr(sys, "argv", ["qnnmem", "--version"])
    with collector_paused():
        ring = Ring()
        ring.itself = ring  # type: ignore[attr-defined]
        seen = weakref.ref(ring)
        del ring
        with pytest.raises(SystemExit):
            qnnmem.cli.main()
    gc.collect()
    assert seen() is None


def test_a_process_ends_at_once_after_its_work() -> None:
    """`command` runs the handlers at exit, flushes the output and keeps the exit code."""
    program = (
        "import atexit, sys, qnnmem.cli\n"
        "class Kept:\n"
        "    def __del__(self): print('freed')\n"
        "kept = Kept()\n"
        "def main():\n"
        "    atexit.register(print, 'last work')\n"
        "    sys.exit(3)\n"
        "qnnmem.cli.main = main\n"
        "qnnmem.cli.command()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "last work\n", "")


def test_an_interrupt_ends_with_130(tmp_path: Path) -> None:
    """Ctrl-C prints "interrupted" and gives exit code 130."""
    program = (
        "import qnnmem.cli, qnnmem.loader.dlc, sys\n"
        "def interrupted(*a, **k): raise KeyboardInterrupt\n"
        "qnnmem.loader.load = interrupted\n"
        f"sys.argv = ['qnnmem', 'plan', {str(LIST)!r}]\n"
        "qnnmem.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nqnnmem: interrupted\n")


def test_a_fault_of_our_own_is_told_apart(tmp_path: Path) -> None:
    """An unexpected exception gives exit code 70 and one sentence, without a traceback."""
    program = (
        "import qnnmem.cli, qnnmem.loader.dlc, sys\n"
        "def broken(*a, **k): raise RuntimeError('two\\nlines\\x1b[31m')\n"
        "qnnmem.loader.load = broken\n"
        f"sys.argv = ['qnnmem', 'plan', {str(LIST)!r}]\n"
        "qnnmem.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr.startswith("qnnmem: internal error, please report it: RuntimeError: two")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("raised", "last"),
    [
        ("RuntimeError('a bug')", "qnnmem: internal error, please report it: RuntimeError: a bug"),
        ("qnnmem.errors.UsageError('bad request')", "qnnmem: bad request"),
    ],
)
def test_a_traceback_is_shown_to_those_who_ask_for_it(raised: str, last: str) -> None:
    """QNNMEM_TRACEBACK=1 prints the traceback before the sentence."""
    program = (
        "import qnnmem.cli, qnnmem.errors, qnnmem.loader.dlc, sys\n"
        f"def broken(*a, **k): raise {raised}\n"
        "qnnmem.loader.load = broken\n"
        f"sys.argv = ['qnnmem', 'plan', {str(LIST)!r}]\n"
        "qnnmem.cli.main()"
    )
    for asked, lines in (("1", 3), ("0", 1), ("", 1)):
        environment = {**os.environ, "QNNMEM_TRACEBACK": asked}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        said = done.stderr.splitlines()
        assert said[-1] == last
        assert (said[0] == "Traceback (most recent call last):") == (asked == "1")
        assert len(said) >= lines if asked == "1" else len(said) == lines


@pytest.mark.parametrize(
    "words", [(), *((one,) for one in ("kb", "lpai", "config", "provoke", "completion"))], ids=str
)
def test_no_arguments_mean_help(words: tuple[str, ...]) -> None:
    """The program or a group without arguments prints its help and exits with 0."""
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: qnnmem")
    assert done.stdout.count("\n") > 5


def test_choices_are_listed_in_one_sentence() -> None:
    """An invalid choice is refused in one line that lists the allowed values."""
    done = run("config", "-o", "folder", "--mem-type", "moon")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "qnnmem: --mem-type cannot be 'moon'; it must be ddr or tcm\n"
