"""Exchange typed, validated messages between processes, in frames.

A frame is two lengths, a message in MessagePack and a payload of raw bytes. Messages are subclasses
of `WireMessage`, defined next to the code that sends them. The reader names the types it accepts:

    match child.receive(Progress | Result):
        case (Progress(text), _): ...

A malformed frame, a frame above the limit, another type, a missing field or a value out of range
all raise ValueError. Nothing is executed and no type is looked up by name, so the other process can
be hostile.
"""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Protocol, TypeVar, overload

import msgspec
from msgspec import Meta, Struct

T = TypeVar("T")
Frame = tuple[T, bytes]

LENGTHS = struct.Struct("<QQ")
_CHUNK = 1 << 20

# Integer types with the range that the other process may send.
ByteCount = Annotated[int, Meta(ge=0, le=1 << 50)]
Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # SHA-256 of a file

_lock = threading.Lock()
_built: set[object] = set()


def ready(kind: type[T]) -> type[T]:
    """Prepare msgspec for using a type in any thread, and return the type.

    msgspec prepares a type on its first use. If another thread uses the type before that is
    finished, the process crashes.
    """
    with _lock:
        if kind not in _built:
            msgspec.json.Decoder(kind)
            _built.add(kind)
    return kind


class WireMessage(Struct, frozen=True, tag=True):
    """The message in a frame; its class name identifies its type."""

    doing: ClassVar[str] = "a request"  # the child's work for this request, for error messages


class Done(WireMessage, frozen=True):
    """Reply without fields; the payload is the answer."""


class ChildFailure(WireMessage, frozen=True):
    """Reply to a request that failed."""

    sentence: str
    kind: str = ""


class Readable(Protocol):
    """Interface of a stream that frames are read from."""

    def read(self, size: int, /) -> bytes | None:
        """Read at most `size` bytes; empty or None at the end."""
        ...


def write_frame(
    stream: BinaryIO, message: WireMessage, payload: bytes | bytearray | memoryview = b""
) -> None:
    """Send one frame."""
    text = encode(message)
    stream.write(LENGTHS.pack(len(text), len(payload)) + text)
    stream.write(payload)
    stream.flush()


def read_raw(stream: Readable, limit: int) -> tuple[bytes, bytes] | None:
    """Return one frame with its message still encoded; None at the end of the stream.

    Raise ValueError if the message or the payload has more than `limit` bytes; neither is then
    read.
    """
    lengths = _read_exactly(stream, LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    text_size, payload_size = LENGTHS.unpack(lengths)
    if max(text_size, payload_size) > limit:
        raise ValueError(f"the frame has more than {limit:,} bytes")
    text, payload = _read_exactly(stream, text_size), _read_exactly(stream, payload_size)
    return None if len(text) < text_size or len(payload) < payload_size else (text, payload)


@overload
def read_frame(stream: Readable, kind: type[T], limit: int) -> Frame[T] | None: ...
@overload
def read_frame(stream: Readable, kind: Any, limit: int) -> Frame[Any] | None: ...
def read_frame(stream: Readable, kind: Any, limit: int) -> Frame[Any] | None:
    """Return one frame with a message of the given type or union; None at the end."""
    frame = read_raw(stream, limit)
    return None if frame is None else (decode(frame[0], kind), frame[1])


def _read_exactly(stream: Readable, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end of the stream, even if single reads are short."""
    part = stream.read(size) if size else b""
    if part is None or len(part) == size or not part:
        return part or b""
    parts, left = [part], size - len(part)
    while left and (part := stream.read(min(left, _CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def encode(message: WireMessage) -> bytes:
    """Encode a message as MessagePack."""
    return msgspec.msgpack.encode(message, enc_hook=_encode_path)


@overload
def decode(text: bytes, kind: type[T]) -> T: ...
@overload
def decode(text: bytes, kind: Any) -> Any: ...
def decode(text: bytes, kind: Any) -> Any:
    """Decode a message; raise ValueError unless it is valid for its type."""
    try:
        return msgspec.msgpack.decode(text, type=ready(kind), dec_hook=_decode_path)
    except RecursionError as exc:
        raise ValueError("the message is nested too deeply") from exc


def _encode_path(value: object) -> bytes:
    if isinstance(value, Path):  # file names need not be UTF-8
        return os.fsencode(value)
    raise TypeError(f"{type(value).__name__} cannot be sent in a message")


def _decode_path(kind: type, value: object) -> Path:
    if issubclass(kind, Path) and isinstance(value, bytes):
        return Path(os.fsdecode(value))
    raise TypeError(f"no {kind.__name__}")
