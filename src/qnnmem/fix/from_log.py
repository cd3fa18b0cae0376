"""Derive the goal of a fix from a failure in a log: backend, budget, first remedies.

A log line with a limit gives the budget. Without such a line, the goal is the smallest model
(LPAI), or a model that compiles and loads (HTP). Failures that a changed model cannot prevent are
skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qnnmem.doctor.backend import HTP, LPAI, backend_of
from qnnmem.fix.remedy import ModelRemedy
from qnnmem.results.incident import Incident
from qnnmem.units import Bytes

_HEAP_POOLS = ("scratch", "persistent", "io")  # pools in the heap of the application (LPAI)
_LPAI_CAUSES = frozenset({"mem_tcm_pool", "mem_system_ram", "mem_unknown", "mem_activation"})
# Causes on HTP: the pool that a printed limit belongs to, and the remedies to try first.
_HTP_CAUSES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mem_graph_limit": ("compile", ("partition",)),
    "mem_vtcm": ("vtcm", ("settings",)),
    "mem_dsp_va": ("", ("placement", "settings")),
    "mem_activation": ("", ("settings",)),
    "mem_spill_fill": ("", ("settings",)),
    "mem_buffer_cap": ("", ("partition",)),
    "mem_multi_context": ("", ("placement",)),
    "mem_unknown": ("", ()),
}
# Remedies for causes without such a list. A failure at init, before any graph is created, points to
# contexts that were not freed.
_BY_STAGE = {"init": ("placement", "settings")}
_LPAI_FIRST = {"mem_tcm_pool": ("partition",)}  # the TCM pool is not scratch


@dataclass(frozen=True, slots=True)
class LogGoal:
    """Goal of a fix: budget and remedies from a failure in a log, with the decisive line."""

    file: str
    line: int
    text: str
    stage: str
    cause: str
    meaning: str
    entry: str | None
    shortage: int | None  # bytes
    backend: str  # empty if the log does not name it
    budget: tuple[tuple[str, Bytes], ...] = ()  # pools and bytes
    first: tuple[str, ...] = ()  # names of remedies to try first
    model: str | None = None  # model file named in the log
    soc: str | None = None
    is_given: bool = False  # True: the budget comes from the user

    def with_given(self, backend: str, budget: Sequence[tuple[str, Bytes]]) -> LogGoal:
        """Return a copy in which the user's backend and budget replace those from the log."""
        from_log = self.budget if backend == self.backend else ()
        return replace(
            self, backend=backend, budget=tuple(budget or from_log), is_given=bool(budget)
        )

    def sentences(self, request: str) -> tuple[str, ...]:
        """Return sentences that explain how the log line leads to the budget.

        If no line states a limit, the text `request` asks the user for one.
        """
        missing = "" if self.shortage is None else f", {self.shortage:,} bytes missing"
        known = "" if self.entry is None else f" (entry {self.entry})"
        limits = " and ".join(f"{pool} within {size:,} bytes" for pool, size in self.budget)
        goal = f"must keep {limits}{', as given on the command line' * self.is_given}"
        if not limits:
            aim = "compile and load" if self.backend == HTP else "be as small as possible"
            goal = f"must {aim}, because no line states the limit; {request}"
        return (
            f"{self.file}:{self.line}: {self.text}",
            f"{self.stage} stage, {self.cause}: {self.meaning}{missing}{known}",
            f"so for {self.backend.upper() or 'the device'} the model {goal}",
        )


def goal_of(incident: Incident) -> LogGoal | None:
    """Return budget and remedies for an incident; None if changing the model cannot help."""
    backend = backend_of(incident)
    if incident.decided_memory is not True:
        return None
    helped = _LPAI_CAUSES if backend == LPAI else _HTP_CAUSES.keys()
    if incident.cause not in helped:
        return None
    line = next((line for line in incident.evidence if line.decides), incident.evidence[0])
    values = incident.quantities
    soc = values.get("soc")
    pool, first = _HTP_CAUSES.get(incident.cause, ("", ()))
    first = _LPAI_FIRST.get(incident.cause, ()) if backend == LPAI else first
    return LogGoal(
        line.file,
        line.line,
        line.text,
        incident.stage,
        incident.cause,
        incident.cause_meaning,
        incident.entry,
        incident.shortage_bytes,
        backend,
        _lpai_budget(incident) if backend == LPAI else _printed_limit(pool, values),
        first or (_BY_STAGE.get(incident.stage, ()) if backend != LPAI else ()),
        _named_model(values),
        None if soc is None else str(soc),
    )


def _lpai_budget(incident: Incident) -> tuple[tuple[str, Bytes], ...]:
    """Return the budget from the log line: the size of TCM, or the free bytes of a heap."""
    values = incident.quantities
    size, taken = values.get("size_bytes"), values.get("in_use_bytes")
    if not isinstance(size, int) or size <= 0:
        return ()
    if incident.cause == "mem_tcm_pool":
        return (("tcm", Bytes(size)),)
    pool = str(values.get("buffer", "")).strip("'\"").lower()
    if pool not in _HEAP_POOLS or not isinstance(taken, int) or not 0 <= taken < size:
        return ()
    return ((pool, Bytes(size - taken)),)


def _printed_limit(pool: str, values: Mapping[str, int | str]) -> tuple[tuple[str, Bytes], ...]:
    limit = values.get("limit_bytes")
    return ((pool, Bytes(limit)),) if pool and isinstance(limit, int) and limit > 0 else ()


def _named_model(values: Mapping[str, int | str]) -> str | None:
    names = (value.strip() for value in values.values() if isinstance(value, str))
    return next((name for name in names if name.lower().endswith(".onnx")), None)


def ordered(remedies: Sequence[ModelRemedy], first: Sequence[str]) -> tuple[ModelRemedy, ...]:
    """Return the remedies, with those named in `first` moved to the front."""
    ranks = {name: rank for rank, name in enumerate(first)}
    return tuple(sorted(remedies, key=lambda remedy: ranks.get(remedy.name, len(ranks))))
