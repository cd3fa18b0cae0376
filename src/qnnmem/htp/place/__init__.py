"""Which contexts can be resident together: first-fit over process domains, and a better order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qnnmem.provenance import Origin, Sourced
from qnnmem.results.footprint import Bill, SizeRange

EXACT_UP_TO = 12  # contexts whose best grouping is searched for
DOMAINS = Sourced(
    4,
    Origin.DOCUMENTED,
    "sessions of a process in the open FastRPC user library; some SoCs allow one only",
)


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


@dataclass(frozen=True, slots=True)
class Domain:
    """A process domain and the contexts in it, in load order."""

    members: tuple[int, ...]  # places in the load order, from 0
    used: int
    left: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each context goes when they are loaded in this order."""

    order: tuple[int, ...]
    domains: tuple[Domain, ...]
    too_large: tuple[int, ...]  # need more than a whole domain

    @property
    def fits(self) -> bool:
        """Whether every context has a place within the domains of a process."""
        return not self.too_large and len(self.domains) <= DOMAINS.value


@dataclass(frozen=True, slots=True)
class Residency:
    """The answer: the order as given, the best order, and whether sizes are sure enough."""

    residents: tuple[Resident, ...]
    budget: Sourced
    given: Placement
    best: Placement
    is_exact: bool  # no order needs fewer domains than `best`
    is_sure: bool  # lower bounds give the same answer
    sharing: tuple[int, ...]  # bytes saved in each domain by one spill/fill buffer

    @property
    def fits(self) -> bool | None:
        """Whether the order as given works; None where the sizes are not sure enough."""
        return self.given.fits if self.is_sure else None


def resident(name: str, bill: Bill) -> Resident | None:
    """What placing needs of a bill; None when the file does not hold it."""
    if bill.process_domain is None:
        return None
    spills = [graph.spill_fill.value for graph in bill.graphs if graph.spill_fill is not None]
    return Resident(name, bill.process_domain, max(spills, default=0))


def plan_residency(residents: Sequence[Resident], budget: Sourced) -> Residency:
    """Place contexts in the order given and in the best order."""
    given = place([one.size for one in residents], budget.value)
    low = place([one.need.low.value for one in residents], budget.value)
    best = best_order([one.size for one in residents], budget.value)
    return Residency(
        residents=tuple(residents),
        budget=budget,
        given=given,
        best=given if len(best.domains) >= len(given.domains) else best,
        is_exact=len(residents) <= EXACT_UP_TO,
        is_sure=[d.members for d in low.domains] == [d.members for d in given.domains],
        sharing=tuple(_sharing(residents, domain) for domain in given.domains),
    )


def _sharing(residents: Sequence[Resident], domain: Domain) -> int:
    sizes = [residents[member].spill_fill for member in domain.members]
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
        Domain(tuple(m), total, budget - total) for m, total in zip(members, used, strict=True)
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
    best = [list(domain.members) for domain in greedy.domains]
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
