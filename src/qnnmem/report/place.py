"""Render the results of `qnnmem place` and `validate`: the verdict, then its evidence."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.htp.first_fit import EXACT_UP_TO
from qnnmem.results.place import DOMAINS, Placement, PlaceResult
from qnnmem.results.validate import ValidateResult
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
        return f"cannot tell: {plan.unjudged[0]}"
    if plan.fits is None:
        if plan.given.too_large:  # decided only by the upper end of its range
            domains = "more than a process domain"
        return (
            f"cannot tell: {count} might need {domains}; --verify gets exact sizes from the library"
        )
    if plan.given.too_large:
        names = ", ".join(shorten(plan.contexts[n].file) for n in plan.given.too_large)
        return f"does not fit: these contexts are larger than a whole process domain: {names}"
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
            one = plan.contexts[member]
            low = f" (at least {one.need_low.value:,})"
            low = low if verbose and one.need_low.value != one.size else ""
            yield f"{one.size:>16,}  {shorten(one.file, _WIDE)}{low}"
    for member in placement.too_large:
        one = plan.contexts[member]
        yield f"{one.size:>16,}  {shorten(one.file, _WIDE)}: in no domain"


def _better(plan: PlaceResult) -> Iterator[str]:
    how = (
        "no order needs fewer domains"
        if plan.best_is_exact
        else f"largest first; not all orders are tried for over {EXACT_UP_TO} contexts"
    )
    if len(plan.best.domains) < len(plan.given.domains):
        names = " ".join(shorten(plan.contexts[one].file, _WIDE) for one in plan.best.order)
        fewer = counted(len(plan.best.domains), "domain")
        yield f"better order, {fewer} ({how}): {names}"
    elif plan.best_is_exact:
        yield f"best order: as given ({how})"
    else:
        yield (
            "best order: as given; largest first needs as many domains, other orders were not tried"
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
            "more than one was never observed on a device"
        )


def _checked(plan: PlaceResult) -> Iterator[str]:
    checked = plan.verified
    if checked is None:
        return
    wrong = sum(not one.agrees for one in checked)
    word = "agrees" if not wrong else f"disagrees on {counted(wrong, 'context')}"
    yield f"the real library {word} with the files (on x86 it has only one domain):"
    for one, resident in zip(checked, plan.contexts, strict=True):
        refused = f"refused, code {one.code or 'not given'}"
        fact = {True: "admitted", False: refused, None: "not loaded"}[one.admitted]
        guess = {True: "admitted", False: "refused", None: "either"}[one.predicted]
        size = "not known" if one.estimate is None else f"{one.estimate:,}"
        low, high = one.need_low, one.need_high
        expected = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        mark = "" if one.in_range else ", WRONG"
        name = shorten(resident.file, _WIDE)
        yield f"{size:>16}  {fact}, predicted {guess} with {expected}{mark}: {name}"
    if any(one.admitted is None for one in checked):
        yield (
            "not loaded: the x86 library estimates these contexts but cannot hold contexts with "
            "shared weights"
        )


_SHOWN = 12  # tensors; -v shows all


def render_validated(result: ValidateResult, *, verbose: bool = False) -> str:
    """Render the verdict, then the tensors with the largest differences."""
    lines = [result.summary]
    if result.why:
        lines += ["", f"why: {result.why}"]
    if result.tensors:
        what = "every float tensor in the graph" if result.every else "outputs"
        count = counted(result.samples, "input")
        lines += ["", f"compared: {what}, {count}, tolerance {result.tolerance:g} of the largest"]
        worst = sorted(result.tensors, key=lambda one: -_gap(one.difference))
        chosen = {one.name for one in (result.tensors if verbose else worst[:_SHOWN])}
        for one in result.tensors:
            if one.name in chosen:
                gap = "not finite" if one.difference is None else f"{one.difference:.6%}"
                mark = "" if one.agrees else "  <- first" * (one.name == result.first) or "  <-"
                lines.append(f"{gap:>12}  {one.operator:<12} {shorten(one.name, _WIDE)}{mark}")
        left = len(result.tensors) - len(chosen)
        lines += [f"{'':>12}  {left} more with smaller differences; -v shows all"] if left else []
    return "\n".join(lines) + "\n"


def _gap(difference: float | None) -> float:
    return float("inf") if difference is None else difference
