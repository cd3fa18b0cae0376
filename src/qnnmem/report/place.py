"""The answer of `qnnmem place` as text and as JSON, schema `qnnmem.place/1`.

The text gives the verdict first, then domains, order and savings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.htp.place import DOMAINS, EXACT_UP_TO, Placement, Residency
from qnnmem.htp.place.admission import Admission
from qnnmem.report.sourced import number_values
from qnnmem.results.schema import write_json
from qnnmem.text import counted, shorten

SCHEMA = "qnnmem.place/1"
_WIDE = 120
_ANSWER = {True: "fits", False: "does-not-fit", None: "cannot-tell"}


def render_text(
    plan: Residency, checked: Sequence[Admission] | None = None, *, verbose: bool = False
) -> str:
    """Verdict, domains and a better order; names from the command line are made safe to print.

    `verbose` adds where budgets come from, and the least that each context needs.
    """
    blocks = [[verdict(plan)], list(_domains(plan, plan.given, verbose)), list(_better(plan))]
    blocks += [list(_notes(plan, verbose)), list(_checked(plan, checked))]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict(plan: Residency) -> str:
    """One line: whether all can be resident together, and in how many domains."""
    count = counted(len(plan.residents), "context")
    domains = counted(len(plan.given.domains), "process domain")
    if plan.fits is None:
        if plan.given.too_large:  # by the high end of its range alone
            domains = "more than a process domain"
        return (
            f"cannot tell: {count} may need {domains}; --verify asks the library for its exact "
            "sizes"
        )
    if plan.given.too_large:
        names = ", ".join(shorten(plan.residents[n].name) for n in plan.given.too_large)
        return f"does not fit: larger than a whole process domain: {names}"
    if not plan.fits:
        return f"does not fit: {count} need {domains}, a process has {DOMAINS.value}"
    left = plan.given.domains[-1].left if plan.given.domains else plan.budget.value
    return f"fits: {count} in {domains}, {counted(left, 'byte')} left in the last"


def _domains(plan: Residency, placement: Placement, verbose: bool) -> Iterator[str]:
    budget = plan.budget
    source = f": {budget.source}" if verbose else ""
    yield f"budget of a domain: {counted(budget.value, 'byte')}, {budget.origin.value}{source}"
    for number, domain in enumerate(placement.domains):
        yield f"domain {number}: {counted(domain.used, 'byte')} used, {domain.left:,} left"
        for member in domain.members:
            one = plan.residents[member]
            low = f" (at least {one.need.low.value:,})" if verbose and not one.need.is_exact else ""
            yield f"{one.size:>16,}  {shorten(one.name, _WIDE)}{low}"
    for member in placement.too_large:
        one = plan.residents[member]
        yield f"{one.size:>16,}  {shorten(one.name, _WIDE)}: in no domain"


def _better(plan: Residency) -> Iterator[str]:
    how = "no order needs fewer" if plan.is_exact else f"largest first; over {EXACT_UP_TO} contexts"
    if len(plan.best.domains) < len(plan.given.domains):
        names = " ".join(shorten(plan.residents[one].name, _WIDE) for one in plan.best.order)
        fewer = counted(len(plan.best.domains), "domain")
        yield f"better order, {fewer} ({how}): {names}"
    elif plan.is_exact:
        yield f"best order: as given ({how})"
    else:
        yield "best order: as given; largest first needs as many, others were not tried"


def _notes(plan: Residency, verbose: bool) -> Iterator[str]:
    saved = sum(plan.sharing)
    if saved:
        yield (
            "spill/fill: one buffer for all contexts of a domain saves up to "
            f"{counted(saved, 'byte')} of RAM; contexts that share it must not run at the same "
            "time"
        )
    if len(plan.given.domains) > 1:
        source = f": {DOMAINS.source}" if verbose else ""
        yield (
            f"domains of a process: {DOMAINS.value}, {DOMAINS.origin.value}{source}; more than "
            "one was never seen on a device here"
        )


def _checked(plan: Residency, checked: Sequence[Admission] | None) -> Iterator[str]:
    if checked is None:
        return
    wrong = sum(not one.agrees for one in checked)
    word = "agrees" if not wrong else f"disagrees on {counted(wrong, 'context')}"
    yield f"the real library {word} with what the files say (on x86 it has one domain):"
    for one, resident in zip(checked, plan.residents, strict=True):
        fact = "admitted" if one.admitted else f"refused, code {one.code or 'not given'}"
        guess = {True: "admitted", False: "refused", None: "either"}[one.predicted]
        size = "not known" if one.estimate is None else f"{one.estimate:,}"
        low, high = one.need.low.value, one.need.high.value
        expected = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        mark = "" if one.in_range else ", WRONG"
        name = shorten(resident.name, _WIDE)
        yield f"{size:>16}  {fact}, predicted {guess} with {expected}{mark}: {name}"


def render_json(plan: Residency, checked: Sequence[Admission] | None, tool: str) -> str:
    """One JSON object."""
    return write_json(as_values(plan, checked, tool))


def as_values(plan: Residency, checked: Sequence[Admission] | None, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    return {
        "schema": SCHEMA,
        "tool": tool,
        "answer": _ANSWER[plan.fits],
        "budget": number_values(plan.budget),
        "max_domains": number_values(DOMAINS),
        "max_domains_seen_on_device": False,
        "contexts": [
            {
                "file": one.name,
                "need_low": number_values(one.need.low),
                "need_high": number_values(one.need.high),
                "spill_fill": one.spill_fill,
            }
            for one in plan.residents
        ],
        "given": _placement_values(plan.given),
        "best": _placement_values(plan.best),
        "best_is_exact": plan.is_exact,
        "spill_fill_saving": sum(plan.sharing),
        "verified": None if checked is None else [_admission_values(one) for one in checked],
    }


def _placement_values(placement: Placement) -> dict[str, Any]:
    return {
        "order": list(placement.order),
        "domains": [
            {"contexts": list(d.members), "used": d.used, "left": d.left} for d in placement.domains
        ],
        "too_large": list(placement.too_large),
    }


def _admission_values(one: Admission) -> dict[str, Any]:
    return {
        "predicted": one.predicted,
        "admitted": one.admitted,
        "code": one.code,
        "estimate": one.estimate,
        "need_low": one.need.low.value,
        "need_high": one.need.high.value,
        "agrees": one.agrees,
    }
