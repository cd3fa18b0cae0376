"""Contexts in process domains: first-fit, as the loader does it, and the best order."""

from __future__ import annotations

from collections.abc import Sequence

from qnnmem.results.place import PlacedDomain, Placement

EXACT_UP_TO = 12  # contexts whose best grouping is searched for


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
