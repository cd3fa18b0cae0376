from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tflite_writer import G, O, T, write_tflite

from qnnmem.errors import LoadError, UsageError
from qnnmem.flags import flag
from qnnmem.loader import load

LIST = "id,lower,upper,size\nx,0,1,8\n"


def save(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a", "a.onnx", "a.bin"])
def test_content_decides_whatever_the_name(tmp_path: Path, name: str) -> None:
    """A buffer list is recognised by its content, whatever its file name."""
    assert load(save(tmp_path, name, LIST)).format == "csv"


def test_a_path_may_be_text(tmp_path: Path) -> None:
    """`load` accepts a path as a string."""
    assert load(str(save(tmp_path, "a.csv", LIST))).name == "a"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.tflite", b"\0" * 64, "'TFL3' is missing"),
        ("a.dat", b"\x1c\0\0\0TFL3" + b"\0" * 64, "contains no graph"),
        ("a.json", b'{"graphs": []}', "list 'graphs' is missing"),
        ("b.json", b'{"nodes": []}', "is JSON, which qnnmem cannot plan"),
        ("a.eaix", b"graphs", "not valid JSON"),
        ("a.csv", b"x;y\n1;2\n", "unknown column"),
        ("a.bin", b"\x02\0\0\0\x03", "is binary data of unknown type, which qnnmem cannot plan"),
        ("a.dlc", b"PK\x03\x04", "is a zip archive, which qnnmem cannot plan"),
        ("a.serialized", b"\x08\x01", "is not an ONNX model"),
        ("a.png", b"\x89PNG", "is an image, which qnnmem cannot plan"),
        ("a.csv", b"", "is empty"),
    ],
)
def test_what_cannot_be_read_says_why(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    """Each kind of unreadable file is refused with its own reason and the path."""
    path = save(tmp_path, name, content)
    with pytest.raises(LoadError) as caught:
        load(path)
    assert reason in caught.value.reason
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A missing file is refused as "no such file"."""
    with pytest.raises(LoadError, match="no such file"):
        load(tmp_path / "nothing.onnx")


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    """A folder is refused, and the message says that the path is a folder."""
    with pytest.raises(LoadError, match="is a folder"):
        load(tmp_path)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    """A named pipe without a writer is refused at once."""
    pipe = tmp_path / "model.onnx"
    os.mkfifo(pipe)
    with pytest.raises(LoadError, match="not a regular file"):
        load(pipe)


def test_a_device_is_not_read() -> None:
    """An endless device is refused as not a regular file."""
    with pytest.raises(LoadError, match="not a regular file"):
        load("/dev/zero")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_says_so(tmp_path: Path) -> None:
    """A file without read permission is refused as "permission denied"."""
    path = save(tmp_path, "a.csv", LIST)
    path.chmod(0)
    with pytest.raises(LoadError, match="permission denied"):
        load(path)


@pytest.mark.parametrize("path", ["a\0b.onnx", "x" * 5000])
def test_impossible_paths_are_refused(path: str) -> None:
    """A path that no file can have is refused in one short sentence."""
    with pytest.raises(LoadError) as caught:
        load(path)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("options", [{"dims": {"n": 1}}, {"shapes": {"x": (1,)}}])
def test_sizes_for_a_format_without_open_ones_are_refused(
    tmp_path: Path, options: dict[str, dict[str, int]]
) -> None:
    """`dims` and `shapes` raise UsageError for a buffer list, where they have no effect."""
    with pytest.raises(UsageError):
        load(save(tmp_path, "a.csv", LIST), **options)  # type: ignore[arg-type]  # either mapping


def test_named_dimensions_are_only_for_onnx(tmp_path: Path) -> None:
    """`dims` raises UsageError for a TFLite model, since its dimensions have no names."""
    graph = G((T("a"), T("b")), (0,), (1,), (O("ABS", (0,), (1,)),))
    path = write_tflite(tmp_path / "a.tflite", graph)
    with pytest.raises(UsageError) as caught:
        load(path, dims={"batch": 1})
    assert "dims is for ONNX" in str(caught.value)
    assert "--dim is for ONNX" in caught.value.sentence(flag)


def test_importing_the_loader_is_light() -> None:
    """Importing the loader imports no reader's library."""
    heavy = "{'numpy', 'onnx', 'onnxruntime', 'tflite', 'flatbuffers'}"
    code = f"import sys, qnnmem.loader; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
