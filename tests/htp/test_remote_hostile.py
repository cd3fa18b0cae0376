"""A hostile worker: every field of its answers is wrong in turn, and each gives one sentence."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hostile_remote_end import (
    HELLO,
    MISSING,
    NASTY,
    OUTCOME,
    REPLY,
    command,
    conversation,
    encoded,
    mutated,
    places,
    put,
    snapshot,
    spoken,
)
from packed import packed
from seeds import seeds

from qnnmem.errors import QnnMemError, WorkerError
from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model
from qnnmem.htp.installed import Library
from qnnmem.htp.remote import client as near
from qnnmem.htp.remote.client import Connection
from qnnmem.htp.remote.files import Parcel
from qnnmem.htp.remote.messages import RemoteOutcome
from qnnmem.htp.requests import CompileReply, CompileRequest, HtpSettings, RequestOutcome
from qnnmem.htp.worker import Worker
from qnnmem.targets.socs import find_soc
from qnnmem.wire import decode

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = EXAMPLES / "small.onnx"
BINARY = b"a context binary"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set short limits for the worker's answers."""
    monkeypatch.setattr(near, "_LATE_S", 0.5)
    monkeypatch.setattr(near, "connect", lambda said: Connection(said, start_s=20.0, silence_s=2.0))


def ask(turns: list[bytes], folder: Path) -> RequestOutcome | QnnMemError:
    """Ask a worker to compile into a folder."""
    library = Library("2.7.0", "1", Path("/far"), command(turns))
    output = folder / "out" / "model.onnx"
    output.parent.mkdir(exist_ok=True)
    request = CompileRequest(MODEL, EXAMPLES, output, settings=HtpSettings(57))
    try:
        with Worker(library=library) as worker:
            return worker.ask(request, time_limit_s=0.5)
    except QnnMemError as exc:
        return exc


def test_an_honest_far_end_is_understood(tmp_path: Path) -> None:
    """The honest conversation that the tests below damage gives a compiled binary."""
    done = ask(spoken(conversation(BINARY)), tmp_path)
    assert isinstance(done, RequestOutcome)
    reply = done.result(CompileReply)
    assert [path.read_bytes() for path in reply.binaries] == [BINARY]
    assert reply.on_cpu == [("a", "Relu")]


CAME = {"model_qnn.bin": Path("/here/model_qnn.bin"), "model.onnx": Path("/here/model.onnx")}


def checked(header: dict[str, Any]) -> RequestOutcome | None:
    """Return the client's result for an outcome; None if the client drops the worker."""

    class Pipe:
        command = ("far",)

        def invalid_answer(self) -> WorkerError:
            return WorkerError("invalid_answer")

    answer = near._Answer.__new__(near._Answer)
    answer._connection = Pipe()  # type: ignore[assignment]  # all of it that is used
    output = Path("/here/model.onnx")
    answer._request = CompileRequest(MODEL, EXAMPLES, output, settings=HtpSettings(57))
    answer._parcel = Parcel(answer._request, output=output)
    answer._keep, answer._made = None, dict(CAME)
    try:
        return answer._checked(decode(packed(header), RemoteOutcome))
    except (WorkerError, ValueError):  # the connection turns both into an invalid answer
        return None


@pytest.mark.parametrize("place", places(OUTCOME), ids=str)
def test_no_field_of_an_outcome_is_trusted(place: tuple[Any, ...]) -> None:
    """A changed field of an outcome is refused or has the declared type and known files."""
    for value in NASTY:
        header = copy.deepcopy(OUTCOME)
        put(header, place, copy.deepcopy(value))
        found = checked(header)
        if found is None:
            continue
        if not found.is_done and found.reply is None:
            continue
        reply = found.result(CompileReply)
        assert {*reply.binaries} <= {*CAME.values()}
        assert reply.epcontext in (*CAME.values(), None)
        assert reply.epcontext is not None or not reply.binaries
        assert all(len(pair) == 2 for pair in reply.on_cpu)
        assert type(reply.on_htp) is int
        assert 0 <= found.seconds < 1e10
        numbers = (found.code, found.signal, found.exit_status, found.peak_rss, found.log_bytes)
        assert all(one is None or abs(one) < 1 << 63 for one in numbers)


