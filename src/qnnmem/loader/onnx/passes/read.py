"""First pass: the bytes of a file, known to unpack into bounded memory. Needs no library."""

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
    """Bytes that are safe to give to a protobuf library."""

    path: Path
    blob: bytes


@stage("read")
def read(path: Path) -> ReadModel:
    """Read a file and check that it unpacks into bounded memory."""
    return admit(path, read_bytes(path, MAX_FILE))


@stage("read")
def admit(path: Path, blob: bytes) -> ReadModel:
    """Check bytes that are already in memory; errors name them `path`."""
    check_wire(path, blob)
    return ReadModel(path, blob)


def mentions(path: Path, words: Iterable[str]) -> bool:
    """True if any of the words occurs in the raw bytes."""
    blob = read_bytes(path, MAX_FILE)
    return any(word.encode() in blob for word in words)
