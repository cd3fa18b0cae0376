"""The server end: requests are not trusted, files are identified by content, nothing remains."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packed import packed

from qnnmem.errors import Damaged, LoadError, OutputError
from qnnmem.htp.installed import Library
from qnnmem.htp.log import LogLine
from qnnmem.htp.remote import server
from qnnmem.htp.remote.files import FileStore, IncomingFile, RequestFolder, unpack
from qnnmem.htp.remote.messages import (
    PROTOCOL,
    Ask,
    Beat,
    FileName,
    FilePart,
    FromWorker,
    Have,
    Hello,
    Missing,
    RemoteOutcome,
    RemoteProgress,
    ResultFile,
    SendFile,
    Stored,
    WorkerHello,
    WorkerRefusal,
    hello_frame,
)
from qnnmem.htp.remote.server import Server, ServerLimits
from qnnmem.htp.requests import (
    AnyRequest,
    CallsReply,
    CallsRequest,
    CallTensor,
    CompileReply,
    CompileRequest,
    ComposeRequest,
    ExecuteCall,
    HtpSettings,
    LoadRequest,
    QuantizeRequest,
    RemoteRequest,
    RequestOutcome,
    Tick,
    VersionsRequest,
    WaitRequest,
)
from qnnmem.version import __version__
from qnnmem.wire import LENGTHS, WireMessage, decode, encode, read_frame, read_raw


class FakeWorker:
    """A worker that answers a compile with a file and records the requests."""

    asked: list[tuple[AnyRequest, float, int]] = []  # noqa: RUF012  emptied by the fixture

    def __init__(self, **_: Any) -> None:
        """Accept the arguments of a worker."""

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def ask(self, request: AnyRequest, **limits: Any) -> RequestOutcome:
        """Record the request and answer."""
        FakeWorker.asked.append((request, limits["time_limit_s"], limits["memory_limit"]))
        if isinstance(request, WaitRequest):
            while True:
                limits["progress"](Tick(0.0, None, None))
        if isinstance(request, CompileRequest):
            made = request.output.with_suffix(".bin")
            made.write_bytes(request.model.read_bytes() * 2)
            reply = CompileReply([made], made, [], 1)
            return RequestOutcome("done", reply, log=(LogLine(f"wrote {made}", "I"),))
        if isinstance(request, CallsRequest):
            (call,) = request.calls
            assert isinstance(call, ExecuteCall)
            for tensor in call.tensors.values():
                assert tensor.file is not None
                tensor.file.write_bytes(tensor.file.read_bytes()[::-1])
        return RequestOutcome("done", CallsReply([0]))


class Client:
    """A client of a server in a thread of this process."""

    def __init__(self, folder: Path, limits: ServerLimits) -> None:
        near, self._into = os.pipe()
        self._out, far = os.pipe()
        self.stdin, self.stdout = os.fdopen(self._into, "wb"), os.fdopen(self._out, "rb")
        ends = os.fdopen(near, "rb"), os.fdopen(far, "wb")
        self.folder = folder
        self.server = Server(*ends, FileStore(folder, 1 << 20), limits)
        self._thread = threading.Thread(target=self._serve, args=ends)
        self._thread.start()
        self.stdin.write(b"\nqnnmem-htp-client\n" + hello_frame(Hello(PROTOCOL, __version__)))
        self.stdin.flush()
        assert (self.stdout.readline(), self.stdout.readline()) == (b"\n", b"qnnmem-htp-worker\n")
        text, _ = read_raw(self.stdout, 1 << 26) or (b"", b"")
        self.hello = msgspec.json.decode(text, type=WorkerHello)

    def _serve(self, requests: Any, replies: Any) -> None:
        self.server.serve()
        requests.close()
        replies.close()

    def send(self, message: Any, payload: bytes = b"") -> None:
        """Send a frame with a message or any other value."""
        text = encode(message) if isinstance(message, WireMessage) else packed(message)
        self.stdin.write(LENGTHS.pack(len(text), len(payload)) + text + payload)
        self.stdin.flush()

    def receive(self) -> Any:
        """Return the next message that is not a beat, and keep its payload."""
        while True:
            frame = read_frame(self.stdout, FromWorker, 1 << 26)
            assert frame is not None
            message, self.payload = frame
            if not isinstance(message, Beat):
                return message

    def give(self, content: bytes, *, keep: bool = True) -> Path:
        """Send a file, keep the answer and return the file's name."""
        digest = hashlib.sha256(content).hexdigest()
        self.send(SendFile(FileName(digest, len(content)), keep))
        self.send(FilePart(), content)
        self.answer = self.receive()
        return Path(digest)

    def ask(self, request: RemoteRequest, **more: Any) -> Any:
        """Send a request and return the first message of the answer."""
        self.send(Ask(request, **{"time_limit_s": 10, **more}))
        return self.receive()

    def close(self) -> None:
        """Close the connection and wait until the server ends."""
        self.stdin.close()
        self._thread.join(300)
        assert not self._thread.is_alive()
        self.stdout.close()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a client of a server with a scripted worker."""
    monkeypatch.setattr(server, "Worker", FakeWorker)
    monkeypatch.setattr(server, "installed_library", lambda: Library("2.7.0", "1", Path("lib")))
    FakeWorker.asked = []
    one = Client(tmp_path / "far", ServerLimits(60.0, 1 << 32))
    yield one
    one.close()
    assert not [path for path in one.folder.iterdir() if path.name.startswith(".")]


def test_the_hello_has_versions_and_limits(client: Client) -> None:
    """The hello states the protocol, the versions and the limits of the server."""
    hello = client.hello
    assert (hello.hello, hello.qnnmem) == (PROTOCOL, __version__)
    assert hello.library == ("2.7.0", "1", "lib")
    assert (hello.time_limit_s, hello.memory_limit) == (60.0, 1 << 32)


def test_a_file_is_sent_once(client: Client) -> None:
    """A stored file is not missing for later requests."""
    sent = client.give(b"model")
    assert client.answer == Stored()
    client.send(Have([FileName(str(sent), 5), FileName("0" * 64, 9)]))
    assert client.receive() == Missing(["0" * 64])
    assert (client.folder / sent).read_bytes() == b"model"


def test_memory_is_not_kept(client: Client) -> None:
    """A file sent for one request only is not stored."""
    sent = client.give(b"memory", keep=False)
    assert client.answer == Stored()
    assert not (client.folder / sent).exists()


def test_a_file_that_changes_while_it_is_sent_is_refused(client: Client) -> None:
    """A file whose content differs from its digest is refused; the next file is stored."""
    client.send(SendFile(FileName("0" * 64, 3)))
    client.send(FilePart(), b"abc")
    assert client.receive() == WorkerRefusal("the file changed while it was sent")
    client.give(b"abc")
    assert client.answer == Stored()


def test_results_come_back_by_name(client: Client, tmp_path: Path) -> None:
    """A compile runs in the server's own folder, and its results come back in parts by name."""
    model = client.give(onnx_model())
    request = CompileRequest(model, Path(), Path("model.onnx"), True, settings=HtpSettings(57))
    file = client.ask(request, time_limit_s=1e6, memory_limit=1 << 50)
    assert file == ResultFile(2 * len(onnx_model()), "model.bin")
    assert client.receive() == FilePart()
    assert client.payload == onnx_model() * 2
    said = client.receive()
    assert said.outcome.reply.binaries == [Path("model.bin")]
    assert said.outcome.log[0].text.startswith(f"wrote {said.out}")
    asked, time_limit_s, memory_limit = FakeWorker.asked[0]
    assert isinstance(asked, CompileRequest)
    for path in (asked.model, asked.folder, asked.output):
        assert path.is_relative_to(client.folder)
    assert (time_limit_s, memory_limit) == (60.0, 1 << 32)


