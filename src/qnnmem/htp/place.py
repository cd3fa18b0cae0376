"""Which contexts can be resident together: first-fit over process domains, and a better order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qnnmem.errors import CannotTell
from qnnmem.htp.log import PdEstimate
from qnnmem.htp.measure import keep_loads, load_binaries
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import answer_name
from qnnmem.results.footprint import Bill, SizeRange
from qnnmem.results.place import Admission, PlacedContext, PlacedDomain, Placement, PlaceResult
from qnnmem.results.result import SourcedNumber

EXACT_UP_TO = 12  # contexts whose best grouping is searched for


@dataclass(frozen=True, slots=True)
class Resident:
    """A context that is to stay loaded."""

    name: str
    need: SizeRange  # of its process domain
    spill_fill: int  # bytes, largest graph

    @property
    def size(self) -> int:
        """Bytes counted: the upper bound."""
        return self.need.high.value


def resident(name: str, bill: Bill) -> Resident | None:
    """Return the context of a bill; None if the file does not state its process domain."""
    if bill.process_domain is None:
        return None
    spills = [graph.spill_fill.value for graph in bill.graphs if graph.spill_fill is not None]
    return Resident(name, bill.process_domain, max(spills, default=0))


def plan_residency(residents: Sequence[Resident], budget: Sourced) -> PlaceResult:
    """Place contexts in the order given and in the best order."""
    given = place([one.size for one in residents], budget.value)
    low = place([one.need.low.value for one in residents], budget.value)
    best = best_order([one.size for one in residents], budget.value)
    # Bounds that lead to other domains decide nothing.
    is_sure = [d.contexts for d in low.domains] == [d.contexts for d in given.domains]
    return PlaceResult(
        answer=answer_name(given.fits if is_sure else None),
        budget=SourcedNumber.of(budget),
        contexts=tuple(map(_placed, residents)),
        given=given,
        best=given if len(best.domains) >= len(given.domains) else best,
        best_is_exact=len(residents) <= EXACT_UP_TO,
        spill_fill_saving=sum(_saving(residents, domain) for domain in given.domains),
    )


def _placed(one: Resident) -> PlacedContext:
    return PlacedContext(
        file=one.name,
        need_low=SourcedNumber.of(one.need.low),
        need_high=SourcedNumber.of(one.need.high),
        spill_fill=one.spill_fill,
    )


def _saving(residents: Sequence[Resident], domain: PlacedDomain) -> int:
    """Bytes saved by one spill/fill buffer for all contexts of a domain."""
    sizes = [residents[number].spill_fill for number in domain.contexts]
    return sum(sizes) - max(sizes, default=0)


def place(sizes: Sequence[int], budget: int, order: Sequence[int] | None = None) -> Placement:
    """First-fit: each context goes to the first domain with room, else a new one is opened."""
    order = tuple(range(len(sizes)) if order is None else order)
    members: list[list[int]] = []
    used: list[int] = []
    too_large = []
    for one in order:
        if sizes[one] > budget:
            too_large.append(one)
            continue
        room = (d for d, full in enumerate(used) if full + sizes[one] <= budget)
        domain = next(room, len(used))
        if domain == len(used):
            members.append([])
            used.append(0)
        members[domain].append(one)
        used[domain] += sizes[one]
    domains = (
        PlacedDomain(tuple(m), total, budget - total)
        for m, total in zip(members, used, strict=True)
    )
    return Placement(order, tuple(domains), tuple(too_large))


def best_order(sizes: Sequence[int], budget: int) -> Placement:
    """An order with the fewest domains: exact for a few contexts, else the largest first.

    Loading group after group needs no more domains than there are groups: a context finds room in
    its own group's domain at the latest.
    """
    falling = sorted(range(len(sizes)), key=lambda one: (-sizes[one], one))
    greedy = place(sizes, budget, falling)
    if len(sizes) > EXACT_UP_TO:
        return greedy
    groups = _search([one for one in falling if sizes[one] <= budget], sizes, budget, greedy)
    order = [one for group in groups for one in sorted(group)]
    return place(sizes, budget, [*order, *greedy.too_large])


def _search(
    items: list[int], sizes: Sequence[int], budget: int, greedy: Placement
) -> list[list[int]]:
    """Fewest groups by branch and bound, the largest context first."""
    best = [list(domain.contexts) for domain in greedy.domains]
    fewest = -(-sum(sizes[one] for one in items) // budget) if items else 0

    def step(number: int, groups: list[list[int]], used: list[int]) -> None:
        nonlocal best
        if len(groups) >= len(best) or len(best) == fewest:
            return
        if number == len(items):
            best = [list(group) for group in groups]
            return
        one, tried = items[number], set()
        for place_, full in enumerate(used):
            if full + sizes[one] <= budget and full not in tried:
                tried.add(full)  # domains as full as each other are alike
                groups[place_].append(one)
                used[place_] += sizes[one]
                step(number + 1, groups, used)
                used[place_] -= sizes[one]
                groups[place_].pop()
        if len(groups) + 1 < len(best):
            step(number + 1, [*groups, [one]], [*used, sizes[one]])

    step(0, [], [])
    return best


# --- What the real library admits to its one process domain, beside the prediction ----------------


def one_domain(needs: Sequence[SizeRange], budget: int) -> tuple[bool | None, ...]:
    """Which contexts are admitted to a single domain, which is what x86 has."""
    low = high = 0
    answers: list[bool | None] = []
    for need in needs:
        surely = high + need.high.value <= budget
        maybe = low + need.low.value <= budget
        answers.append(True if surely else None if maybe else False)
        low += need.low.value if surely else 0  # one in doubt may take nothing
        high += need.high.value if maybe else 0
    return tuple(answers)


def admissions(
    binaries: Sequence[Path], residents: Sequence[Resident], budget: int, soc: int, worker: Worker
) -> tuple[Admission, ...]:
    """Load all binaries in order into the one domain of the x86 library."""
    loaded = load_binaries(worker, binaries, soc)
    keep_loads(binaries, soc, loaded.log)
    found, sentence = loaded.log.pd_estimates, loaded.outcome.sentence
    return compare(residents, budget, found, loaded.codes, sentence)


def compare(
    residents: Sequence[Resident],
    budget: int,
    found: Sequence[PdEstimate],
    codes: Sequence[int],
    sentence: str = "",
) -> tuple[Admission, ...]:
    """Prediction from the files beside fact; the log counts where the library died."""
    facts = [one for one in found if one.admitted is not None]
    if len(facts) != len(residents):
        reason = sentence or f"its log speaks of {len(facts)} of {len(residents)} contexts"
        raise CannotTell(f"the library did not load all contexts: {reason}")
    predicted = one_domain([one.need for one in residents], budget)
    answers = []
    for number, (guess, fact) in enumerate(zip(predicted, facts, strict=True)):
        code = codes[number] if number < len(codes) else None
        done = bool(fact.admitted) and not code
        answers.append(_admission(guess, done, code, fact.total, residents[number].need))
    return tuple(answers)


def _admission(
    predicted: bool | None,
    admitted: bool,
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
        agrees=in_range and predicted in (None, admitted),
    )


def exact(
    residents: Sequence[Resident], found: Sequence[PdEstimate | Admission]
) -> tuple[Resident, ...]:
    """The same contexts with the library's own estimates in place of bounds."""
    answers = []
    for one, fact in zip(residents, found, strict=True):
        size = fact.total if isinstance(fact, PdEstimate) else fact.estimate
        if size is None:
            answers.append(one)
            continue
        said = Sourced(size, Origin.MEASURED, "estimate of the library when it loaded the binary")
        answers.append(replace(one, need=SizeRange(said, said)))
    return tuple(answers)
