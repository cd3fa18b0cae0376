"""The mildest remedy for HTP: the same model, compiled with another VTCM size or level.

Less VTCM leaves more of the process domain, which keeps a copy of it; more VTCM takes ops that are
too large, and needs less spill/fill. Handles for inputs and outputs change neither the compiler's
nor the loader's estimate, so they are no setting to try here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from qnnmem.fix.library.judge import MODEL, TOGETHER, HtpBench, htp_bench
from qnnmem.fix.library.trials import LibraryTrial
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Step
from qnnmem.htp.place import place
from qnnmem.targets.socs import MIB

_LEVELS = (1, 2, 3)
_LEVEL_MATTERS = 0.05  # share of the bytes: a level changes only the ops, a small part
_HOLD_VTCM = ("pd", "ram")
_HOLD_SPILLS = ("compile", "pd", "ram", "spill-fill")
_SLOWER = "a graph with less VTCM may run slower, which only a device shows"
_WORDS = {"vtcm_mb": "VTCM {} MiB", "opt_level": "optimisation level {}"}


@dataclass(frozen=True, slots=True)
class HtpSettingsRemedy:
    """Remedy that changes the VTCM size, then the optimisation level."""

    name: str = "settings"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield promising VTCM sizes, the largest first; then levels on top of the best."""
        own = htp_bench(bench)
        if "settings" in own.case.keep or base.change.parts is not None:
            return
        best = base
        for wishes in (_vtcm_sizes, _levels):
            start = best
            for wish in wishes(own, start):
                if not own.case.seconds_left:
                    return
                judged = own.judged(self._made(start.change, wish))
                yield judged
                best = min(best, judged, key=lambda one: one.need.rank)

    def again(self, case: FixCase, base: Change, step: Step) -> Change:
        """Apply the settings of a recipe."""
        wish = {name: step[name] for name in _WORDS if name in step}
        for name, most in (("vtcm_mb", 64), ("opt_level", _LEVELS[-1])):
            if name in wish and (type(wish[name]) is not int or not 1 <= wish[name] <= most):
                raise ValueError(f"{name} is a number from 1 to {most}")
        return self._made(base, wish)

    def _made(self, base: Change, wish: dict[str, Any]) -> Change:
        now = base.compile_options
        options = replace(now, **wish)
        notes = base.notes
        if "vtcm_mb" in wish and (now.vtcm_mb is None or wish["vtcm_mb"] < now.vtcm_mb):
            notes = (*notes, _SLOWER)
        words = " and ".join(_WORDS[name].format(value) for name, value in wish.items())
        return base.then(self.name, words, wish, options=options, notes=notes)


def _trial(bench: HtpBench, base: JudgedChange) -> LibraryTrial:
    return bench.library.trials_of(base.change)[0]


def _vtcm_sizes(bench: HtpBench, base: JudgedChange) -> Iterator[dict[str, Any]]:
    trials, over = bench.library.trials, base.need.over
    largest = trials.soc.vtcm_mb
    if largest is None or not over:
        return
    most = largest
    if "vtcm" in trials.budgets:
        most = min(most, trials.budgets["vtcm"].value // MIB)
    now = base.change.compile_options.vtcm_mb or largest
    if most < 1:
        return
    if now != most and (now > most or "vtcm" in over or _may_help(bench, base, _HOLD_SPILLS)):
        yield {"vtcm_mb": most}
    if set(over).intersection(_HOLD_VTCM):
        for size in _halves(min(now, most)):
            if _may_do(bench, base, (now - size) * MIB):
                yield {"vtcm_mb": size}


def _may_do(bench: HtpBench, base: JudgedChange, less: int) -> bool:
    """True if so many bytes less may be enough; other memory grows rather than shrinks."""
    if base.need.what != TOGETHER:
        return base.need.missing <= less
    known = bench.library.residents(base.change)
    sizes = [one.size - (less if name == MODEL else 0) for name, one in known.items()]
    return place(sizes, bench.library.domain_bytes).fits


def _halves(size: int) -> Iterator[int]:
    while size > 1:
        size //= 2
        yield size


def _may_help(bench: HtpBench, base: JudgedChange, pools: tuple[str, ...]) -> bool:
    """True unless weights and IO alone exceed the limit, which no setting changes."""
    if not set(base.need.over).intersection(pools):
        return False
    fixed = _trial(bench, base).fixed or bench.library.fixed_bytes(base.change)
    return base.need.limit is None or fixed < base.need.limit


def _levels(bench: HtpBench, base: JudgedChange) -> Iterator[dict[str, Any]]:
    need = base.need
    if not need.over or not _may_help(bench, base, (*_HOLD_SPILLS, "vtcm", "host-ram")):
        return
    is_near = need.missing <= _LEVEL_MATTERS * (need.size or 0)
    if not is_near and not {"vtcm", "spill-fill", "host-ram"}.intersection(need.over):
        return
    now = base.change.compile_options.opt_level or 2  # the library's default
    for level in _LEVELS:
        if level != now:
            yield {"opt_level": level}
