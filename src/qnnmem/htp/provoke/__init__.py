"""Failures on demand: the real library, made to fail for real on a small crafted input."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from qnnmem.htp.compile import Progress, given_or_own, no_progress
from qnnmem.htp.provoke.logged_library import LoggedLibrary
from qnnmem.htp.provoke.provoked import FailureKind, Provoked
from qnnmem.htp.provoke.recipes import bad_binary, graph_limit, host_memory, op_over_vtcm, pd_full
from qnnmem.htp.worker import Worker
from qnnmem.targets.socs import Soc

__all__ = ["FailureKind", "Provoked", "provoke"]

TIME_LIMIT_S = 120.0


def provoke(
    kind: FailureKind,
    soc: Soc,
    *,
    worker: Worker | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Progress | None = None,
) -> Provoked:
    """Make the library fail; the value says so too when it does not."""
    recipe = _RECIPES[kind]
    with given_or_own(worker) as used, tempfile.TemporaryDirectory(".qnnmem") as folder:
        return recipe(LoggedLibrary(soc, used, Path(folder), time_limit_s, progress or no_progress))


_RECIPES: dict[FailureKind, Callable[[LoggedLibrary], Provoked]] = {
    FailureKind.GRAPH_LIMIT: graph_limit,
    FailureKind.OP_OVER_VTCM: op_over_vtcm,
    FailureKind.PD_FULL: pd_full,
    FailureKind.HOST_MEMORY: host_memory,
    FailureKind.BAD_BINARY: bad_binary,
}
