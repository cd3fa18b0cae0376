"""Does a model fit that the library refused to compile: its refusal against the SoC's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qnnmem.htp.bill.numbers import logged
from qnnmem.htp.compile import CompileFailure
from qnnmem.htp.compile.failure import needs_int8
from qnnmem.htp.fit.limits import exactly, limits
from qnnmem.htp.fit.value import Check, Fit
from qnnmem.htp.log import Cause, Refusal
from qnnmem.provenance import Sourced
from qnnmem.results.footprint import BillItem, SizeRange

_LIMIT_OF = {
    Cause.GRAPH_LIMIT: "compile",
    Cause.OP_OVER_VTCM: "vtcm",
    Cause.PD_FULL: "pd",
}


def fit_failure(
    failure: CompileFailure,
    budgets: Mapping[str, Sourced] | None = None,
    largest: tuple[BillItem, ...] = (),
) -> Fit:
    """The answer for a model that the library refused to compile."""
    refusal = failure.refusal
    pool = None if refusal is None else _LIMIT_OF.get(refusal.cause)
    is_size = pool is not None and failure.outcome.kind == "refused"
    checks = tuple(_refused_checks(failure, budgets or {}, pool if is_size else None))
    return Fit(
        soc=failure.soc,
        fits=False if is_size else None,
        checks=checks,
        why=failure.why,
        code=failure.code,
        operator=refusal.operator if refusal is not None and pool == "vtcm" else "",
        largest=largest,
        seconds=failure.outcome.seconds,
        timed_out=failure.outcome.kind == "timeout",
        line=failure.line,
        evidence=failure.evidence if failure.line else (),
        needs_int8=needs_int8(failure),
    )


def _refused_checks(
    failure: CompileFailure, budgets: Mapping[str, Sourced], pool: str | None
) -> Iterator[Check]:
    refusal, log = failure.refusal, failure.log
    for name, limit in limits(failure.soc, budgets).items():
        if refusal is None or name != pool:
            yield Check(name, None, limit)
            continue
        if name == "vtcm":
            limit = logged(log.vtcm_size, log) or limit
        elif refusal.limit is not None:
            limit = logged(refusal.limit, log)
        yield Check(name, _refused_need(failure, refusal), limit, refused=True)


def _refused_need(failure: CompileFailure, refusal: Refusal) -> SizeRange | None:
    return exactly(logged(refusal.need, failure.log))
