"""The search for sizes with which a model runs and can be shaped, within few attempts."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from qnnmem.errors import LoadError, UsageError, Words, chain_words
from qnnmem.loader.onnx.inputs import Fixed, dims_of, free_axes
from qnnmem.loader.onnx.sizes.attempts import Attempts, RunFailure, with_all_dependent
from qnnmem.loader.onnx.sizes.free_dimensions import OpenInputs, OpenSize, Switch

_HINTS = 6  # numbers of one failure that are tried
_UNSHAPED = 3  # sizes that run but cannot be shaped, before that becomes the answer
_LARGEST = 1 << 20
_EARLY = 5  # usual sizes are tried with the likeliest switches before other ones are


@dataclass(frozen=True, slots=True)
class OpenChoice:
    """A size for each open one, and a number for each switch."""

    sizes: tuple[tuple[OpenSize, int], ...]
    numbers: tuple[tuple[Switch, int], ...] = ()

    def sized(self, changes: Mapping[OpenSize, int]) -> OpenChoice:
        """Return a copy with some sizes changed."""
        return OpenChoice(tuple((o, changes.get(o, s)) for o, s in self.sizes), self.numbers)

    def switched(self, changes: Mapping[Switch, int]) -> OpenChoice:
        """Return a copy with other switch values; a window keeps its duration at another rate."""
        rates = {o.input: (changes[o], n) for o, n in self.numbers if o in changes and o.is_rate}
        sizes = (
            (o, number * new // old)
            for o, number in self.sizes
            for new, old in [rates.get(o.rate, (1, 1))]
        )
        return OpenChoice(tuple(sizes), tuple((o, changes.get(o, n)) for o, n in self.numbers))


@dataclass(frozen=True, slots=True)
class Found:
    """The best candidate, and why its trial is incomplete, if it is."""

    candidate: OpenChoice
    untried: Words = ""


def fixed_with(open_inputs: OpenInputs, given: Fixed, candidate: OpenChoice) -> Fixed:
    """Return the settings for a candidate in addition to the given ones."""
    by_dim = {size.dim: number for size, number in candidate.sizes if size.dim}
    by_axis = {(s.input, s.axis): number for s, number in candidate.sizes if not s.dim}
    dims, shapes = dict(given.dims), dict(given.shapes)
    values = {**given.values, **{s.input: s.value(number) for s, number in candidate.numbers}}
    for item in open_inputs.inputs:
        if item.name in values:
            continue
        sizes = dims_of(item)
        own = [by_dim.get(d.dim_param, by_axis.get((item.name, at))) for at, d in enumerate(sizes)]
        free = free_axes(item)
        if item.name in shapes:
            pairs = zip(own, shapes[item.name], strict=False)
            shapes[item.name] = tuple(old if new is None else new for new, old in pairs)
        elif -1 in free:
            shapes[item.name] = (by_axis[item.name, -1],)
        elif any(not sizes[at].dim_param for at in free):
            known = [dims.get(d.dim_param, d.dim_value) for d in sizes]
            pairs = zip(own, known, strict=True)
            shapes[item.name] = tuple(old if new is None else new for new, old in pairs)
        else:
            dims.update((d.dim_param, by_dim[d.dim_param]) for d in sizes if d.dim_param in by_dim)
    return Fixed(dims, shapes, values)


def search(
    attempts: Attempts,
    open_inputs: OpenInputs,
    given: Fixed,
    start: OpenChoice,
    *,
    grow: bool = False,
) -> Found:
    """The first candidate that runs and can be shaped; `grow` looks near the start first."""
    near: deque[OpenChoice] = deque([start])
    far = iter(_grown(start)) if grow else iter(())
    far = itertools.chain(far, _others(start))
    seen: set[OpenChoice] = set()
    unshaped: list[Found] = []
    while not attempts.is_over and len(unshaped) < _UNSHAPED:
        batch = [near.popleft()] if near else []
        batch += itertools.islice(far, 1)
        if not batch:
            break
        for candidate in batch:
            if candidate in seen:
                continue
            seen.add(candidate)
            fixed = fixed_with(open_inputs, given, candidate)
            failure = attempts.run(fixed)
            if failure is not None:
                near.extend(_hinted(candidate, failure))
                continue
            why = _why_unshaped(attempts, fixed, in_full=not unshaped)
            if not why:
                return Found(candidate)
            unshaped.append(Found(candidate, why))
    return unshaped[0] if unshaped else Found(start, attempts.barrier or "all that were tried fail")


def _why_unshaped(attempts: Attempts, fixed: Fixed, *, in_full: bool) -> Words:
    try:
        attempts.shape(fixed)
    except LoadError as exc:
        whole = with_all_dependent(attempts.model, fixed, attempts.child, exc) if in_full else exc
        return chain_words(whole.what, "; " if whole.cure else "", whole.cure)
    except UsageError as exc:
        return chain_words(exc.what, "; " if exc.cure else "", exc.cure)
    return ""


def _others(start: OpenChoice) -> Iterator[OpenChoice]:
    """Yield other usual sizes: all but batches at once, then switches, then one by one."""
    long = [size for size, number in start.sizes if number != 1]
    most = max((len(size.worth) for size in long), default=0)
    for at in range(1, most):
        yield start.sized({size: size.worth[at] for size in long if at < len(size.worth)})
        if at == _EARLY:
            yield from _switched(start, 1)
    for at in range(1, 16):
        yield from _switched(start, at)
        for size, _ in start.sizes:
            if at < len(size.worth):
                yield start.sized({size: size.worth[at]})


def _switched(start: OpenChoice, at: int) -> Iterator[OpenChoice]:
    for switch, _ in start.numbers:
        if at < len(switch.worth):
            yield start.switched({switch: switch.worth[at]})


def _grown(start: OpenChoice) -> Iterator[OpenChoice]:
    """Yield the same sizes with one of them repeatedly doubled or halved."""
    for power in range(1, 12):
        for size, number in start.sizes:
            if number << power <= _LARGEST and number:
                yield start.sized({size: number << power})
            if number >> power:
                yield start.sized({size: number >> power})


def _hinted(candidate: OpenChoice, failure: RunFailure) -> Iterable[OpenChoice]:
    """Yield sizes that the reason of a failure names."""
    known = {number for _, number in candidate.sizes}
    numbers = [number for number in failure.numbers if number <= _LARGEST]
    fresh = [number for number in numbers if number not in known]
    for number in (*fresh, *(n for n in numbers if n in known))[:_HINTS]:
        for size, old in candidate.sizes:
            if old != number:
                yield candidate.sized({size: number})


def boundary(
    attempts: Attempts,
    open_inputs: OpenInputs,
    given: Fixed,
    found: OpenChoice,
    size: OpenSize,
    bad: int,
) -> int | None:
    """Return the size nearest to a bad one that still runs, or None."""
    good = dict(found.sizes)[size]

    def runs(number: int) -> bool:
        fixed = fixed_with(open_inputs, given, found.sized({size: number}))
        return attempts.run(fixed) is None

    step = 1 if good > bad else -1
    if not runs(good + step):
        return None
    while abs(good - bad) > 1:
        if attempts.is_over:
            return None
        middle = (good + bad) // 2
        if runs(middle):
            good = middle
        else:
            bad = middle
    return good if runs(good + step) else None
