"""Checks of a machine for problems that keep a DSP from working."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from qnnmem.provenance import Origin
from qnnmem.results.result import Count, Result, describe


class HostVerdict(Enum):
    """The verdict of one check."""

    GOOD = "good"
    PROBLEM = "problem"
    NOT_KNOWN = "not_known"


class Outcome(Struct, frozen=True):
    """The finding of one check, its verdict, and the suggested action."""

    found: Annotated[str, Meta(min_length=1)]
    verdict: HostVerdict
    action: Annotated[str, describe("What to do; empty if nothing is needed.")] = ""
    origin: Annotated[
        Origin,
        describe("How the fact is known; `reported` means that the machine itself states it."),
    ] = Origin.MEASURED


class HostCheck(Outcome, frozen=True, kw_only=True):
    """A check for one problem that keeps a DSP from working."""

    id: Annotated[str, Meta(pattern="^[a-z]+$")]
    name: str
    why: Annotated[str, Meta(min_length=1), describe("Why it matters.")]
    concerns_cause: Annotated[bool, describe("Whether the check is about one of `causes`.")] = False


class HostResult(Result, frozen=True, kw_only=True, tag="qnnmem.host/1"):
    """Checks of a Linux machine or an Android device for problems that keep a DSP from working."""

    place: Annotated[str, Meta(min_length=1), describe("Name of the machine.")]
    system: Annotated[str, describe("Kernel and SoC.")]
    has_dsp: Annotated[bool, describe("Whether QNN, a DSP or a Qualcomm SoC was found.")]
    problems: Annotated[Count, describe("Number of checks that found a problem.")]
    causes: Annotated[
        tuple[str, ...],
        describe("Causes diagnosed from logs of the same run; checks about them come first."),
    ] = ()
    checks: Annotated[tuple[HostCheck, ...], Meta(min_length=1)]
    blindness: Annotated[
        str, describe("Why DSP device nodes could not be examined; empty if they could.")
    ] = ""

    @property
    def problem_checks(self) -> tuple[HostCheck, ...]:
        """The checks with a problem."""
        return tuple(check for check in self.checks if check.verdict is HostVerdict.PROBLEM)

    @property
    def exit_code(self) -> int:
        """1 for a problem, 3 for a machine without QNN or a DSP, else 0."""
        if not self.has_dsp:
            return 3
        return 1 if self.problems else 0
