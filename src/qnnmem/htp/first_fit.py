"""Placement of contexts in process domains: first-fit, as the loader does it, and optimal."""

from __future__ import annotations

from collections.abc import Sequence

from qnnmem.results.place import PlacedDomain, Placement

EXACT_UP_TO = 12  # number of contexts up to which the best grouping is searched for


def place(sizes: Sequence[int], budget: int, order: Sequence[int] | None = None) -> Placement:
    """Place each context in the first domain that has enough space, or else in a new domain."""
    order = tuple(range(len(sizes)) if order is None else order)
    members: list[list[int]] = []
    used: list[int] = []
    too_large = []
    for context in order:
        if sizes[context] > budget:
            too_large.append(context)
            continue
        room = (d for d, full in enumerate(used) if full + sizes[context] <= budget)
        domain = next(room, len(used))
        if domain == len(used):
            members.append([])
            used.append(0)
        members[domain].append(context)
        used[domain] += sizes[context]
    domains = (
        PlacedDomain(tuple(m), total, budget - total)
        for m, total in zip(members, used, strict=True)
    )
    return Placement(order, tuple(domains), tuple(too_large))


def best_order(sizes: Sequence[int], budget: int) -> Placement:
    """Return the placement in the fewest domains.

    If there are too many contexts to search, they are placed largest first. Each group of contexts
    fits into one domain, and the order goes group by group. First-fit then needs at most one domain
    per group, because each context fits at least into the domain of its own group.
    """
    falling = sorted(range(len(sizes)), key=lambda context: (-sizes[context], context))
    greedy = place(sizes, budget, falling)
    if len(sizes) > EXACT_UP_TO:
        return greedy
    fitting = [context for context in falling if sizes[context] <= budget]
    groups = _search(fitting, sizes, budget, greedy)
    order = [context for group in groups for context in sorted(group)]
    return place(sizes, budget, [*order, *greedy.too_large])


def _search(
    items: list[int], sizes: Sequence[int], budget: int, greedy: Placement
) -> list[list[int]]:
    """Divide the contexts into the fewest groups such that each group fits a domain."""
    best = [list(domain.contexts) for domain in greedy.domains]
    fewest = -(-sum(sizes[context] for context in items) // budget) if items else 0

    def step(number: int, groups: list[list[int]], used: list[int]) -> None:
        nonlocal best
        if len(groups) >= len(best) or len(best) == fewest:
            return
        if number == len(items):
            best = [list(group) for group in groups]
            return
        context, tried = items[number], set()
        for domain, full in enumerate(used):
            if full + sizes[context] <= budget and full not in tried:
                tried.add(full)  # equally full domains are interchangeable
                groups[domain].append(context)
                used[domain] += sizes[context]
                step(number + 1, groups, used)
                used[domain] -= sizes[context]
                groups[domain].pop()
        if len(groups) + 1 < len(best):
            step(number + 1, [*groups, [context]], [*used, sizes[context]])

    step(0, [], [])
    return best
