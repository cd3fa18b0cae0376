"""Logs shipped with the package: real failures with their diagnoses, and healthy runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

DECIDABLE = ("cause", "memory_only", "no")


class StoredLog(msgspec.Struct, frozen=True):
    """Log lines of one run, and where they come from."""

    id: str
    source: str
    how: str  # `reported` in public, `provoked` with the real library or this runtime, or `run`
    lines: tuple[str, ...]


class StoredFailure(StoredLog, frozen=True, kw_only=True):
    """Stored log of a real failure, with its cause and the verdict that the lines alone support."""

    framework: str
    stage: str
    cause: str
    is_memory: bool
    decidable: str  # `cause`, `memory_only` or `no`: how much the lines decide
    entry: str | None  # the entry that must match, if that is known
    needed_bytes: int | None = None
    limit_bytes: int | None = None


@cache
def cases() -> tuple[StoredFailure, ...]:
    """Return every stored failure."""
    return tuple(msgspec.json.decode(row, type=StoredFailure) for row in _rows("cases.jsonl"))


@cache
def healthy() -> tuple[StoredLog, ...]:
    """Return every stored log of a healthy run; some contain suspicious lines."""
    return tuple(msgspec.json.decode(row, type=StoredLog) for row in _rows("healthy.jsonl"))


def _rows(name: str) -> list[str]:
    text = Path(__file__).with_name("stored_logs").joinpath(name).read_text("utf-8")
    return text.splitlines()
