"""The answer to "does it fit" while it is worked on: its words still name settings as data.

`fit_result` makes the result of it, where settings are options of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from qnnmem.errors import Setting, Words
from qnnmem.flags import flag, with_flags
from qnnmem.results.fit import (
    FitFacts,
    FitResult,
    FitSuggestion,
    SocFit,
    answer_name,
    worst_answer,
)
from qnnmem.targets.socs import Soc

# Pools that have a limit, and what they are called.
TITLES = {
    "compile": "compile limit",
    "pd": "process domain",
    "vtcm": "VTCM",
    "ram": "RAM budget",
    "weights": "weights budget",
    "io": "IO budget",
    "spill-fill": "spill/fill budget",
    "host-ram": "host RAM budget",
}
POOLS = tuple(TITLES)


class Suggestion(Struct, frozen=True):
    """A nearby setting; verified only if it was compiled and fits."""

    setting: Setting
    verified: bool
    reason: Words
    unfinished: bool = False  # tried, and not told in time


class Fit(FitFacts, frozen=True):
    """The answer for one SoC; `fits` is None where that cannot be told."""

    soc: Soc
    fits: bool | None
    why: Words = ""  # for anything but yes
    suggestions: tuple[Suggestion, ...] = ()
    tried: tuple[Suggestion, ...] = ()  # compiled without success
    seconds: float | None = None  # of compiling
    evidence: tuple[str, ...] = ()  # the decisive line and what follows it


def fit_result(fits: Sequence[Fit], file: str) -> FitResult:
    """The answers for a file on each SoC, as they are shown and written."""
    whole = worst_answer(fit.fits for fit in fits)
    return FitResult(file=file, answer=answer_name(whole), socs=tuple(map(_soc_fit, fits)))


def _soc_fit(fit: Fit) -> SocFit:
    facts = {name: getattr(fit, name) for name in FitFacts.__struct_fields__}
    return SocFit(
        soc=fit.soc.name,
        answer=answer_name(fit.fits),
        why=with_flags(fit.why),
        suggestions=tuple(map(_fit_suggestion, fit.suggestions)),
        tried=tuple(map(_fit_suggestion, fit.tried)),
        **facts,
    )


def _fit_suggestion(one: Suggestion) -> FitSuggestion:
    return FitSuggestion(flag(one.setting), one.verified, with_flags(one.reason), one.unfinished)
