"""The files of a knowledge base; each file is read in full, and only once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from qnnmem.doctor.folder import LeftOut, files_in, kind_of, open_regular, reason
from qnnmem.errors import LoadError, UsageError

_MAX_FILE = 1 << 20
_MAX_FILES = 2000
_MAX_BYTES = 32 << 20  # bytes of all files together
_SUFFIXES = (".md", ".toml")


class KbFiles(msgspec.Struct, frozen=True):
    """Files of a knowledge base (name and bytes), and notes about skipped files."""

    files: tuple[tuple[str, bytes], ...]
    notes: tuple[str, ...] = ()


def read_files(path: Path | str) -> KbFiles:
    """Return the Markdown and TOML files of a folder, or the single named file."""
    name = str(path)
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116 - one error message for all causes
        if stat.S_ISDIR(mode):
            return _folder(name)
        if not stat.S_ISREG(mode):
            raise UsageError(f"{name}: {kind_of(mode)}, not a file or folder of entries")
        return KbFiles(((name.rpartition("/")[2], _read(name)),))
    except LoadError as exc:
        raise UsageError(str(exc)) from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL byte in the name
        raise UsageError(f"{name}: {reason(exc)}") from exc


def _folder(name: str) -> KbFiles:
    files: list[tuple[str, bytes]] = []
    left_out: list[LeftOut] = []
    total = 0
    for found in files_in(name, below=False):
        path = found.path if isinstance(found, LeftOut) else found
        if not path.endswith(_SUFFIXES):
            continue
        if len(files) + len(left_out) >= _MAX_FILES:
            raise UsageError(f"{name}: more than {_MAX_FILES:,} files of entries")
        if isinstance(found, LeftOut):
            left_out.append(found)
            continue
        data = _read(path)
        total += len(data)
        if total > _MAX_BYTES:
            raise UsageError(f"{name}: more than {_MAX_BYTES:,} bytes of entries")
        files.append((path.rpartition("/")[2], data))
    notes = tuple(f"skipped: {one.path}: {one.why}" for one in left_out)
    if not files:
        raise UsageError(
            "; ".join([f"{name}: the folder contains no Markdown or TOML files", *notes])
        )
    return KbFiles(tuple(files), notes)


def _read(path: str) -> bytes:
    with open(open_regular(path), "rb", buffering=0) as file:  # noqa: PTH123
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise UsageError(f"{path}: larger than {_MAX_FILE:,} bytes")
    return data
