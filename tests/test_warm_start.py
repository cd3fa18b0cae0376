"""Children that tests fork behave like the children that users start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qnnmem.child
from qnnmem.child import ChildProcess
from qnnmem.errors import UsageError
from qnnmem.wire import ChildFailure, Done

warm_start = pytest.importorskip("warm_start", reason="needs Linux", exc_type=ImportError)
WarmProcess = warm_start.WarmProcess
PROGRAM = "qnnmem.loader.onnx.trial_program"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks with /proc to look at")


def facts(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the system's data about a child that has answered once."""
    place = Path(f"/proc/{process.pid}")
    descriptors = (place / "fd").iterdir()
    limits = [line.split() for line in (place / "limits").read_text("ascii").splitlines()]
    return {
        "session": os.getsid(process.pid) == process.pid == os.getpgid(process.pid),
        "folder": (place / "cwd").readlink().name,
        "threads": len(list((place / "task").iterdir())),
        "descriptors": sorted(str(one.readlink()).split(":")[0] for one in descriptors),
        "limits": [line[:4] for line in limits if line[1] in ("address", "core", "open")],
    }


@pytest.fixture(autouse=True)
def _own_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test its own fork servers and initial limits."""
    monkeypatch.setattr(warm_start, "_SERVERS", {})
    monkeypatch.setattr(warm_start, "_SEEN", set())
    monkeypatch.setattr(warm_start, "_LIMITS_AT_FIRST", warm_start._limits())
    with ChildProcess(PROGRAM, 60.0) as first:
        assert not isinstance(first._process, WarmProcess)
    yield
    warm_start.end_server()


def test_warm_and_cold_children_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked and fresh children have the same session, folder, descriptors, limits and end."""
    found = []
    for start in (warm_start.start, warm_start.cold_start):
        monkeypatch.setattr(qnnmem.child, "start", start)
        with ChildProcess(PROGRAM, 60.0) as child:
            child.send(Done())
            answer = child.receive(ChildFailure)
            process = child._process
            found.append((answer, facts(process)))
            assert process.poll() is None
        assert process.returncode == process.wait() == -9
        assert isinstance(process, WarmProcess) == (start is warm_start.start)
    assert found[0] == found[1]


def test_a_child_that_ends_says_how() -> None:
    """A forked child reports its exit code after it ends, and none before."""
    with ChildProcess(PROGRAM, 60.0) as child:
        process = child._process
        assert isinstance(process, WarmProcess)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60.0) == 0


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"environment": {"PYTHONOPTIMIZE": "1"}}, id="environment"),
        pytest.param({"module": "limited_child"}, id="module"),
    ],
)
def test_an_unusual_start_is_a_real_one(change: dict[str, Any]) -> None:
    """A start with another environment or program is not forked."""
    chosen: dict[str, Any] = {"module": PROGRAM, "time_limit_s": 60.0, **change}
    with ChildProcess(**chosen) as child:
        assert not isinstance(child._process, WarmProcess)


def test_other_settings_have_a_server_of_their_own() -> None:
    """A second start with the same settings is forked, by its own server."""
    more = {"PYTHONHASHSEED": "0"}
    for kind in (False, True):
        with ChildProcess(PROGRAM, 60.0, environment=more) as child:
            assert isinstance(child._process, WarmProcess) is kind
    with ChildProcess(PROGRAM, 60.0) as child:
        assert isinstance(child._process, WarmProcess)
    assert len(warm_start._SERVERS) == 2


def test_a_start_that_is_refused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that the test makes fail also fails with the fork server."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(UsageError, match="no child process can be started"):
        ChildProcess(PROGRAM, 60.0)
