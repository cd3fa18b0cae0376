"""Ctrl-C, SIGTERM and SIGHUP: the program ends by the signal and leaves nothing behind."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qnnmem

ROWS = "id,lower,upper,size\na,0,3,4\nb,2,6,4\n"
SOURCE = Path(qnnmem.__file__).parents[1]
LOG = Path(__file__).parents[2] / "examples" / "graph_limit.log"
# `work` replaces the loading of the model in `qnnmem plan -o out.txt`.
PROGRAM = """
import os, signal, sys, tempfile, time
import qnnmem.cli, qnnmem.loader
def send(name): os.kill(os.getpid(), getattr(signal, name))
{work}
qnnmem.loader.load = work
sys.argv = ["qnnmem", "plan", "buffers.csv", "-o", "out.txt"]
qnnmem.cli.main()
"""


def start(work: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program with `work` in place of the loader; temporary files go to the folder."""
    (folder / "buffers.csv").write_text(ROWS)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(work=work)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{folder}", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def left(folder: Path) -> list[str]:
    """Return the files besides the input."""
    return sorted(path.name for path in folder.iterdir() if path.name != "buffers.csv")


IN_A_FOLDER = """
def work(*a, **k):
    with tempfile.TemporaryDirectory():
        send({name!r})
        time.sleep(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_unwinds_the_work(name: str, tmp_path: Path) -> None:
    """The process ends by the signal, and its temporary folder is removed."""
    done = start(IN_A_FOLDER.format(name=name), tmp_path)
    assert (done.returncode, done.stderr) == (-getattr(signal, name), "")
    assert left(tmp_path) == []


def test_a_folder_that_is_still_held_goes_too(tmp_path: Path) -> None:
    """A temporary folder that is still referenced is removed, too."""
    work = """
def work(*a, **k):
    sys.held = tempfile.TemporaryDirectory()
    send("SIGTERM")
    time.sleep(60)
"""
    assert start(work, tmp_path).returncode == -signal.SIGTERM
    assert left(tmp_path) == []


def test_a_signal_while_a_file_is_written_leaves_no_part_of_it(tmp_path: Path) -> None:
    """A signal during a write leaves neither the file nor its temporary copy."""
    work = """
from qnnmem import atomic_file
fill = atomic_file._fill
def slow(temporary, pieces):
    fill(temporary, pieces)
    assert temporary.exists()
    send("SIGTERM")
    time.sleep(60)
atomic_file._fill = slow
work = qnnmem.loader.load
"""
    assert start(work, tmp_path).returncode == -signal.SIGTERM
    assert left(tmp_path) == []


def test_a_second_interrupt_does_not_disturb_the_clean_up(tmp_path: Path) -> None:
    """A second signal does not interrupt the clean-up."""
    work = """
class Folder(tempfile.TemporaryDirectory):
    def cleanup(self):
        send("SIGINT"); send("SIGTERM")
        super().cleanup()
def work(*a, **k):
    with Folder():
        send("SIGINT")
        time.sleep(60)
"""
    done = start(work, tmp_path)
    assert (done.returncode, done.stderr) == (130, "\nqnnmem: interrupted\n")
    assert left(tmp_path) == []


def test_an_import_is_not_interrupted_half_way(tmp_path: Path) -> None:
    """An import finishes before an interrupt, as a half-loaded extension may crash."""
    (tmp_path / "delicate.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(0.1)\nprint('whole', flush=True)\n"
    )
    work = """
def work(*a, **k):
    import delicate
    time.sleep(60)
