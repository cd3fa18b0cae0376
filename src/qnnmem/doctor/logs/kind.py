"""Check that named files are logs, based on their first decompressed bytes."""

from __future__ import annotations

import os

import msgspec

from qnnmem.doctor.logs.source import AS_IT_IS, FoundLogs, Stream, open_part, standard_input
from qnnmem.errors import LoadError
from qnnmem.loader.file_kind import KINDS, kind_of_bytes, wrong_kind

_READ = frozenset(kind.name for kind in KINDS.values() if "doctor" in kind.verbs)
_TEXT = KINDS["text"].name
_LOOKED_AT = 4096
_TELLING = 64  # bytes: a writer may begin with less than a line


def without_other_kinds(found: FoundLogs) -> FoundLogs:
    """Return the logs that are text; raise LoadError if none of the named files is."""
    kept: list[Stream] = []
    refused: list[LoadError] = []
    for stream in found.streams:
        fault = _refusal(stream.parts[0]) if stream.named else None
        if fault is None:
            kept.append(stream)
        else:
            refused.append(fault)
    if refused and not kept and not found.unread:
        raise refused[0]
    return msgspec.structs.replace(found, streams=tuple(kept), unread=(*found.unread, *refused))


def _refusal(name: str) -> LoadError | None:
    """Return an error for a file that is not a log, else None; URLs and special files pass."""
    if name == "-":
        return _piped()
    if not os.path.isfile(name):  # noqa: PTH113 - the name may be a URL
        return None
    try:
        part, view = open_part(name), memoryview(bytearray(_LOOKED_AT))
    except LoadError as exc:
        return exc  # the other logs are read anyway
    try:
        head = part.start or bytes(view[: part.readinto(view)])
    finally:
        part.close()
    kind = kind_of_bytes(head)
    if kind.name in _READ and (kind.name == _TEXT or part.packed in AS_IT_IS):
        return None
    if head and part.packed not in AS_IT_IS:
        return LoadError(name, f"contains {kind.words} in {part.packed} form, which is not a log")
    return wrong_kind(name, kind, "which qnnmem doctor does not read")


def _piped() -> LoadError | None:
    """Return an error if standard input is not a log, without consuming any of its bytes."""
    try:
        file = standard_input()
        head = file.peek(_LOOKED_AT) if hasattr(file, "peek") else None
    except OSError:
        return None  # its reader reports the error
    if head is None or (head and len(head) < _TELLING):
        return None
    kind = kind_of_bytes(bytes(head))
    if kind.name in _READ:
        return None
    return wrong_kind("standard input", kind, "which qnnmem doctor does not read")
