"""First pass: reads a file and checks, without protobuf, that it unpacks into bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qnnmem.bounded_file import read_bytes
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.protobuf_wire import check_wire

MAX_FILE = (1 << 31) - 1  # protobuf's own limit


@dataclass(frozen=True, slots=True)
class ReadModel:
    """Bytes that a protobuf library can safely parse."""

    path: Path
    blob: bytes


@stage("read")
def read(path: Path) -> ReadModel:
    """Return the bytes of a file after checking that they unpack into bounded memory."""
    return admit(path, read_bytes(path, MAX_FILE))


@stage("read")
def admit(path: Path, blob: bytes) -> ReadModel:
    """Check bytes in memory as `read` does, and return them; errors name `path` as the file."""
    check_wire(path, blob)
    return ReadModel(path, blob)


def mentions(path: Path, words: Iterable[str]) -> bool:
    """Return whether any of the words occurs in the raw bytes of a file."""
    blob = read_bytes(path, MAX_FILE)
    return any(word.encode() in blob for word in words)
