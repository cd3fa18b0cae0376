"""Does it fit: what a bill, or a refusal of the compiler, needs against each limit of a SoC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qnnmem.errors import Setting, UsageError, Words
from qnnmem.htp.bill.numbers import logged
from qnnmem.htp.bill.traps import NO_OUTPUTS, wrong_architecture
from qnnmem.htp.compile import CompileFailure
from qnnmem.htp.compile.failure import needs_int8
from qnnmem.htp.fit.fit import POOLS, TITLES, Fit
from qnnmem.htp.library import library_there
from qnnmem.htp.log import Cause, Refusal
from qnnmem.provenance import Sourced
from qnnmem.results.fit import FitCheck, worst_answer
from qnnmem.results.footprint import Bill, BillItem, SizeRange
from qnnmem.targets.socs import Soc, find_soc, pd_budget
from qnnmem.text import counted

_LIMIT_OF = {
    Cause.GRAPH_LIMIT: "compile",
    Cause.OP_OVER_VTCM: "vtcm",
    Cause.PD_FULL: "pd",
}


def check_pools(names: Iterable[str]) -> None:
    """Refuses pools that no bill has."""
    for name in names:
        if name not in POOLS:
            raise UsageError(f"'{name[:40]}' is not a pool of HTP; there are {', '.join(POOLS)}")


def limits(
    soc: Soc | None, budgets: Mapping[str, Sourced], compile_limit: Sourced | None = None
) -> dict[str, Sourced | None]:
    """Every limit that counts by pool: those of the SoC, and those that the user set."""
    return {
        "compile": compile_limit or (soc.compile_limit if soc else None),
        "pd": pd_budget(),
        "vtcm": soc.vtcm_bytes if soc else None,
        **budgets,
    }


def exactly(part: Sourced | None) -> SizeRange | None:
    """A number that is known, as a need without a range."""
    return None if part is None else SizeRange(part, part)


def fit_bill(bill: Bill, soc: Soc, budgets: Mapping[str, Sourced] | None = None) -> Fit:
    """The answer for a context binary, or for a model that was compiled to one.

    A binary made for this very SoC has passed the compiler's limit: that proves more than our sum.
    """
    checks = checks_of(bill, soc, budgets)
    fits = worst_answer(check.fits for check in checks)
    why = why_not(checks, fits)
    # On an older Hexagon the program cannot run at all, and a compile for it gives another one.
    if wrong_arch := wrong_architecture(bill.dsp_arch, soc):
        fits, why = False if fits is False else None, wrong_arch
    # What is known is the size of a part; the rest may not be computed on HTP at all.
    if bill.missing_outputs and fits is not False:
        fits, why = None, bill.missing_sentence
    silent = next((trap for trap in bill.traps if trap.id == NO_OUTPUTS), None)
    if silent is not None and fits is not False:
        fits, why = None, silent.sentence
    return Fit(
        soc=soc,
        fits=fits,
        checks=checks,
        why=why,
        wrong_arch=bool(wrong_arch),
        largest=_largest(bill),
        parts={name: size for name, size in bill.named_parts if size is not None},
        total=bill.total,
    )


def checks_of(
    bill: Bill, soc: Soc | None, budgets: Mapping[str, Sourced] | None = None
) -> tuple[FitCheck, ...]:
    """A bill against every limit; without a SoC against those that all have."""
    return tuple(_checks(bill, soc, budgets or {}))


def _checks(bill: Bill, soc: Soc | None, budgets: Mapping[str, Sourced]) -> Iterator[FitCheck]:
    needs: dict[str, SizeRange | None] = {
        "compile": exactly(bill.compile_estimate),
        "pd": bill.process_domain,
        "vtcm": bill.vtcm_range,
        "ram": bill.total_range,
        "weights": exactly(bill.all_weights),
        "io": exactly(bill.io),
        "spill-fill": exactly(bill.spill_fill),
        "host-ram": exactly(bill.host_ram),
    }
    own = bill.soc is not None and soc is not None and find_soc(bill.soc).model_id == soc.model_id
    for pool, limit in limits(soc, budgets, bill.compile_limit if own else None).items():
        made_for_it = soc is not None and bill.made_for_soc_model == soc.model_id
        passed = pool == "compile" and made_for_it
        yield FitCheck.of(pool, needs[pool], limit, accepted=passed and pool not in budgets)


def why_not(checks: tuple[FitCheck, ...], fits: bool | None) -> Words:
    """The check that decides, in a sentence; empty where all hold."""
    for check in checks:
        if fits is False and check.fits is False and check.need and check.limit:
            missing = check.need.low.value - check.limit.value
            return f"{TITLES[check.pool]} needs {counted(missing, 'byte')} more than there are"
    for check in checks:
        if fits is None and check.fits is None:
            return _unknown(check)
    return ""


def _unknown(check: FitCheck) -> Words:
    title = TITLES[check.pool]
    if check.need is None:
        return f"what the {title} needs is not known"
    if check.limit is None:
        return f"the limit of the {title} is not known"
    low, high = check.need.low.value, check.need.high.value
    what = f"the {title} needs {low:,} to {counted(high, 'byte')} and has {check.limit.value:,}; "
    where = "" if library_there() else ", on Linux x86-64"
    return what, Setting("load"), f" lets the library say exactly{where}"


def _largest(bill: Bill) -> tuple[BillItem, ...]:
    """The largest tensors, and among them the parts whose tensors have no names."""
    parts = tuple(
        BillItem("", f"all {name}", "part", size.value)
        for name, size in (
            ("weights", bill.weights),
            ("spill/fill", bill.spill_fill),
            ("DDR tensors", bill.ddr_tensors),
        )
        if size is not None and size.value
    )
    every = (*bill.largest_io, *bill.largest_weights, *parts)
    return tuple(sorted(every, key=lambda item: (-item.bytes, item.name))[:5])


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
) -> Iterator[FitCheck]:
    refusal, log = failure.refusal, failure.log
    for name, limit in limits(failure.soc, budgets).items():
        if refusal is None or name != pool:
            yield FitCheck.of(name, None, limit)
            continue
        if name == "vtcm":
            limit = logged(log.vtcm_size, log) or limit
        elif refusal.limit is not None:
            limit = logged(refusal.limit, log)
        yield FitCheck.of(name, _refused_need(failure, refusal), limit, refused=True)


def _refused_need(failure: CompileFailure, refusal: Refusal) -> SizeRange | None:
    return exactly(logged(refusal.need, failure.log))