def onnx_model() -> bytes:
    """Return the bytes of a model without weights."""
    from onnx import helper

    return bytes(helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString())


def test_shared_memory_comes_back(client: Client) -> None:
    """Memory that the library wrote is sent back to the shared tensor."""
    content = client.give(b"abc", keep=False)
    tensor = CallTensor(0, 3, shared=0, file=content)
    file = client.ask(CallsRequest([], 57, [ExecuteCall("g", {7: tensor})]))
    assert file == ResultFile(3, shared=0)
    assert client.receive() == FilePart()
    assert client.payload == b"cba"
    assert isinstance(client.receive(), RemoteOutcome)


VERSIONS = {"type": "VersionsRequest"}
COMPILE = {
    **{"type": "CompileRequest", "model": b"/etc/passwd", "folder": b".", "output": b"model.onnx"},
    "settings": {"soc": 57},
}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "Dance"},
        {},
        [],
        {"type": "Have", "files": "all"},
        {"type": "Have", "files": [{"sha256": "../x", "size": 3}]},
        {"type": "SendFile", "file": {"sha256": "0" * 64, "size": -1}},
        {"type": "SendFile", "file": {"sha256": "../../etc/passwd", "size": 3}},
        {"type": "Ask"},
        {"type": "Ask", "request": {"type": "Dance"}, "time_limit_s": 1},
        {"type": "Ask", "request": COMPILE, "time_limit_s": 1},
        {"type": "Ask", "request": {**COMPILE, "type": "CompareRequest"}, "time_limit_s": 1},
        {"type": "Ask", "request": VERSIONS, "time_limit_s": "long"},
        {"type": "Ask", "request": VERSIONS, "time_limit_s": -1},
        {"type": "Ask", "request": VERSIONS, "time_limit_s": 1, "stop_at": "\ud800"},
        {
            "type": "Ask",
            "request": {"type": "LoadRequest", "binaries": [b"0" * 64], "soc": 57},
            "time_limit_s": 1,
        },
    ],
)
def test_a_request_that_is_none_is_refused(client: Client, message: Any) -> None:
    """A malformed request is refused with one sentence, and the next request is served."""
    client.send(message)
    answer = client.receive()
    assert isinstance(answer, WorkerRefusal)
    assert answer.sentence.startswith("the request ")
    assert isinstance(client.ask(VersionsRequest()), RemoteOutcome)