"""
    done = start(work, tmp_path)
    assert (done.returncode, done.stdout) == (130, "whole\n")
    assert done.stderr == "\nqnnmem: interrupted\n"


def test_an_import_that_never_ends_is_interrupted(tmp_path: Path) -> None:
    """An endless import is interrupted after a delay."""
    (tmp_path / "endless.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(300)\n"
    )
    assert start("def work(*a, **k): import endless", tmp_path).returncode == 130


@pytest.mark.parametrize(
    "work",
    [
        # Python cannot raise in a destructor and only prints a warning.
        "class Last:\n"
        "    def __del__(self): send('SIGINT'); time.sleep(0.1)\n"
        "def work(*a, **k): Last(); time.sleep(60)\n",
        # A library replaces the exception.
        "def work(*a, **k):\n"
        "    try: send('SIGINT'); time.sleep(60)\n"
        "    except BaseException: raise ImportError('half there') from None\n",
        "def work(*a, **k):\n"
        "    try: send('SIGINT'); time.sleep(60)\n"
        "    except BaseException: raise SystemError('no result') from None\n",
    ],
    ids=["destructor", "ImportError", "SystemError"],
)
def test_an_interrupt_that_got_lost_still_counts(work: str, tmp_path: Path) -> None:
    """An interrupt that is swallowed or replaced still gives exit code 130 and one line."""
    done = start(work, tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "qnnmem: interrupted")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """An ignored signal stays ignored, as under `nohup` or in a shell's background job."""
    work = "work = qnnmem.loader.load"
    (tmp_path / "buffers.csv").write_text(ROWS)
    program = PROGRAM.format(work=work).replace(
        "qnnmem.cli.main()",
        "from qnnmem.cli import signals\n"
        "signals.unwinding(lambda asked: [send('SIGHUP'), send('SIGINT'), 0][-1])\n"
        "print('done')",
    )
    ignored = "import signal\nfor n in (1, 2): signal.signal(n, signal.SIG_IGN)\n"
    done = subprocess.run(
        [sys.executable, "-c", ignored + program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_the_package_leaves_signals_alone() -> None:
    """Importing the package changes no signal handler."""
    program = (
        "import signal, sys, qnnmem, qnnmem.cli, qnnmem.cli.verbs\n"
        "qnnmem.plan, qnnmem.load, qnnmem.lpai\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "names = ('SIGTERM', 'SIGHUP', 'SIGALRM')\n"
        "assert {signal.getsignal(getattr(signal, n)) for n in names} == {signal.SIG_DFL}\n"
        "assert sys.unraisablehook is sys.__unraisablehook__\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", [("plan", "buffers.csv"), ("doctor", str(LOG))])
def test_a_signal_at_any_time(verb: tuple[str, ...], number: int, tmp_path: Path) -> None:
    """A signal at any time ends the program cleanly or comes after its end."""
    (tmp_path / "buffers.csv").write_text(ROWS)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    # While Python starts, its own handler ends the process with 1 or by the signal.
    codes = {0, 1, 130, -signal.SIGINT} if number == signal.SIGINT else {0, 1, -signal.SIGTERM}
    for delay in (0.0, 0.06, 0.1, 0.15, 0.25):
        command = [sys.executable, "-m", "qnnmem", *verb, "-o", "out.txt", "--force"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        time.sleep(delay)
        process.send_signal(number)
        said = process.communicate()[1]
        assert process.returncode in codes, said
        assert set(left(tmp_path)) <= {"out.txt"}


# The signal arrives just before a folder is removed, with or without an earlier error.
TORN = """
import pathlib, shutil
from qnnmem import atomic_file
from qnnmem.errors import UsageError
def torn(owner, name):
    old = getattr(owner, name)
    def new(*a, **k):
        send({name!r})
        return old(*a, **k)
    setattr(owner, name, new)
torn(pathlib.Path, "rmdir")
torn(shutil, "rmtree")
def work(*a, **k):
    with {folder}:
        {end}
    time.sleep(60)
"""
FOLDERS = {
    "temporary": "tempfile.TemporaryDirectory()",
    "for output": "atomic_file.folder_for_output(pathlib.Path('made/here'))",
}


@pytest.mark.parametrize("end", ["pass", "raise UsageError('no')"])
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_clean_up_is_not_torn_by_a_signal(name: str, folder: str, end: str, tmp_path: Path) -> None:
    """A signal during the removal of a folder waits until the folder is gone."""
    done = start(TORN.format(name=name, folder=FOLDERS[folder], end=end), tmp_path)
    assert done.returncode == (130 if name == "SIGINT" else -signal.SIGTERM), done.stderr
    assert left(tmp_path) == []


def test_a_signal_that_was_put_off_comes_when_the_work_is_over(tmp_path: Path) -> None:
    """A deferred signal that arrives at the end of the work still gives exit code 130."""
    work = """
def slow(which, seconds, again=sys.modules["_signal"].setitimer):
    if not seconds: time.sleep(0.1)
    again(which, seconds)
sys.modules["_signal"].setitimer = slow
"""
    torn = TORN.format(name="SIGINT", folder=FOLDERS["for output"], end="raise UsageError('no')")
    done = start(work + torn, tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "qnnmem: interrupted")
    assert left(tmp_path) == []


def test_an_interrupt_is_not_lost_twice(tmp_path: Path) -> None:
    """A second interrupt while the first is being recorded is not lost."""
    work = """
class Last:
    def __del__(self): send("SIGINT"); time.sleep(0.1)
def work(*a, **k):
    module = sys.modules["_signal"]
    again = module.setitimer
    def slow(*a):
        module.setitimer = again
        again(*a)
        time.sleep(0.1)
    module.setitimer = slow
    Last()
    time.sleep(60)
"""
    done = start(work, tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "qnnmem: interrupted")


def test_next_to_nothing_is_imported_before_signals_are_taken() -> None:
    """Only a few modules are imported before the signal handlers are set, to avoid tracebacks."""
    program = (
        "import sys; before = set(sys.modules)\n"
        "import qnnmem.cli.signals\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    loaded = set(ast.literal_eval(done.stdout))
    ours = {"qnnmem", "qnnmem.version", "qnnmem.cli", "qnnmem.cli.signals"}
    assert loaded <= {*ours, "__future__", "atexit"}  # atexit is part of the interpreter
