"""Several input shapes of one model: one graph per shape, all in one binary.

LPAI fixes all shapes when a model is prepared. A model that runs at two resolutions therefore
becomes two graphs, which share their weights in one binary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qnnmem.errors import UsageError
from qnnmem.text import by_sizes, quote

Shape = tuple[int, ...]
_MOST_SETS = 16


def shape_sets(given: Iterable[tuple[str, Shape]]) -> tuple[dict[str, Shape], ...]:
    """Return the input shapes of each graph; a shape given only once applies to all graphs."""
    by_name: dict[str, list[Shape]] = {}
    for name, shape in given:
        by_name.setdefault(name, []).append(shape)
    counts = {len(shapes) for shapes in by_name.values()} - {1}
    if len(counts) > 1:
        raise UsageError(
            f"one tensor has {max(counts)} shapes but another has {min(counts)}; give each tensor "
            "either one shape or one shape per graph"
        )
    graphs = max(counts, default=1)
    if graphs > _MOST_SETS:
        raise UsageError(
            f"{graphs} shapes per tensor need {graphs} graphs; the limit is {_MOST_SETS}"
        )
    sets = [
        {name: shapes[graph if len(shapes) > 1 else 0] for name, shapes in by_name.items()}
        for graph in range(graphs)
    ]
    repeated = next((shapes for i, shapes in enumerate(sets) if shapes in sets[:i]), None)
    if repeated is not None:
        name = next(iter(repeated))
        raise UsageError(
            f"two graphs would be equal: {quote(name)} and every other tensor "
            "have the same shapes in both"
        )
    return tuple(sets)


def set_names(sets: Sequence[Mapping[str, Shape]]) -> list[str]:
    """Return a name for each set, made from the shapes that differ between sets."""
    several = [name for name in sets[0] if len({shapes[name] for shapes in sets}) > 1]
    return ["_".join(by_sizes(shapes[name], "") for name in several) for shapes in sets]