def test_a_full_disk_is_one_sentence(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without room on the disk is refused, before or while it is sent."""
    with monkeypatch.context() as patch:
        usage = type("Usage", (), {"free": (20 << 20)})
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        client.send(SendFile(FileName("0" * 64, 30 << 20)))
        said = client.receive().sentence
    assert said == "the disk has 4.00 MiB left, but the file needs 30.00 MiB"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(IncomingFile, "finish", full)
        client.give(b"abc")
        assert client.answer == WorkerRefusal("the disk is full")
    client.give(b"abc")
    assert client.answer == Stored()


def test_a_client_that_leaves_ends_its_request(client: Client) -> None:
    """Closing the pipe stops the running request."""
    assert isinstance(client.ask(WaitRequest(), time_limit_s=60), RemoteProgress)


def test_a_request_during_another_ends_both(client: Client) -> None:
    """A second message during a request ends the request and the server."""
    assert isinstance(client.ask(WaitRequest(), time_limit_s=60), RemoteProgress)
    client.send(Have([]))
    client._thread.join(300)
    assert not client._thread.is_alive()


def test_the_oldest_files_go_first(tmp_path: Path) -> None:
    """The store removes the oldest files until its limit holds, but keeps files in use."""
    kept = FileStore(tmp_path, 10)
    for number, name in enumerate(("a", "b", "c")):
        path = tmp_path / (name * 64)
        path.write_bytes(b"1234")
        os.utime(path, (number, number))
    held = tmp_path / "held"
    held.mkdir()
    assert kept.hold("a" * 64, 4, held)
    assert not kept.hold("a" * 64, 5, tmp_path / "other")
    kept.trim()
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["a", "c", "h"]


def folder_with(tmp_path: Path, content: bytes) -> tuple[RequestFolder, Path]:
    """Return the folder of a request with one sent file."""
    folder = RequestFolder(tmp_path / "request", tmp_path / "held")
    folder.held.mkdir()
    digest = hashlib.sha256(content).hexdigest()
    (folder.held / digest).write_bytes(content)
    folder.make()
    return folder, Path(digest)


def compiling(file: Path, **changes: Any) -> CompileRequest:
    """Return a compile request with changed fields."""
    request = CompileRequest(file, Path(), Path("model.onnx"), settings=HtpSettings(57))
    return msgspec.structs.replace(request, **changes)


def quantizing(file: Path, **changes: Any) -> QuantizeRequest:
    """Return a quantize request with changed fields."""
    request = QuantizeRequest(file, Path(), Path(), Path("model.onnx"), "int8", 1, 0)
    return msgspec.structs.replace(request, **changes)


def executing(**given: Any) -> CallsRequest:
    """Return a request whose only tensor has these fields."""
    return CallsRequest([], 57, [ExecuteCall("g", {1: CallTensor(0, **given)})])


@pytest.mark.parametrize(
    "make",
    [
        lambda file: compiling(file, weights={"../other": file}),
        lambda file: compiling(file, weights={"/etc/weights": file}),
        lambda file: compiling(file, weights={"w": Path("/etc/passwd")}),
        lambda file: compiling(file, output=Path("../model.onnx")),
        lambda file: compiling(file, output=Path("/etc/passwd")),
        lambda _file: compiling(Path("/etc/passwd")),
        lambda _file: compiling(Path("0" * 64)),
        lambda file: ComposeRequest("library", file, Path("a.bin"), HtpSettings(57)),
        lambda file: quantizing(file, calibration=Path("/etc")),
        lambda file: quantizing(file, here=Path("/etc")),
        lambda file: quantizing(file, files=((("x", Path(f"{file}.py")),),)),
        lambda file: quantizing(file, files=((("x", Path("/etc/x.npy")),),)),
        lambda _file: executing(file=Path("/dev/mem")),
        lambda _file: executing(shared=0),
        lambda _file: executing(shared=0, file=Path("/dev/mem")),
        lambda _file: LoadRequest([Path("/etc/passwd")], 57),
    ],
)
def test_no_path_of_a_client_is_used(tmp_path: Path, make: Callable[[Path], RemoteRequest]) -> None:
    """A request that names a path outside its own folder is refused."""
    folder, file = folder_with(tmp_path, onnx_model())
    with pytest.raises(Damaged):
        unpack(make(file), folder)


@pytest.mark.parametrize("log", ["../x", "loud", ""])
def test_no_word_of_a_client_is_used(log: str) -> None:
    """An unknown log level is refused."""
    with pytest.raises(ValueError, match="log"):
        decode(encode(compiling(Path("a"), settings=HtpSettings(57, log=log))), RemoteRequest)


def test_a_model_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    """A model whose weights lie outside its folder is refused."""
    from onnx import TensorProto, helper

    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../../secret")
    graph = helper.make_graph([], "g", [], [], [weights])
    folder, file = folder_with(tmp_path, helper.make_model(graph).SerializeToString())
    with pytest.raises(LoadError, match="outside the model's folder"):
        unpack(compiling(file), folder)


def test_more_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    """More bytes than announced are refused, and the partial file is removed."""
    incoming = IncomingFile("0" * 64, 2, tmp_path)
    with pytest.raises(OutputError, match="more bytes arrived"):
        incoming.take(b"abc")
    incoming.drop()
    assert list(tmp_path.iterdir()) == []
