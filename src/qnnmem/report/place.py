"""Render the results of `qnnmem place` and `validate`: the verdict, then its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qnnmem.htp.first_fit import EXACT_UP_TO
from qnnmem.report.table import as_text, thousands
from qnnmem.results.place import DOMAINS, Placement, PlaceResult
from qnnmem.results.validate import ComparedTensor, ValidateResult
from qnnmem.text import counted, shorten

_WIDE = 120


def render_text(plan: PlaceResult, *, verbose: bool = False) -> str:
    """Render the verdict, the process domains and a better order; names are made printable.

    `verbose` adds the sources of the budgets, and the minimum need of each context.
    """
    blocks = [[verdict(plan)], list(_domains(plan, plan.given, verbose)), list(_better(plan))]
    blocks += [list(_notes(plan, verbose)), list(_checked(plan))]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict(plan: PlaceResult) -> str:
    """Return one line: whether all contexts can be resident together, and in how many domains."""
    count = counted(len(plan.contexts), "context")
    domains = counted(len(plan.given.domains), "process domain")
    if plan.fits is None and plan.unjudged:
        return f"cannot tell whether this fits: {plan.unjudged[0]}"
    if plan.fits is None:
        if plan.given.too_large:  # decided only by the upper end of its range
            domains = "more than a process domain"
        return (
            f"cannot tell whether this fits: {count} might need {domains}; --verify gets exact "
            "sizes from the library"
        )
    if plan.given.too_large:
        names = ", ".join(shorten(plan.contexts[n].file) for n in plan.given.too_large)
        return f"does not fit: these contexts are larger than a whole process domain ({names})"
    if not plan.fits:
        return f"does not fit: {count} need {domains}, but a process has {DOMAINS.value}"
    left = plan.given.domains[-1].left if plan.given.domains else plan.budget.value
    return f"fits: {count} in {domains}, {counted(left, 'byte')} left in the last domain"


def _domains(plan: PlaceResult, placement: Placement, verbose: bool) -> Iterator[str]:
    budget = plan.budget
    source = f": {budget.source}" if verbose else ""
    yield (
        f"budget of a process domain: {counted(budget.value, 'byte')}, "
        f"{budget.origin.value}{source}"
    )
    for number, domain in enumerate(placement.domains):
        yield f"domain {number}: {counted(domain.used, 'byte')} used, {domain.left:,} left"
        for member in domain.contexts:
            context = plan.contexts[member]
            low = f" (at least {context.need_low.value:,})"
            low = low if verbose and context.need_low.value != context.size else ""
            yield f"{context.size:>16,}  {shorten(context.file, _WIDE)}{low}"
    for member in placement.too_large:
        context = plan.contexts[member]
        yield f"{context.size:>16,}  {shorten(context.file, _WIDE)}: in no domain"


def _better(plan: PlaceResult) -> Iterator[str]:
    how = (
        "no order needs fewer domains"
        if plan.best_is_exact
        else f"largest first; not all orders are tried if there are over {EXACT_UP_TO} contexts"
    )
    if len(plan.best.domains) < len(plan.given.domains):
        names = " ".join(shorten(plan.contexts[index].file, _WIDE) for index in plan.best.order)
        fewer = counted(len(plan.best.domains), "domain")
        yield f"better order, {fewer} ({how}): {names}"
    elif plan.best_is_exact:
        yield f"best order: as given ({how})"
    else:
        yield (
            "best order: as given; largest first needs as many domains, and other orders were "
            "not tried"
        )


def _notes(plan: PlaceResult, verbose: bool) -> Iterator[str]:
    saved = plan.spill_fill_saving
    if saved:
        yield (
            "spill/fill: one buffer for all contexts of a domain saves up to "
            f"{counted(saved, 'byte')} of RAM; contexts that share it must not run at the same "
            "time"
        )
    if len(plan.given.domains) > 1:
        source = f": {DOMAINS.source}" if verbose else ""
        yield (
            f"process domains per process: {DOMAINS.value}, {DOMAINS.origin.value}{source}; "
            "no device has been observed with more than one"
        )


def _checked(plan: PlaceResult) -> Iterator[str]:
    checked = plan.verified
    if checked is None:
        return
    wrong = sum(not check.agrees for check in checked)
    which = f" for {counted(wrong, 'context')}" if wrong else ""
    word = "contradicts" if wrong else "confirms"
    yield f"the real library {word} the predictions{which} (on x86, it has only one domain):"
    for check, resident in zip(checked, plan.contexts, strict=True):
        refused = f"refused, code {check.code or 'not given'}"
        fact = {True: "admitted", False: refused, None: "not loaded"}[check.admitted]
        guess = {True: "admitted", False: "refused", None: "admitted or refused"}[check.predicted]
        size = thousands(check.estimate, "not known")
        low, high = check.need_low, check.need_high
        expected = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        mark = "" if check.in_range else ", WRONG"
        name = shorten(resident.file, _WIDE)
        yield f"{size:>16}  {fact}; predicted {guess}, {expected} bytes{mark}: {name}"
    if any(check.admitted is None for check in checked):
        yield (
            "not loaded: the x86 library estimates the memory of these contexts, but cannot load "
            "contexts with shared weights"
        )


_SHOWN = 12  # tensors; -v shows all


@as_text
def render_validated(result: ValidateResult, *, verbose: bool = False) -> Iterator[str]:
    """Render the verdict, then the tensors with the largest differences."""
    yield result.summary
    if result.why:
        yield from ("", f"why: {result.why}")
    if result.tensors:
        tensors = "every float tensor in the graph" if result.every else "outputs"
        count = counted(result.samples, "sample")
        tolerance = f"tolerance {result.tolerance:g} of a tensor's largest value"
        yield from ("", f"compared on {count}: {tensors}, {tolerance}")
        worst = sorted(result.tensors, key=_difference, reverse=True)
        chosen = {tensor.name for tensor in (result.tensors if verbose else worst[:_SHOWN])}
        for tensor in result.tensors:
            if tensor.name in chosen:
                gap = "not finite" if tensor.difference is None else f"{tensor.difference:.6%}"
                first = " first" if tensor.name == result.first else ""
                mark = "" if tensor.agrees else f"  <-{first}"
                yield f"{gap:>12}  {tensor.operator:<12} {shorten(tensor.name, _WIDE)}{mark}"
        left = len(result.tensors) - len(chosen)
        if left:
            yield f"{'':>12}  {left} more with smaller differences; -v shows all"


def _difference(tensor: ComparedTensor) -> float:
    return math.inf if tensor.difference is None else tensor.difference
