"""The far end: requests are not trusted, files are found by content, and nothing is left."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from qnnmem.child import read_frame, write_frame
from qnnmem.errors import Damaged, LoadError, OutputError
from qnnmem.htp.far import server
from qnnmem.htp.far.request import RequestFolder, read_request
from qnnmem.htp.far.server import Server, ServerLimits
from qnnmem.htp.far.store import FileStore, IncomingFile
from qnnmem.htp.installed import Library
from qnnmem.htp.log import LogLine
from qnnmem.htp.worker import RequestOutcome, Tick
from qnnmem.version import __version__


class FakeWorker:
    """Answers a compile with a file, and notes what it was asked."""

    asked: list[tuple[str, dict[str, Any], float, int]] = []  # noqa: RUF012  emptied by the fixture

    def __init__(self, **_: Any) -> None:
        """Take what a worker takes."""

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def ask(self, verb: str, options: dict[str, Any], **limits: Any) -> RequestOutcome:
        """Answer."""
        FakeWorker.asked.append((verb, options, limits["time_limit_s"], limits["memory_limit"]))
        if verb == "wait":
            while True:
                limits["progress"](Tick(0.0, None, None))
        for call in options.get("calls", ()):
            for tensor in call["tensors"].values():
                path = Path(tensor["file"])
                path.write_bytes(path.read_bytes()[::-1])
        if verb == "compile":
            made = Path(options["output"]).with_suffix(".bin")
            made.write_bytes(Path(options["model"]).read_bytes() * 2)
            reply = {"binaries": [str(made)]}
            return RequestOutcome("done", reply, log=(LogLine(f"wrote {made}", "I"),))
        return RequestOutcome("done", {"codes": [0]})


class Client:
    """Speaks to a server in a thread of this process."""

    def __init__(self, folder: Path, limits: ServerLimits) -> None:
        near, self._into = os.pipe()
        self._out, far = os.pipe()
        self.stdin, self.stdout = os.fdopen(self._into, "wb"), os.fdopen(self._out, "rb")
        ends = os.fdopen(near, "rb"), os.fdopen(far, "wb")
        self.folder = folder
        self.server = Server(*ends, FileStore(folder, 1 << 20), limits)
        self._thread = threading.Thread(target=self._serve, args=ends)
        self._thread.start()
        self.stdin.write(b"\nqnnmem-htp-client\n")
        self.send({"hello": 1, "qnnmem": __version__})
        assert (self.stdout.readline(), self.stdout.readline()) == (b"\n", b"qnnmem-htp-worker\n")
        self.hello = self.receive()

    def _serve(self, requests: Any, replies: Any) -> None:
        self.server.serve()
        requests.close()
        replies.close()

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send a frame."""
        write_frame(self.stdin, dict(header), payload)

    def receive(self) -> dict[str, Any]:
        """Receive a frame that is no beat."""
        while True:
            frame = read_frame(self.stdout, 1 << 26)
            assert frame is not None
            if frame[0].get("event") != "beat":
                return {**frame[0], "payload": frame[1]}

    def give(self, content: bytes, **more: Any) -> dict[str, Any]:
        """Send a file; gives its name, and keeps what was answered."""
        digest = hashlib.sha256(content).hexdigest()
        self.send({"op": "file", "sha256": digest, "size": len(content), **more})
        self.send({"op": "part"}, content)
        self.answer = self.receive()
        return {"sha256": digest, "size": len(content)}

    def ask(self, verb: str, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Send a request and receive the first frame of its answer."""
        limits = {"time_limit_s": 10, "memory_limit": None, "stop_at": None, "log": False}
        self.send({"op": "ask", "verb": verb, "options": options, **limits, **more})
        return self.receive()

    def close(self) -> None:
        """Leave, and wait until the server has noticed."""
        self.stdin.close()
        self._thread.join(300)
        assert not self._thread.is_alive()
        self.stdout.close()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Give a client of a server with a worker that is told what to answer."""
    monkeypatch.setattr(server, "Worker", FakeWorker)
    monkeypatch.setattr(server, "installed_library", lambda: Library("2.7.0", "1", Path("lib")))
    FakeWorker.asked = []
    one = Client(tmp_path / "far", ServerLimits(60.0, 1 << 32))
    yield one
    one.close()
    assert not [path for path in one.folder.iterdir() if path.name.startswith(".")]


def test_the_hello_has_versions_and_limits(client: Client) -> None:
    """Both ends know what they may ask for."""
    assert client.hello["library"] == ["2.7.0", "1", "lib"]
    assert (client.hello["time_limit_s"], client.hello["memory_limit"]) == (60.0, 1 << 32)


def test_a_file_is_sent_once(client: Client) -> None:
    """What was sent is not missing any more, also for the next client."""
    sent = client.give(b"model")
    assert client.answer["event"] == "stored"
    client.send({"op": "have", "files": [[sent["sha256"], 5], ["0" * 64, 9]]})
    assert client.receive()["files"] == ["0" * 64]
    assert (client.folder / sent["sha256"]).read_bytes() == b"model"


def test_memory_is_not_kept(client: Client) -> None:
    """What is sent for one request only is gone with it."""
    sent = client.give(b"memory", keep=False)
    assert client.answer["event"] == "stored"
    assert not (client.folder / sent["sha256"]).exists()


def test_a_file_that_changes_while_it_is_sent_is_refused(client: Client) -> None:
    """The content is what it was announced to be; the next file is taken."""
    client.send({"op": "file", "sha256": "0" * 64, "size": 3})
    client.send({"op": "part"}, b"abc")
    assert client.receive()["sentence"] == "the file changed while it was sent"
    client.give(b"abc")
    assert client.answer["event"] == "stored"


def test_results_come_back_by_number(client: Client) -> None:
    """A compile gets paths of the far end's own folder, and its result comes in parts."""
    model = client.give(b"abc")
    options = {"model": model, "output": "model.onnx", "soc": 57, "strict": True, "vtcm_mb": None}
    file = client.ask("compile", options, time_limit_s=1e6, memory_limit=1 << 50)
    assert (file["event"], file["name"], file["size"]) == ("file", "model.bin", 6)
    assert client.receive()["payload"] == b"abcabc"
    outcome = client.receive()
    assert outcome["reply"] == {"binaries": [{"file": 0}]}
    assert outcome["log"][0][0].startswith(f"wrote {outcome['work']['out']}")
    verb, asked, time_limit_s, memory_limit = FakeWorker.asked[0]
    assert Path(asked["model"]).is_relative_to(client.folder)
    assert (verb, time_limit_s, memory_limit) == ("compile", 60.0, 1 << 32)


def test_shared_memory_comes_back(client: Client) -> None:
    """What the library wrote into a tensor's memory is sent to where it is shared."""
    content = client.give(b"abc", keep=False)
    tensor = {"shared": 0, "content": content, "says": 3, "mem_type": 0}
    call = {"call": "execute", "graph": "g", "tensors": {"7": tensor}}
    file = client.ask("calls", {"binaries": [], "soc": 57, "calls": [call]})
    assert (file["event"], file["shared"]) == ("file", 0)
    assert client.receive()["payload"] == b"cba"
    assert client.receive()["event"] == "outcome"


@pytest.mark.parametrize(
    "header",
    [
        {"op": "dance"},
        {},
        {"op": "have", "files": "all"},
        {"op": "have", "files": [["../x", 3]]},
        {"op": "file", "sha256": "0" * 64, "size": -1},
        {"op": "file", "sha256": "../../etc/passwd", "size": 3},
        {"op": "ask"},
        {"op": "ask", "verb": "compile", "options": {"model": "/etc/passwd"}},
        {"op": "ask", "verb": "versions", "options": {}, "time_limit_s": "long"},
        {"op": "ask", "verb": "versions", "options": {}, "time_limit_s": -1},
        {"op": "ask", "verb": "load", "options": {"binaries": [{"sha256": "0" * 64}]}},
    ],
)
def test_a_request_that_is_none_is_refused(client: Client, header: dict[str, Any]) -> None:
    """One sentence, no path of the client is used, and the next request is served."""
    client.send(header)
    answer = client.receive()
    assert answer["event"] == "error"
    assert answer["sentence"].startswith("the request ")
    assert client.ask("versions", {})["event"] == "outcome"


def test_a_full_disk_is_one_sentence(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for which there is no room is refused before it is sent, or where it stops."""
    with monkeypatch.context() as patch:
        usage = type("Usage", (), {"free": (20 << 20)})
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        client.send({"op": "file", "sha256": "0" * 64, "size": 30 << 20})
        said = client.receive()["sentence"]
    assert said == "its disk has 4.00 MiB left, a file of 30.00 MiB is to be sent"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(IncomingFile, "finish", full)
        client.give(b"abc")
        assert client.answer["sentence"] == "its disk is full"
    client.give(b"abc")
    assert client.answer["event"] == "stored"


def test_a_client_that_leaves_ends_its_request(client: Client) -> None:
    """Closing the pipe stops the library at its next sign of life."""
    client.send({"op": "ask", "verb": "wait", "options": {}, "time_limit_s": 60})
    assert client.receive()["event"] == "tick"


def test_a_request_during_another_ends_both(client: Client) -> None:
    """Whoever does not wait for answers is no client of ours."""
    client.send({"op": "ask", "verb": "wait", "options": {}, "time_limit_s": 60})
    assert client.receive()["event"] == "tick"
    client.send({"op": "have", "files": []})
    client._thread.join(300)
    assert not client._thread.is_alive()


def test_the_oldest_files_go_first(tmp_path: Path) -> None:
    """What was used last stays, as much as there may be."""
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


def folder_with(tmp_path: Path, content: bytes) -> tuple[RequestFolder, dict[str, Any]]:
    """Give the folder of a request for which a file was sent."""
    folder = RequestFolder(tmp_path / "request", tmp_path / "held")
    folder.held.mkdir()
    digest = hashlib.sha256(content).hexdigest()
    (folder.held / digest).write_bytes(content)
    folder.make()
    return folder, {"sha256": digest}


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("compile", {"folder": {"../other": None}}),
        ("compile", {"folder": {"/etc/weights": None}}),
        ("compile", {"output": "../model.onnx"}),
        ("compile", {"output": "/etc/passwd"}),
        ("compile", {"library": "/tmp/evil"}),  # noqa: S108  refused
        ("compile", {"log": "../x"}),
        ("compose", {"kind": "library"}),
        ("quantize", {"calibration": "/etc"}),
        ("quantize", {"sample_files": [[["x", ".py", None]]]}),
        ("calls", {"calls": [{"call": "__init__ x"}]}),
        ("calls", {"calls": [{"call": "execute", "tensors": {"1": {"file": "/dev/mem"}}}]}),
        ("calls", {"calls": [{"call": "execute", "tensors": {"../1": {"shared": 0}}}]}),
        ("execute", {}),
    ],
)
def test_no_path_of_a_client_is_used(tmp_path: Path, verb: str, options: dict[str, Any]) -> None:
    """Whatever names a place outside of the request's folder is refused."""
    folder, file = folder_with(tmp_path, b"abc")
    given = {
        name: dict.fromkeys(value, file) if name == "folder" else value
        for name, value in options.items()
    }
    with pytest.raises(Damaged):
        read_request(verb, given, folder)


def test_a_model_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    """Weights lie in the folder that was made for them, or nowhere."""
    from onnx import TensorProto, helper

    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../../secret")
    graph = helper.make_graph([], "g", [], [], [weights])
    folder, file = folder_with(tmp_path, helper.make_model(graph).SerializeToString())
    with pytest.raises(LoadError, match="outside the model's folder"):
        read_request("compile", {"model": file, "folder": {}, "output": "model.onnx"}, folder)


def test_more_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    """A file cannot grow over what there is room for."""
    incoming = IncomingFile("0" * 64, 2, tmp_path)
    with pytest.raises(OutputError, match="more bytes came"):
        incoming.take(b"abc")
    incoming.drop()
    assert list(tmp_path.iterdir()) == []
