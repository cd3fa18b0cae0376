"""Which contexts can be resident together: in the given order, and in the best order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import UNSET

from qnnmem.errors import CannotTell
from qnnmem.htp.first_fit import EXACT_UP_TO, best_order, place
from qnnmem.htp.log import PdEstimate
from qnnmem.htp.measure import cache_loads, load_binaries
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import answer_name
from qnnmem.results.footprint import Bill, SizeRange
from qnnmem.results.place import Admission, PlacedContext, PlacedDomain, PlaceResult
from qnnmem.results.result import SourcedNumber


@dataclass(frozen=True, slots=True)
class Resident:
    """A context that stays loaded."""

    name: str
    need: SizeRange  # bytes in its process domain
    spill_fill: int  # bytes, largest graph

    @property
    def size(self) -> int:
        """Upper bound of the context's need; contexts are placed by this size."""
        return self.need.high.value


def residents_of(name: str, bill: Bill) -> tuple[Resident, ...] | None:
    """Return the contexts of a bill; None if their need in the process domain is unknown."""
    if bill.carrier is UNSET:
        context = resident(name, bill)
        return None if context is None else (context,)
    contexts = []
    for binary in bill.carrier.binaries:
        if not binary.is_billed:
            continue
        if binary.need_low is None or binary.need_high is None:
            return None
        need = SizeRange(binary.need_low, binary.need_high)
        contexts.append(Resident(f"{name}: {binary.name}", need, binary.spill_fill))
    return tuple(contexts)


def resident(name: str, bill: Bill) -> Resident | None:
    """Return the context of a bill; None if its need in the process domain is unknown."""
    if bill.process_domain is None:
        return None
    spills = [graph.spill_fill.value for graph in bill.graphs if graph.spill_fill is not None]
    return Resident(name, bill.process_domain, max(spills, default=0))


def plan_residency(
    residents: Sequence[Resident], budget: Sourced, unjudged: tuple[str, ...] = ()
) -> PlaceResult:
    """Return placements of contexts in the given order and in the best order, with a verdict.

    `unjudged` describes contexts of unknown size; if there are any, the verdict is never "fits".
    """
    in_order = place([context.size for context in residents], budget.value)
    low = place([context.need.low.value for context in residents], budget.value)
    best = best_order([context.size for context in residents], budget.value)
    # If the lower and the upper bounds lead to different domains, there is no verdict.
    is_sure = [d.contexts for d in low.domains] == [d.contexts for d in in_order.domains]
    fits = in_order.fits if is_sure else None
    return PlaceResult(
        answer=answer_name(None if fits and unjudged else fits),
        unjudged=unjudged,
        budget=SourcedNumber.of(budget),
        contexts=tuple(map(_placed, residents)),
        given=in_order,
        best=in_order if len(best.domains) >= len(in_order.domains) else best,
        best_is_exact=len(residents) <= EXACT_UP_TO,
        spill_fill_saving=sum(_saving(residents, domain) for domain in in_order.domains),
    )


def _placed(context: Resident) -> PlacedContext:
    return PlacedContext(
        file=context.name,
        need_low=SourcedNumber.of(context.need.low),
        need_high=SourcedNumber.of(context.need.high),
        spill_fill=context.spill_fill,
    )


def _saving(residents: Sequence[Resident], domain: PlacedDomain) -> int:
    """Return the bytes saved by sharing one spill/fill buffer among a domain's contexts."""
    sizes = [residents[number].spill_fill for number in domain.contexts]
    return sum(sizes) - max(sizes, default=0)


# --- Admissions by the real library, next to the prediction --------------------------------------


def one_domain(needs: Sequence[SizeRange], budget: int) -> tuple[bool | None, ...]:
    """Predict which contexts one domain admits, None if undecided; x86 has only one domain."""
    low = high = 0
    answers: list[bool | None] = []
    for need in needs:
        surely = high + need.high.value <= budget
        maybe = low + need.low.value <= budget
        answers.append(True if surely else None if maybe else False)
        low += need.low.value if surely else 0  # an undecided context may take no room
        high += need.high.value if maybe else 0
    return tuple(answers)


def admissions(
    binaries: Sequence[Path], residents: Sequence[Resident], budget: int, soc: int, worker: Worker
) -> tuple[Admission, ...]:
    """Return whether the x86 library admits each binary into its single process domain.

    The library crashes on several contexts with shared weights. If its log lacks a result for a
    context, each binary is loaded alone for its estimate.
    """
    loaded = load_binaries(worker, binaries, soc)
    cache_loads(binaries, soc, loaded.log)
    estimates, sentence = loaded.log.pd_estimates, loaded.outcome.sentence
    if sum(estimate.admitted is not None for estimate in estimates) < len(residents):
        alone = [load_binaries(worker, [binary], soc).log.pd_estimates for binary in binaries]
        if all(loads and loads[-1].total is not None for loads in alone):
            return estimated(residents, budget, [loads[-1] for loads in alone])
    return compare(residents, budget, estimates, loaded.codes, sentence)


def estimated(
    residents: Sequence[Resident], budget: int, estimates: Sequence[PdEstimate]
) -> tuple[Admission, ...]:
    """Return the predicted admissions of contexts that the library loaded one at a time."""
    predicted = one_domain([context.need for context in residents], budget)
    return tuple(
        _admission(guess, None, None, estimate.total, context.need)
        for context, estimate, guess in zip(residents, estimates, predicted, strict=True)
    )


def compare(
    residents: Sequence[Resident],
    budget: int,
    estimates: Sequence[PdEstimate],
    codes: Sequence[int],
    sentence: str = "",
) -> tuple[Admission, ...]:
    """Return predicted and actual admissions; results in the log count even if the library died."""
    known = [estimate for estimate in estimates if estimate.admitted is not None]
    if len(known) != len(residents):
        reason = sentence or f"the log has estimates for {len(known)} of {len(residents)} contexts"
        raise CannotTell(f"the library did not load all contexts: {reason}")
    predicted = one_domain([context.need for context in residents], budget)
    answers = []
    for number, (guess, estimate) in enumerate(zip(predicted, known, strict=True)):
        code = codes[number] if number < len(codes) else None
        done = bool(estimate.admitted) and not code
        answers.append(_admission(guess, done, code, estimate.total, residents[number].need))
    return tuple(answers)


def _admission(
    predicted: bool | None,
    admitted: bool | None,
    code: int | None,
    estimate: int | None,
    need: SizeRange,
) -> Admission:
    low, high = need.low.value, need.high.value
    in_range = estimate is None or low <= estimate <= high
    return Admission(
        predicted=predicted,
        admitted=admitted,
        code=code,
        estimate=estimate,
        need_low=low,
        need_high=high,
        agrees=in_range and (admitted is None or predicted in (None, admitted)),
    )


def exact(
    residents: Sequence[Resident], estimates: Sequence[PdEstimate | Admission]
) -> tuple[Resident, ...]:
    """Return the contexts with the library's estimates in place of bounds."""
    answers = []
    source = "the library's estimate when it loaded the binary"
    for context, estimate in zip(residents, estimates, strict=True):
        size = estimate.total if isinstance(estimate, PdEstimate) else estimate.estimate
        if size is None:
            answers.append(context)
            continue
        need = Sourced(size, Origin.MEASURED, source)
        answers.append(replace(context, need=SizeRange(need, need)))
    return tuple(answers)
