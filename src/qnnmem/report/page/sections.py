"""Which section a result becomes, by the schema it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from qnnmem.errors import UsageError
from qnnmem.report.page import (
    budgets,
    contents,
    doctor,
    fix,
    htp,
    lint,
    lpai,
    plan,
    programs,
    settings,
)
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import lines, tag
from qnnmem.results.check import CheckResult
from qnnmem.results.context import ContextDocument
from qnnmem.results.diff import DiffResult
from qnnmem.results.dlc import DlcResult
from qnnmem.results.doctor import DoctorResult
from qnnmem.results.fit import FitResult, FitsResult
from qnnmem.results.fix import FixedModel, FixedModels
from qnnmem.results.footprint import Bill
from qnnmem.results.inspect import InspectedBinary
from qnnmem.results.lint import LintResult
from qnnmem.results.place import PlaceResult
from qnnmem.results.plan import PlanResult, PlansResult
from qnnmem.results.programs import ClientResult, FailEachResult, WatchResult
from qnnmem.results.qmem import QmemResult
from qnnmem.results.read import read_as, schema_in
from qnnmem.results.schema import schema_name
from qnnmem.results.several import SeveralFiles
from qnnmem.results.sweep import SweepResult
from qnnmem.struct_types import ready
from qnnmem.text import quote

_KINDS: Mapping[str, tuple[type, Callable[..., PageSection]]] = {
    "qnnmem.plan/1": (PlanResult, plan.plan_section),
    "qnnmem.footprint/1": (Bill, htp.bill_section),
    "qnnmem.fit/1": (FitResult, htp.fit_section),
    "qnnmem.sweep/1": (SweepResult, settings.sweep_section),
    "qnnmem.place/1": (PlaceResult, settings.place_section),
    "qnnmem.qmem/1": (QmemResult, settings.qmem_section),
    "qnnmem.doctor/1": (DoctorResult, doctor.doctor_section),
    "qnnmem.check-client/1": (ClientResult, programs.client_section),
    "qnnmem.watch/1": (WatchResult, programs.watch_section),
    "qnnmem.fail-each/1": (FailEachResult, programs.fail_each_section),
    "qnnmem.fix/1": (FixedModel, fix.fix_section),
    "qnnmem.lint/1": (LintResult, lint.lint_section),
    "qnnmem.check/1": (CheckResult, budgets.check_section),
    "qnnmem.diff/1": (DiffResult, budgets.diff_section),
    "qnnmem.inspect/1": (InspectedBinary, lpai.binary_section),
    "qnnmem.inspect-htp/1": (ContextDocument, contents.htp_binary_section),
    "qnnmem.inspect-dlc/1": (DlcResult, contents.dlc_section),
}
# The description of a binary does not name its file.
_UNNAMED = (lpai.binary_section, contents.htp_binary_section)
SHOWN = tuple(_KINDS)


# Results of several files: each is a section, and those without one are named.
_SEVERAL: Mapping[str, type[SeveralFiles]] = {
    "qnnmem.plans/1": PlansResult,
    "qnnmem.fits/1": FitsResult,
    "qnnmem.fixes/1": FixedModels,
}


def sections_of(result: Any, where: str) -> list[PageSection]:
    """The sections of a result that was read from JSON; UsageError where it cannot be shown."""
    name = schema_in(result)
    if name is None or name not in _SEVERAL:
        return [section_of(result, where)]
    found = read_as(result, where, _SEVERAL[name])
    sections = [_KINDS[schema_name(type(one))][1](one) for one in found.each]
    if found.refused:
        said = lines(tag("p", file.sentence) for file in found.refused)
        sections.append(PageSection("Without an answer", said))
    return sections


def section_of(result: Any, where: str) -> PageSection:
    """The section of a result that was read from JSON; UsageError where it cannot be shown."""
    name = schema_in(result)
    if name is None or name not in _KINDS:
        known = ", ".join(SHOWN)
        raise UsageError(f"{where}: no page shows a result of {quote(name)}; shown are {known}")
    kind, render = _KINDS[name]
    try:
        inner = result.get("qnnmem", result) if kind is InspectedBinary else result
        found: Any = msgspec.convert(inner, ready(kind))
        return render(found, where) if render in _UNNAMED else render(found)
    except (msgspec.ValidationError, IndexError, UnicodeError) as exc:
        raise UsageError(f"{where}: it is no {name}: {exc}") from exc
