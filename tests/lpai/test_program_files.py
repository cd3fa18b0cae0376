"""No program opens a file besides the binary, which a file watch confirms."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from seeds import seeds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="opened files are seen by inotify")

if sys.platform == "linux":
    import program_traps as tool
    from hostile_programs import CANARY, hostile_binaries


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Return the prepared binaries that the tests change."""
    return tool.prepared_binaries(tmp_path_factory.mktemp("seeds"))


@pytest.fixture
def reader(binaries: list[bytes]) -> Iterator[tool.TrapReader]:
    """Yield a reader in a folder with trap files."""
    with tool.traps() as (work, watch):
        tool.warm_up(binaries[0], work)
        yield tool.TrapReader(work, watch)


def test_changed_programs_open_nothing(binaries: list[bytes], reader: tool.TrapReader) -> None:
    """A changed program runs or fails with a QNN code, and opens no file."""
    outcomes = {}
    for index, binary in enumerate(hostile_binaries(len(seeds(30)), 0, binaries)):
        outcomes[index] = reader.read(binary)
    assert [(at, why) for at, (how, why) in outcomes.items() if how == "FAILED"] == []
    assert not any(how == "ended by time" for how, _ in outcomes.values())
    assert {how for how, _ in outcomes.values()} >= {"ran", "5005"}


def test_the_watch_sees_what_onnxruntime_opens(
    reader: tool.TrapReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file watch reports a file that onnxruntime opens when the check is skipped."""

    def careless(_binary: Path) -> None:
        import onnxruntime

        tensor = onnx.TensorProto(name="w", data_type=1, dims=[4])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=CANARY)
        text = '<ir_version: 8, opset_import: ["" : 18]> g () => (float[4] y) { y = Relu(w) }'
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(tensor)
        options = onnxruntime.SessionOptions()
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(Path.cwd()))
        onnxruntime.InferenceSession(model.SerializeToString(), options)

    monkeypatch.setattr(tool, "execute", careless)
    assert reader.read(b"any") == ("FAILED", f"opened '{CANARY}'")


def test_system_calls_show_no_other_file(tmp_path: Path) -> None:
    """If strace is available, it shows that no other file is opened."""
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-f", "true"], capture_output=True).returncode:
        pytest.skip("strace is not installed or may not trace")
    trace = tmp_path / "trace"
    arguments = ["--count", "8", "--seed", "7", "--trace", str(trace)]
    command = [sys.executable, tool.__file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 other files opened" in done.stdout


def test_a_trace_with_another_file_is_noticed() -> None:
    """In a trace, only successful opens by other processes after the first binary count."""
    opened = '12 openat(AT_FDCWD, "{}", O_RDONLY) = 3\n'
    missing = '12 openat(AT_FDCWD, "secret", O_RDONLY) = -1 ENOENT\n'
    before = (
        "11 +++\n"
        + opened.format("/lib/a.so")
        + opened.format("/t/program-traps-0/work/hostile.bin")
    )
    assert tool.unexpected(before + missing) == []
    assert tool.unexpected(before + opened.format("/etc/passwd")) == ["/etc/passwd"]
    assert tool.unexpected(before + opened.format("/etc/passwd").replace("12", "11")) == []
    canary = "/t/program-traps-0/place/canary"
    assert tool.unexpected(before + opened.format(canary)) == [canary]
