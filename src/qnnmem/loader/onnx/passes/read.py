"""First pass: the bytes of a file, known to unpack into bounded memory. Needs no library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qnnmem.bounded_file import read_bytes
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.wire import check_wire

MAX_FILE = (1 << 31) - 1  # protobuf's own limit


@dataclass(frozen=True, slots=True)
class ReadModel:
    """Bytes that a protobuf library may be given."""

    path: Path
    blob: bytes


@stage("read")
def read(path: Path) -> ReadModel:
    """Read a file and look at its bytes."""
    return admit(path, read_bytes(path, MAX_FILE))


@stage("read")
def admit(path: Path, blob: bytes) -> ReadModel:
    """Look at bytes that are in memory already; `path` is what errors call them."""
    check_wire(path, blob)
    return ReadModel(path, blob)


def mentions(path: Path, words: Iterable[str]) -> bool:
    """Whether any of the words occurs in a file; it is not unpacked for that."""
    blob = read_bytes(path, MAX_FILE)
    return any(word.encode() in blob for word in words)
