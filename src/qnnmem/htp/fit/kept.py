"""An answer to "does it fit" as it is kept on disk, and back; nothing that is read is trusted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnmem.htp.bill.measure import MeasuredModel
from qnnmem.htp.compile import CompileFailure, CompileOptions
from qnnmem.htp.fit.value import Fit
from qnnmem.htp.kept_values import from_values, to_values
from qnnmem.provenance import Sourced


def to_kept(fit: Fit) -> dict[str, Any]:
    """An answer as values for JSON."""
    written: dict[str, Any] = to_values(fit)
    return written


def from_kept(values: Mapping[str, Any] | None) -> Fit | None:
    """A kept answer; None when a file holds something else."""
    return None if values is None else from_values(Fit, dict(values))


def is_final(made: MeasuredModel | CompileFailure) -> bool:
    """Whether another run would say the same: a crash or a time limit may not come again."""
    if isinstance(made, CompileFailure):
        return made.outcome.kind == "refused"
    return not made.no_estimate


def settings_of(options: CompileOptions, budgets: Mapping[str, Sourced]) -> dict[str, str]:
    """What an answer depends on besides model, SoC and library, by name."""
    flags = {"memhandle": options.memhandle, "partition": options.partition}
    limits = {f"budget {pool}": limit.value for pool, limit in sorted(budgets.items())}
    return {name: str(value) for name, value in {**flags, **limits, "code": _code()}.items()}


def _code() -> str:
    """What tells two states of this program apart, which words its answers differently."""
    top = Path(__file__).parents[1]
    states = sorted((str(path), path.stat().st_mtime_ns) for path in top.rglob("*.py"))
    return hashlib.sha256(repr(states).encode()).hexdigest()
