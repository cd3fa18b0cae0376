"""A child process ends with its parent, however the parent ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qnnmem

PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from qnnmem.child import ChildProcess
from qnnmem.wire import ChildFailure
with ChildProcess("endless", 600) as child:
    print(child.receive(ChildFailure)[0].sentence, flush=True)
    time.sleep(600)
"""
# This child never reads, writes or releases the interpreter.
ENDLESS = """
import os, re
from qnnmem.child import open_replies
from qnnmem.wire import ChildFailure, write_frame
write_frame(open_replies(), ChildFailure(str(os.getpid())))
re.match("(a*)*b", "a" * 60)
"""


def is_alive(pid: int) -> bool:
    """True if the process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """A child ends with its killed parent, even if native code keeps the child busy."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    environment = {**os.environ, "PYTHONPATH": str(Path(qnnmem.__file__).parents[1])}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    until = time.monotonic() + 60
    while is_alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_alive(child)
