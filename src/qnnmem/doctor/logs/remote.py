"""Logs at URLs; every error from the packages that open URLs becomes one sentence."""

from __future__ import annotations

import io
from typing import Any

from qnnmem.bounded_file import MISSING
from qnnmem.errors import LoadError
from qnnmem.text import sentence

_BUFFER = 1 << 16


def open_url(url: str) -> io.BufferedReader:
    """Open the file at a URL."""
    fsspec = _fsspec(url)
    try:
        return io.BufferedReader(_RemoteBytes(fsspec.open(url, "rb").open()), _BUFFER)
    except Exception as exc:  # every store has its own errors
        raise LoadError(url, _why(exc)) from exc


def list_urls(url: str) -> list[str]:
    """Return the sorted URLs of all files below a URL."""
    fsspec = _fsspec(url)
    try:
        system, path = fsspec.core.url_to_fs(url)
        return sorted(system.unstrip_protocol(name) for name in system.find(path))
    except Exception as exc:  # as above
        raise LoadError(url, _why(exc)) from exc


class _RemoteBytes(io.RawIOBase):
    """Remote file that turns every error into an OSError."""

    def __init__(self, file: Any) -> None:
        self._remote = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._remote.seekable())

    def readinto(self, view: Any) -> int:
        data = self._asked(self._remote.read, len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._asked(self._remote.seek, offset, whence))

    def tell(self) -> int:
        return int(self._asked(self._remote.tell))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._asked(self._remote.close)

    def _asked(self, call: Any, *values: int) -> Any:
        try:
            return call(*values)
        except OSError:
            raise
        except Exception as exc:  # every store has its own errors
            raise OSError(_why(exc)) from exc


def _fsspec(url: str) -> Any:
    try:
        import fsspec
    except ImportError as exc:
        from qnnmem.installation import command_for

        raise LoadError(url, f"URLs need {command_for('cluster')}") from exc
    return fsspec


def _why(exc: Exception) -> str:
    if isinstance(exc, FileNotFoundError):
        return MISSING
    return getattr(exc, "strerror", None) or sentence(exc)
