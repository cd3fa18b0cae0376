"""Tries a model with the caller's sizes, or finds sizes with which it runs.

all sizes are given, and onnxruntime runs it    ->  the shaped model
a size is left open                             ->  FreeDimensions with sizes that were tried
a size does not fit                             ->  which size, and how large it must be
a branch cannot be taken with these sizes       ->  the value of an input that avoids it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from qnnmem.errors import (
    FreeDimensions,
    LoadError,
    Setting,
    Words,
    chain_words,
    join_words,
    spaced,
)
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, is_op
from qnnmem.loader.onnx.inputs import Fixed, dims_of, settings_of
from qnnmem.loader.onnx.passes.resolve import OpenModel
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.loader.onnx.sizes.free_dimensions import OpenInputs, OpenSize, Switch, find_open_inputs
from qnnmem.loader.onnx.sizes.size_search import (
    Attempts,
    OpenChoice,
    RunFailure,
    boundary,
    fixed_with,
    search,
    shape_model,
    with_all_dependent,
)
from qnnmem.loader.onnx.trial import TrialChild
from qnnmem.text import quote

_RECURRENT = ("LSTM", "GRU", "RNN")  # shape inference ignores their states
_COMBINATIONS = 6  # of switch values
_MOST_WATCHED = 10_000


def shape_or_advise(model: OpenModel, fixed: Fixed, child: TrialChild) -> ShapedModel:
    """Return the shaped model, or raise an error that suggests sizes onnxruntime accepts."""
    try:
        shaped = shape_model(model, fixed, child)
    except LoadError as exc:
        error = with_all_dependent(model, fixed, child, exc)
        raise _Advisor(model, fixed, child).advise(error) from exc
    if not fixed and not any(is_op(node, *_RECURRENT) for node in model.graph.node):
        return shaped
    advisor = _Advisor(model, fixed, child)
    refused = advisor.refusal(shaped)
    if isinstance(refused, LoadError):
        raise advisor.advise(refused)
    return replace(shaped, notes=refused)


def _watched(model: OpenModel, shaped: ShapedModel) -> tuple[str, ...]:
    """Return the tensors whose shape comes from inference alone, to be confirmed by a trial run."""
    if not any(item.domain in ONNX_DOMAINS for item in model.head.opset_import):
        return ()
    results = (name for node in model.graph.node for name in node.output)
    settled = filter(shaped.scope.settled.__contains__, results)
    return tuple(itertools.islice(settled, _MOST_WATCHED))


def _check_seen(shaped: ShapedModel, seen: Mapping[str, tuple[int, ...]]) -> None:
    """Raise LoadError if a run shows other shapes than inference found."""
    for name, shape in seen.items():
        inferred = shaped.scope.types[name].shape
        if inferred != shape:
            node = next(n for n in shaped.resolved.graph.node if name in n.output)
            raise LoadError(
                shaped.resolved.path,
                f"the shape of {quote(name)}, output of {quote(node.op_type)}, is "
                f"{list(shape)} in a run but {list(inferred or ())} in shape inference",
            )


class _Advisor:
    """Builds advice about one model and the sizes and values given for it."""

    def __init__(self, model: OpenModel, given: Fixed, child: TrialChild) -> None:
        self._model, self._given = model, given
        self._open_inputs: OpenInputs = find_open_inputs(model.graph)
        self._switches = [s for s in self._open_inputs.switches if s.input not in given.values]
        self._child = child

    def advise(self, error: LoadError) -> LoadError:
        """Return the error with advice added; it keeps the name of its pass."""
        better = self._complete(error) if isinstance(error, FreeDimensions) else self._mend(error)
        better.stage = error.stage
        return better

    def _fixed_with(self, choice: OpenChoice) -> Fixed:
        return fixed_with(self._open_inputs, self._given, choice)

    def _complete(self, error: FreeDimensions) -> FreeDimensions:
        """Return the error with suggested sizes for every open dimension."""
        sizes = tuple((s, s.candidates[0]) for s in self._open_sizes() if self._size(s) is None)
        numbers = tuple((switch, switch.candidates[0]) for switch in self._switches)
        attempts = Attempts(self._model, self._child)
        best = search(attempts, self._open_inputs, self._given, OpenChoice(sizes, numbers))
        settings = settings_of(self._fixed_with(best.choice))
        others = () if best.untried else self._at_other_rates(attempts, best.choice, settings)
        return FreeDimensions(error.path, error.free, settings, untried=best.untried, others=others)

    def _at_other_rates(
        self, attempts: Attempts, best: OpenChoice, settings: Sequence[Setting]
    ) -> tuple[Words, ...]:
        """Return the changed settings for each other sample rate at which the model runs.

        Inputs that are lengths in samples keep their duration at each rate.
        """
        choices = (
            best.switched({switch: rate})
            for switch, chosen in best.numbers
            if switch.is_rate and any(size.rate == switch.input for size, _ in best.sizes)
            for rate in switch.candidates
            if rate != chosen
        )
        fitting = (choice for choice in choices if self._fits(attempts, choice))
        lists = (settings_of(self._fixed_with(choice)) for choice in fitting)
        return tuple(spaced([item for item in items if item not in settings]) for items in lists)

    def _mend(self, error: LoadError) -> LoadError:
        """Return the error; its cure names sizes or values that avoid the error, if known."""
        sizes = tuple((item, size) for item in self._open_sizes() if (size := self._size(item)))
        if not (sizes or self._switches):
            return error
        attempts = Attempts(self._model, self._child)
        if attempts.barrier:
            return error
        for combination in self._combinations():
            if self._fits(attempts, OpenChoice(sizes, combination)):
                return self._switched(error, combination)
        if error.cure:  # caused by data, not by sizes
            return error
        start = OpenChoice(sizes, tuple((s, s.candidates[0]) for s in self._switches))
        best = search(attempts, self._open_inputs, self._given, start, grow=True)
        return error if best.untried else self._resized(error, attempts, start, best.choice)

    def refusal(self, shaped: ShapedModel) -> LoadError | tuple[str, ...]:
        """Return the error if onnxruntime rejects these sizes, otherwise notes on failed runs."""
        attempts = Attempts(self._model, self._child, _watched(self._model, shaped))
        if attempts.barrier:
            return ()
        failures: list[tuple[str, RunFailure]] = []
        combinations = list(self._combinations()) or [()]
        for combination in combinations:
            fixed = self._fixed_with(OpenChoice((), combination))
            failure = attempts.run(fixed, thorough=True)
            _check_seen(shaped, attempts.seen)
            if failure is not None:
                values = " and ".join(f"{s.input}={s.value(n)}" for s, n in combination)
                failures.append((values, failure))
        if failures and len(failures) == len(combinations):
            text = failures[0][1].text
            if all(failure.is_steady for _, failure in failures):
                return LoadError(self._model.path, f"onnxruntime rejects these sizes: {text}")
            why = "because the trial run with random data failed"
            return (f"these sizes were not fully tested, {why}: {text}",)
        return tuple(
            f"onnxruntime rejects these sizes when {values}: {failure.text}"
            for values, failure in failures
        )

    def _open_sizes(self) -> list[OpenSize]:
        """Return the open sizes, except those of inputs that became constants."""
        return [
            size.at_rate(self._rate(size.rate)) if size.rate else size
            for size in self._open_inputs.sizes
            if size.input not in self._given.values
        ]

    def _rate(self, name: str) -> int:
        """Return the sample rate that the caller gives, or the first rate to try."""
        rate = self._given.values.get(name)
        if isinstance(rate, int) and rate > 0:
            return rate
        return next(s.candidates[0] for s in self._open_inputs.switches if s.input == name)

    def _size(self, size: OpenSize) -> int | None:
        """Return the caller's size for an open size; None if the caller gives none."""
        if size.dim in self._given.dims:
            return self._given.dims[size.dim]
        for item in self._open_inputs.inputs:
            shape = self._given.shapes.get(item.name)
            if shape is None:
                continue
            for axis, (dim, number) in enumerate(zip(dims_of(item), shape, strict=False)):
                is_axis = (item.name, axis) == (size.input, size.axis)
                if is_axis or (size.dim and dim.dim_param == size.dim):
                    return number
        return None

    def _combinations(self) -> Iterator[tuple[tuple[Switch, int], ...]]:
        """Yield combinations of switch values, the likeliest first."""
        if not self._switches:
            return
        values = [[(switch, number) for number in switch.candidates] for switch in self._switches]
        yield from itertools.islice(itertools.product(*values), _COMBINATIONS)

    def _fits(self, attempts: Attempts, choice: OpenChoice) -> bool:
        """Return whether the model runs and can be shaped with these sizes and values."""
        fixed = self._fixed_with(choice)
        if attempts.run(fixed) is not None:
            return False
        try:
            attempts.shape(fixed)
        except LoadError:
            return False
        return True

    def _switched(self, error: LoadError, combination: tuple[tuple[Switch, int], ...]) -> LoadError:
        """Return the error with input values that avoid the branch in which the error occurs."""
        settings = settings_of(self._fixed_with(OpenChoice((), combination)))
        names = ", ".join(quote(switch.input) for switch, _ in combination)
        verb = "decides" if len(combination) == 1 else "decide"
        cure = chain_words(
            (f"{names} {verb} which branch is taken; the model runs with ", *spaced(settings)),
            ", or " if error.cure else "",
            error.cure,
        )
        return LoadError(error.path, error.what, cure=cure, settings=settings)

    def _resized(
        self, error: LoadError, attempts: Attempts, start: OpenChoice, best: OpenChoice
    ) -> LoadError:
        """Return the error with the size that does not fit and a size that fits."""
        old = dict(start.sizes)
        changed = [size for size, number in best.sizes if old[size] != number]
        reason = "these sizes are inconsistent"
        if len(changed) == 1:
            size = changed[0]
            limit = boundary(attempts, self._open_inputs, self._given, best, size, old[size])
            reason = f"{size.words} cannot be {old[size]}"
            if limit is not None and self._fits(attempts, best.sized({size: limit})):
                best = best.sized({size: limit})
                bound = "at least" if limit > old[size] else "at most"
                reason = f"{size.words} is {old[size]} but must be {bound} {limit}"
        fixed = self._fixed_with(best)
        if not changed:  # a name used for two sizes
            given = self._given.shapes
            name = next((n for n, shape in fixed.shapes.items() if given.get(n) != shape), "")
            sizes = "x".join(map(str, given.get(name, ())))
            reason = f"input {quote(name)} cannot have shape {sizes}"
        settings = settings_of(fixed)
        return LoadError(
            error.path,
            f"{reason} ({join_words(error.what)})",
            cure=("the model runs with ", *spaced(settings)),
            settings=settings,
        )
