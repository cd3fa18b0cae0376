"""Ctrl-C, SIGTERM and SIGHUP: the program ends as asked and leaves nothing behind."""

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
# `work` takes the place of reading the model, in the middle of `qnnmem plan -o out.txt`.
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
    """Run the program with this work in it; temporary files go to the same folder."""
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
    """What is there besides the input."""
    return sorted(path.name for path in folder.iterdir() if path.name != "buffers.csv")


IN_A_FOLDER = """
def work(*a, **k):
    with tempfile.TemporaryDirectory():
        send({name!r})
        time.sleep(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_unwinds_the_work(name: str, tmp_path: Path) -> None:
    """Whoever waits sees the signal; temporary files are gone."""
    done = start(IN_A_FOLDER.format(name=name), tmp_path)
    assert (done.returncode, done.stderr) == (-getattr(signal, name), "")
    assert left(tmp_path) == []


def test_a_folder_that_is_still_held_goes_too(tmp_path: Path) -> None:
    """By a thread or a circle of objects; a death by a signal asks nobody."""
    work = """
def work(*a, **k):
    sys.held = tempfile.TemporaryDirectory()
    send("SIGTERM")
    time.sleep(60)
"""
    assert start(work, tmp_path).returncode == -signal.SIGTERM
    assert left(tmp_path) == []


def test_a_signal_while_a_file_is_written_leaves_no_part_of_it(tmp_path: Path) -> None:
    """Neither under its name nor under the temporary one."""
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
    """Twice quickly is as good as once."""
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
    """An extension module that is half there may crash the process."""
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
    """After a while Ctrl-C counts there too."""
    (tmp_path / "endless.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(300)\n"
    )
    assert start("def work(*a, **k): import endless", tmp_path).returncode == 130


@pytest.mark.parametrize(
    "work",
    [
        # Python cannot raise in a destructor, and would only complain.
        "class Last:\n"
        "    def __del__(self): send('SIGINT'); time.sleep(0.1)\n"
        "def work(*a, **k): Last(); time.sleep(60)\n",
        # What a library makes of it.
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
    """Exit code 130 and one line, whatever became of the exception on its way."""
    done = start(work, tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "qnnmem: interrupted")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As `nohup` wants it, and a shell for jobs in the background."""
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
    """They belong to whoever uses it."""
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
    """The program ends by it or has ended before; no fault of ours, no crash, nothing left."""
    (tmp_path / "buffers.csv").write_text(ROWS)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    # While Python itself starts, Ctrl-C is Python's, which then ends with 1 or by the signal.
    codes = {0, 1, 130, -signal.SIGINT} if number == signal.SIGINT else {0, 1, -signal.SIGTERM}
    for delay in (0.0, 0.06, 0.1, 0.15, 0.25):
        command = [sys.executable, "-m", "qnnmem", *verb, "-o", "out.txt", "--force"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        time.sleep(delay)
        process.send_signal(number)
        said = process.communicate()[1]
        assert process.returncode in codes, said
        assert set(left(tmp_path)) <= {"out.txt"}


# The signal comes when a folder is about to be taken away, with and without an error before it.
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
    """It waits until the folder is gone."""
    done = start(TORN.format(name=name, folder=FOLDERS[folder], end=end), tmp_path)
    assert done.returncode == (130 if name == "SIGINT" else -signal.SIGTERM), done.stderr
    assert left(tmp_path) == []


def test_a_signal_that_was_put_off_comes_when_the_work_is_over(tmp_path: Path) -> None:
    """On a slow machine the program is already on its way out; that is no time to raise."""
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
    """On a slow machine the second one comes while the first is being noted as lost."""
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
    """Before that, Ctrl-C is Python's, which prints a traceback."""
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
    assert loaded <= {*ours, "__future__", "atexit"}  # the last is a part of the interpreter
