"""What two results are compared by, out of their JSON: checked before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from qnnmem.errors import UsageError
from qnnmem.gate import budget_subjects as check
from qnnmem.gate import htp_subjects as htp
from qnnmem.gate import log_subjects as log
from qnnmem.gate import lpai_subjects as lpai
from qnnmem.gate.subject import FIX, HTP, LPAI, NONE, ComparedAnswer, ResultSubject
from qnnmem.results.check import Baseline, CheckResult
from qnnmem.results.doctor import DoctorResult
from qnnmem.results.fit import FitResult, FitsResult
from qnnmem.results.fix import FixedModel, FixedModels
from qnnmem.results.footprint import Bill
from qnnmem.results.inspect import InspectedBinary
from qnnmem.results.plan import PlanResult, PlansResult
from qnnmem.results.schema import schema_name
from qnnmem.results.several import SeveralFiles
from qnnmem.results.sweep import SweepResult
from qnnmem.text import quote

_KINDS: Mapping[str, tuple[type, Callable[[Any], Iterator[ResultSubject]]]] = {
    "qnnmem.plan/1": (PlanResult, lpai.plan_subjects),
    "qnnmem.footprint/1": (Bill, htp.bill_subjects),
    "qnnmem.fit/1": (FitResult, htp.fit_subjects),
    "qnnmem.fix/1": (FixedModel, lpai.fix_subjects),
    "qnnmem.doctor/1": (DoctorResult, log.log_subjects),
    "qnnmem.inspect/1": (InspectedBinary, lpai.binary_subjects),
    "qnnmem.sweep/1": (SweepResult, htp.sweep_subjects),
    "qnnmem.check/1": (CheckResult, check.check_subjects),
    "qnnmem.baseline/1": (Baseline, check.baseline_subjects),
}
# Results of several files: the type, and what each file is compared as.
_SEVERAL: Mapping[str, tuple[type[SeveralFiles], str]] = {
    "qnnmem.plans/1": (PlansResult, LPAI),
    "qnnmem.fits/1": (FitsResult, HTP),
    "qnnmem.fixes/1": (FixedModels, FIX),
}
COMPARED = (*_KINDS, *_SEVERAL)


def subjects_of(result: Any, where: str) -> tuple[ResultSubject, ...]:
    """What a result is about, as read from JSON; UsageError where it cannot be compared."""
    # The JSON of an LPAI binary follows the SDK's, with what is ours under one key.
    ours = result.get("qnnmem", result) if isinstance(result, dict) else None
    name = ours.get("schema") if isinstance(ours, dict) else None
    try:
        if isinstance(name, str) and name in COMPARED:
            found = _each(ours, name) if name in _SEVERAL else _one(ours, name)
            return tuple(one if one.file else replace(one, file=where) for one in found)
    except UnicodeError as exc:  # half a surrogate pair as a key, which JSON can write
        raise UsageError(f"it is no {name}: a name in it is no text", where=where) from exc
    except (msgspec.ValidationError, IndexError) as exc:
        raise UsageError(f"it is no {name}: {exc}", where=where) from exc
    if name == "qnnmem.error/1":
        said = ours.get("error") if isinstance(ours, dict) else None
        raise UsageError(f"it holds an error instead of a result: {quote(said)}", where=where)
    known = ", ".join(COMPARED)
    raise UsageError(f"nothing compares {quote(name)}; compared are {known}", where=where)


def _one(result: Any, name: str) -> Iterator[ResultSubject]:
    kind, read = _KINDS[name]
    yield from read(msgspec.convert(result, kind))


def _each(result: Any, name: str) -> Iterator[ResultSubject]:
    type_, kind = _SEVERAL[name]
    found = msgspec.convert(result, type_)
    for one in found.each:
        yield from _KINDS[schema_name(type(one))][1](one)
    for refused in found.refused:
        yield ResultSubject(
            kind, refused.input, answers={"file": ComparedAnswer("no answer", NONE)}
        )