NO_TIMES: tuple[Any, ...] = (None, "x", -1, 0, True, [], float("nan"), 1e300)
NO_SIZES: tuple[Any, ...] = (None, "x", -1, 0, True, [], 1 << 70, 1.5)
NO_LIBRARIES: tuple[Any, ...] = (None, "x", [], ["a"], {}, 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("time_limit_s", one) for one in NO_TIMES),
        *(("memory_limit", one) for one in NO_SIZES),
        *(("library", one) for one in NO_LIBRARIES),
    ],
)
def test_no_field_of_a_hello_is_trusted(key: str, value: Any) -> None:
    """An invalid limit or library in the hello is an invalid answer."""
    connection = Connection.__new__(Connection)
    connection.command, connection._why = ("far",), ""
    lost = WorkerError("an invalid answer")
    connection.invalid_answer = lambda: lost  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(WorkerError, match="an invalid answer"):
        connection._hello(json.dumps({**HELLO, key: value}).encode())


def outcome(**changes: Any) -> dict[str, Any]:
    """Return an outcome with a changed reply."""
    return {**OUTCOME, "outcome": {**OUTCOME["outcome"], "reply": {**REPLY, **changes}}}


HUGE = (1 << 62).to_bytes(8, "little")
TICK = encoded(({"type": "RemoteProgress", "peak_rss": 1}, b""))
CASES: dict[str, list[bytes]] = {
    "names a file of the client": [
        *spoken(conversation(BINARY))[:2],
        encoded((outcome(binaries=[b"/etc/passwd"]), b"")),
    ],
    "writes over the model": [
        *spoken(conversation(BINARY))[:2],
        encoded(({"type": "ResultFile", "size": 1, "name": "../../canary"}, b"")),
    ],
    "announces what no memory holds": [*spoken(conversation(BINARY))[:2], HUGE + HUGE],
    "asks for files that were not offered": [
        encoded((HELLO, b"")),
        encoded(({**MISSING, "files": ["0" * 64]}, b"")),
    ],
    "asks for what is no name": [
        encoded((HELLO, b"")),
        encoded(({**MISSING, "files": [{}, [], None]}, b"")),
    ],
    "floods": [*spoken(conversation(BINARY))[:2], TICK * 20_000],
    "says nothing": [encoded((HELLO, b"")), encoded((MISSING, b"")), b""],
    "nests deeply": [
        *spoken(conversation(BINARY))[:2],
        (100_000).to_bytes(8, "little") + bytes(8) + b"\x91" * 100_000,
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_harm_is_one_sentence_and_nothing_is_left(case: str, tmp_path: Path) -> None:
    """A hostile answer changes no file, gives one sentence and closes the worker."""
    tmp_path.joinpath("canary").write_text("mine")
    before = snapshot(tmp_path)
    found = ask(CASES[case], tmp_path)
    assert isinstance(found, WorkerError)
    assert "\n" not in str(found)
    assert snapshot(tmp_path) == before


def test_a_binary_with_a_model_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    """A valid binary with an invalid EPContext model gives one sentence and leaves no file."""
    binary = (EXAMPLES / "small_htp.bin").read_bytes()
    library = Library("2.7.0", "1", Path("/far"), command(spoken(conversation(binary))))
    options = CompileOptions(dims={"N": 1}, time_limit_s=20.0)
    target = tmp_path / "a.bin"
    with Worker(library=library) as worker, pytest.raises(WorkerError, match="not an ONNX model"):
        compile_model(MODEL, find_soc("SM8650"), options, output=target, worker=worker)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", sorted({6, 7, 9, 10, 11, *seeds(0)}))
def test_a_spoilt_conversation_is_survived(seed: int, tmp_path: Path) -> None:
    """A compile over a damaged conversation ends with a failure or one sentence, without files."""
    library = Library("2.7.0", "1", Path("/far"), command(mutated(BINARY, seed)))
    options = CompileOptions(dims={"N": 1}, time_limit_s=2.0)
    said = ""
    with suppress(QnnMemError), Worker(library=library) as worker:
        target = tmp_path / "a.bin"
        found = compile_model(MODEL, find_soc("SM8650"), options, output=target, worker=worker)
        assert isinstance(found, CompileFailure)  # the binary is invalid
        said = found.sentence
    assert "\n" not in said
    assert not list(tmp_path.iterdir())
