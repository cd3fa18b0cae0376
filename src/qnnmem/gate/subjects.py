"""What two results are compared by, out of their JSON: checked before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

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
from qnnmem.results.read import read_result
from qnnmem.results.result import SchemaDocument
from qnnmem.results.schema import schema_name
from qnnmem.results.several import SeveralFiles
from qnnmem.results.sweep import SweepResult
from qnnmem.text import quote

_SUBJECTS: Mapping[type[SchemaDocument], Callable[[Any], Iterator[ResultSubject]]] = {
    PlanResult: lpai.plan_subjects,
    Bill: htp.bill_subjects,
    FitResult: htp.fit_subjects,
    FixedModel: lpai.fix_subjects,
    DoctorResult: log.log_subjects,
    InspectedBinary: lpai.binary_subjects,
    SweepResult: htp.sweep_subjects,
    CheckResult: check.check_subjects,
    Baseline: check.baseline_subjects,
}
# Results of several files: what each file is compared as.
_SEVERAL: Mapping[type[SeveralFiles], str] = {
    PlansResult: LPAI,
    FitsResult: HTP,
    FixedModels: FIX,
}
COMPARED = tuple(schema_name(kind) for kind in (*_SUBJECTS, *_SEVERAL))


def subjects_of(result: Any, where: str) -> tuple[ResultSubject, ...]:
    """What a result is about, as read from JSON; UsageError where it cannot be compared."""
    # The JSON of an LPAI binary follows the SDK's, with what is ours under one key.
    ours = result.get("qnnmem", result) if isinstance(result, dict) else None
    name = ours.get("schema") if isinstance(ours, dict) else None
    if isinstance(name, str) and name in COMPARED:
        try:
            subjects = tuple(_subjects(read_result(ours, where)))
        except IndexError as exc:
            raise UsageError(f"it is no {name}: {exc}", where=where) from exc
        return tuple(one if one.file else replace(one, file=where) for one in subjects)
    if isinstance(ours, dict) and name == "qnnmem.error/1":
        said = quote(ours.get("error"))
        raise UsageError(f"it holds an error instead of a result: {said}", where=where)
    known = ", ".join(COMPARED)
    raise UsageError(f"nothing compares {quote(name)}; compared are {known}", where=where)


def _subjects(result: SchemaDocument) -> Iterator[ResultSubject]:
    if not isinstance(result, SeveralFiles):
        yield from _SUBJECTS[type(result)](result)
        return
    for each in result.each:
        yield from _subjects(each)
    no_answer = {"file": ComparedAnswer("no answer", NONE)}
    for refused in result.refused:
        yield ResultSubject(_SEVERAL[type(result)], refused.input, answers=no_answer)
