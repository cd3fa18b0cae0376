"""The client end of a pipe to a worker: any wrong program gives one sentence."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from remote_workers import bare, fake, program

from qnnmem.errors import NoCompiler, UsageError, WorkerError, WorkerLost
from qnnmem.htp.installed import Library
from qnnmem.htp.remote.client import Connection
from qnnmem.htp.requests import (
    CompareRequest,
    HtpSettings,
    LoadRequest,
    Tick,
    VersionsRequest,
    WaitRequest,
)
from qnnmem.htp.worker import Worker
from qnnmem.version import __version__

linux = pytest.mark.skipif(sys.platform != "linux", reason="the far end is for Linux")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "print('Welcome'); raise SystemExit(3)",
            "ended with status 3; last line of its output: Welcome",
        ),
        (
            "import sys; sys.exit('bash: qnnmem: not found')",
            ("status 1; last line of its output: bash: qnnmem"),
        ),
        (
            "import nowhere",
            "last line of its output: ModuleNotFoundError: No module named 'nowhere'",
        ),
        (
            "print('x' * 200_000)",
            (
                "is not a worker; last line of its output: "
                "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
            ),
        ),
        (
            "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)",
            "echoes its input, so it is not a worker",
        ),
        ("print('\\nqnnmem-htp-worker\\n' + 'Z' * 64)", "sent an unreadable message"),
        ("print('\\nqnnmem-htp-worker\\r\\n', end='')", "through a terminal"),
        ("import time; time.sleep(60)", "did not answer within 0.5 s"),
    ],
)
def test_what_is_no_worker_is_one_sentence(text: str, words: str) -> None:
    """A program that is not a worker gives one sentence with its last output, and exit code 2."""
    start_s = 0.5 if "sleep" in text else 60.0
    if "copyfileobj" in text:  # this program flushes nothing by itself
        text = "import os\nwhile b := os.read(0, 999): os.write(1, b)"
    with pytest.raises(WorkerLost) as caught:
        Connection(program(text), start_s=start_s)
    said = str(caught.value)
    assert words in said
    assert "\n" not in said
    assert caught.value.exit_code == 2


def test_another_protocol_is_refused() -> None:
    """A worker with another protocol is refused, even with the same version."""
    command = fake("read()", __version__)
    text = command[-1].replace('"hello": 2', '"hello": 1')
    with pytest.raises(WorkerError, match=r"protocol 1, but this side uses 2: install the same"):
        Connection((*command[:-1], text))


@pytest.mark.parametrize("version", ["0.0.1", "9.9", "", "x" * 99])
def test_another_version_is_refused(version: str) -> None:
    """A worker with another version is refused, and the message names the version of this side."""
    with pytest.raises(WorkerError, match=f"this side has {__version__}: install the same"):
        Connection(fake("read()", version))


def test_a_worker_without_the_library_says_so() -> None:
    """If the worker has no library, its reason is passed on as NoCompiler."""
    then = "print('', end='')"
    command = fake(then, __version__)
    text = command[-1].replace('"library"', '"missing": "not installed", "library"')
    with pytest.raises(NoCompiler, match="has no library: not installed"):
        Connection((*command[:-1], text))


def ask(then: str) -> Worker:
    """Return a client of a worker that runs this program after its hello."""
    command = fake(then, __version__)
    return Worker(library=Library("2.7.0", "1", Path("/far"), command))


_REPLY = {
    **{"type": "VersionsReply", "provider": "p", "backend_id": 6, "build_id": "b"},
    **{"core_api": [2, 1, 0], "backend_api": [5, 1, 0]},
}
_OUTCOME = {
    **{"type": "RemoteOutcome", "out": "/r/out", "root": "/r"},
    "outcome": {"kind": "done", "reply": _REPLY, "peak_rss": 1, "seconds": 0.5},
}
_SERVE = "read(); send({'type': 'Missing', 'files': []}); read(); "


def changed(**changes: object) -> str:
    """Return a program for a worker that sends an outcome with changed values."""
    outcome = {**_OUTCOME, "outcome": {**_OUTCOME["outcome"], **changes}}  # type: ignore[dict-item]
    return f"{_SERVE}send({outcome})"


def test_an_outcome_is_read() -> None:
    """A well-formed outcome is read with its kind, memory and time."""
    with ask(f"{_SERVE}send({_OUTCOME})") as worker:
        outcome = worker.ask(VersionsRequest())
    assert (outcome.kind, outcome.peak_rss, outcome.seconds) == ("done", 1, 0.5)


@pytest.mark.parametrize(
    "then",
    [
        "read(); send({'type': 'Missing', 'files': ['a']})",
        "read(); send({'type': 'Missing', 'files': ['0' * 64]})",
        "read(); send({'type': 'Dance'})",
        "read(); send([1, 2])",
        "read(); out.write(b'\\xff' * 16); out.flush(); time.sleep(60)",
        _SERVE + "send({'type': 'RemoteOutcome'})",
        _SERVE + "send({'type': 'Missing', 'files': []})",
        _SERVE + "send({'type': 'ResultFile', 'size': -1})",
        _SERVE + "send({'type': 'ResultFile', 'size': 9, 'name': '../x'})",
        _SERVE + "send({'type': 'ResultFile', 'size': 9, 'shared': 4})",
        _SERVE + "send({'type': 'ResultFile', 'size': 9}); send({'type': 'RemoteProgress'})",
        changed(kind="dance"),
        changed(log=[1]),
        changed(reply=None),
        changed(reply={"type": "CallsReply", "codes": [0]}),
        _SERVE + "out.write(b'\\x01' + bytes(15) + b'x'); out.flush()",
    ],
)
def test_an_answer_that_is_none_loses_the_worker(then: str) -> None:
    """A malformed answer closes the worker with one sentence."""
    with ask(then) as worker, pytest.raises(WorkerLost) as caught:
        worker.ask(VersionsRequest())
    assert "\n" not in str(caught.value)


def test_a_refusal_of_the_far_end_is_passed_on() -> None:
    """A refusal by the worker is passed on, and the worker serves the next request."""
    then = "read(); send({'type': 'WorkerRefusal', 'sentence': 'the disk is full'})\n"
    then += f"{_SERVE}send({_OUTCOME})"
    with ask(then) as worker:
        with pytest.raises(WorkerError, match="refused the request: the disk is full"):
            worker.ask(VersionsRequest())
        assert worker.ask(VersionsRequest()).is_done


def test_a_worker_that_dies_is_started_again() -> None:
    """After a worker dies, the next request starts a new worker."""
    with ask(f"{_SERVE}send({_OUTCOME})") as worker:
        assert worker.ask(VersionsRequest()).is_done
        assert worker.ask(VersionsRequest()).is_done


def test_a_worker_that_hangs_is_silent() -> None:
    """A worker that is silent for longer than the limit is given up."""
    connection = Connection(fake("time.sleep(60)", __version__), silence_s=0.3)
    with pytest.raises(WorkerLost, match=r"was silent for 0\.3 s"):
        connection.receive()
    connection.close()


def test_no_thread_is_left() -> None:
    """A closed connection leaves no thread, also if it is closed twice."""
    before = threading.active_count()
    connection = Connection(fake("read()", __version__))
    connection.close()
    connection.close()
    assert threading.active_count() == before


@linux
def test_a_request_goes_through_the_whole_pipe(tmp_path: Path) -> None:
    """The real worker serves requests and stops a request that the client cancels."""
    library = Library("2.7.0", "1", Path("nowhere"), bare(tmp_path / "far"))
    sent = tmp_path / "model.bin"
    sent.write_bytes(bytes(3 << 20))

    class NotWanted(Exception):
        """Raised by the client's progress callback."""

    def stop(tick: Tick) -> None:
        if tick.sent is None:
            raise NotWanted

    with Worker(library=library) as worker:
        refused = worker.ask(LoadRequest([sent], 57))
        assert refused.kind == "refused"
        assert "libQnnHtp.so" in refused.sentence
        with pytest.raises(NotWanted):
            worker.ask(WaitRequest(), progress=stop)
        late = worker.ask(WaitRequest(), time_limit_s=0.2)
        assert (late.kind, late.sentence) == ("timeout", "not finished within 0.2 s")
        compare = CompareRequest(sent, tmp_path, sent, settings=HtpSettings(57))
        with pytest.raises(UsageError, match="on another machine does not support this request"):
            worker.ask(compare)
    kept = list((tmp_path / "far").iterdir())
    assert [path.stat().st_size for path in kept] == [3 << 20]
