"""What both ends of a pipe to a worker agree on: how it begins, its frames and its limits.

Each end greets with a line of its own, so that whatever a login prints before can be told from it,
then a hello: a frame with its versions. After that both send frames, and a beat every few seconds:
an end that hears nothing for a minute knows that the other is gone, whatever the network says.

    client                                far end
    have   [sha256, size] of all files    missing  which of them it does not have
    file   sha256 and size; then parts    stored
    ask    verb, options, limits          tick*, then file and parts*, then outcome
                                          error    one sentence: the request is over
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PROTOCOL = 1
CLIENT_LINE = b"\nqnnmem-htp-client\n"
WORKER_LINE = b"\nqnnmem-htp-worker\n"
MAX_NOISE = 64 << 10  # bytes before the greeting: what a login prints
PART = 1 << 20  # bytes of a file in one frame
MAX_REQUEST = 16 << 20  # bytes of a frame to the far end
MAX_REPLY = 64 << 20  # bytes of a frame from it: a log has 16 MiB at most
MAX_FILES = 20_000  # of one request
BEAT_S = 5.0
SILENCE_S = 60.0
START_S = 120.0  # an emulated machine takes its time


def agrees(one: object, other: object) -> bool:
    """Whether two versions of qnnmem give the same answers: the first two numbers count."""
    return str(one).split(".")[:2] == str(other).split(".")[:2]


def digest_of(stream: BinaryIO) -> tuple[str, int]:
    """SHA-256 of what is left of a stream, and how many bytes that is."""
    total, size = hashlib.sha256(), 0
    while chunk := stream.read(PART):
        total.update(chunk)
        size += len(chunk)
    return total.hexdigest(), size


def parts_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file in pieces of a frame."""
    with path.open("rb") as stream:
        while chunk := stream.read(PART):
            yield chunk


def is_digest(value: object) -> bool:
    """Whether something is a SHA-256 as we write them."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def is_count(value: object, most: int = 1 << 50) -> bool:
    """Whether something is a number of bytes."""
    return type(value) is int and 0 <= value <= most
