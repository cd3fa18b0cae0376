"""Limits on the cost of hostile files that SECURITY.md does not list."""

from __future__ import annotations

from importlib import import_module

import pytest

LIMITS = {
    "bounded_file._LONGEST_NAME": 4096,
    "child._LEAST_MEMORY": 2 << 30,
    "doctor.cache._KEPT": 8,
    "cache.DIGEST": 32,
    "doctor.logs.compiled_search._LONGEST_MESSAGE": 1024,
    "doctor.logs.envelope._LONGEST": 1 << 20,
    "doctor.logs.unpack._ZSTD_WINDOW_LOG": 25,
    "doctor.logs.unpack._XZ_MEMORY": 72 << 20,
    "doctor.logs.source._AGAIN_BYTES": 256 << 20,
    "doctor.logs.source._AGAIN_PASSES": 8,
    "doctor.logs.source._SAID": 20,
    "doctor.logs.tar._LONGEST": 1 << 20,
    "doctor.logs.unpack._STEP": 256 << 10,
    "doctor.logs.source._CHUNK": 64 << 10,
    "doctor.logs.unpack._CHUNK": 64 << 10,
    "htp.binary.container.MAX_METADATA": 64 << 20,
    "htp.binary.container._FIRST_LOOK": 1 << 16,
    "htp.binary.flatbuffer.MAX_TEXT": 1 << 16,
    "htp.binary.flatbuffer._BUDGET_FACTOR": 4,
    "htp.binary.flatbuffer._BUDGET_BASE": 1 << 20,
    "lpai.binary.meta.MAX_TEXT": 1 << 16,
    "lpai.binary.ALIGN": 256,
    "units.MAX_RANK": 32,
    "workbench.history._MAX_TRIED": 10_000,
    "atomic_file._PERMISSIONS": 0o777,
}


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_a_limit_changes_here_as_well(name: str, limit: int) -> None:
    """Each limit has the value stated here, so no one changes it by accident."""
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(f"qnnmem.{module}"), constant) == limit
