"""Logs that come with the package: real failures with their answers, and healthy runs."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

DECIDABLE = ("cause", "memory_only", "no")


class StoredFailure(msgspec.Struct, frozen=True):
    """A real failure: what it was, and what its lines alone support."""

    id: str
    source: str
    framework: str
    how: str  # `reported` in public, or `provoked` with the real library or our LPAI runtime
    stage: str
    cause: str
    is_memory: bool
    decidable: str  # `cause`, `memory_only` or `no`: how far the lines decide
    entry: str | None  # the entry that must speak, where that is settled
    lines: tuple[str, ...]
    needed_bytes: int | None = None
    limit_bytes: int | None = None


class HealthyLog(msgspec.Struct, frozen=True):
    """Lines of a run that ended well, those that look bad among them."""

    id: str
    source: str
    how: str  # `reported` in public, or a `run` of ours
    lines: tuple[str, ...]


@cache
def cases() -> tuple[StoredFailure, ...]:
    """Every stored failure."""
    return tuple(msgspec.json.decode(row, type=StoredFailure) for row in _rows("cases.jsonl"))


@cache
def healthy() -> tuple[HealthyLog, ...]:
    """Every stored log of a healthy run."""
    return tuple(msgspec.json.decode(row, type=HealthyLog) for row in _rows("healthy.jsonl"))


def _rows(name: str) -> list[str]:
    text = files("qnnmem.doctor.kb").joinpath("stored_logs", name).read_text("utf-8")
    return text.splitlines()
