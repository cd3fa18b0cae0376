"""Does a context binary fit: what its bill needs against each limit of a SoC, in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qnnmem.errors import Setting, Words
from qnnmem.htp.bill.traps import NO_OUTPUTS, wrong_architecture
from qnnmem.htp.fit.limits import exactly, limits
from qnnmem.htp.fit.value import TITLES, Check, Fit
from qnnmem.htp.library import library_there
from qnnmem.provenance import Sourced
from qnnmem.results.footprint import Bill, BillItem, SizeRange
from qnnmem.targets.socs import Soc, find_soc
from qnnmem.text import counted


def fit_bill(bill: Bill, soc: Soc, budgets: Mapping[str, Sourced] | None = None) -> Fit:
    """The answer for a context binary, or for a model that was compiled to one.

    A binary made for this very SoC has passed the compiler's limit: that proves more than our sum.
    """
    checks = checks_of(bill, soc, budgets)
    verdicts = [check.fits for check in checks]
    fits = False if False in verdicts else None if None in verdicts else True
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
) -> tuple[Check, ...]:
    """A bill against every limit; without a SoC against those that all have."""
    return tuple(_checks(bill, soc, budgets or {}))


def _checks(bill: Bill, soc: Soc | None, budgets: Mapping[str, Sourced]) -> Iterator[Check]:
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
        yield Check(pool, needs[pool], limit, accepted=passed and pool not in budgets)


def why_not(checks: tuple[Check, ...], fits: bool | None) -> Words:
    """The check that decides, in a sentence; empty where all hold."""
    for check in checks:
        if fits is False and check.fits is False and check.need and check.limit:
            missing = check.need.low.value - check.limit.value
            return f"{TITLES[check.pool]} needs {counted(missing, 'byte')} more than there are"
    for check in checks:
        if fits is None and check.fits is None:
            return _unknown(check)
    return ""


def _unknown(check: Check) -> Words:
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
