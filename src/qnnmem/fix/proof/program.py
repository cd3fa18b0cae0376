"""Child program that runs a model and changed models on the same data and compares results.

A change can also be run in planned memory. The payload of a request is a list of models,
concatenated.

The inputs and outputs of a changed model can differ from those of the original. `ModelBorder`
converts between them:

    other element type     quantized with the scale stored in the file, or cast
    smaller batch          several runs, results concatenated
    other sizes            resized by linear interpolation

Outputs with another shape are not converted and cannot be compared.

Models are untrusted: a crash, a hang or an out-of-memory error ends only this limited process.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qnnmem.calibration import Input, Sample, random_sample, read_sample
from qnnmem.child import serve
from qnnmem.fix.proof import LEVELS, SAMPLES
from qnnmem.lpai.quantize.quantized_graph import METADATA_KEY
from qnnmem.quiet_onnxruntime import exact_session, import_onnxruntime
from qnnmem.text import quote
from qnnmem.wire import Done, WireMessage

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = dict[str, "NDArray[Any]"]
Scale = tuple[float, int]  # scale and zero point


@dataclass(frozen=True, slots=True)
class ModelBorder:
    """Types and shapes of a changed model's inputs, and the scales of its quantized IO."""

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    scales: Mapping[str, Scale]

    def feeds(self, feed: Tensors) -> list[Tensors]:
        """Return the inputs of each run, converted from the inputs of the original model."""
        runs = {name: self._runs(name, value) for name, value in feed.items()}
        count = max((len(pieces) for pieces in runs.values()), default=1)
        for name, pieces in runs.items():
            if len(pieces) not in (1, count):
                raise ValueError(
                    f"the batch of {quote(name)} needs a different number of runs than the "
                    "other inputs"
                )
        return [
            {name: pieces[run % len(pieces)] for name, pieces in runs.items()}
            for run in range(count)
        ]

    def _runs(self, name: str, value: NDArray[Any]) -> list[NDArray[Any]]:
        if name not in self.inputs:
            return [value]
        kind, shape = self.inputs[name]
        pieces = [value]
        if value.shape != shape:
            pieces = cut_batch(value, shape) or [resized(value, shape)]
        return [stored(piece, kind, self.scales.get(name)) for piece in pieces]

    def joined(self, results: Sequence[Tensors], wanted: Tensors) -> Tensors:
        """Join the outputs of all runs; return them in the element types of the original model."""
        import numpy

        outputs = {}
        for name, first in results[0].items():
            like, value = wanted.get(name), first
            if len(results) > 1 and like is not None and first.ndim:
                same = all(numpy.array_equal(result[name], first) for result in results)
                if not same or first.shape != like.shape:
                    value = numpy.concatenate([result[name] for result in results])
            outputs[name] = value if like is None else _restored(value, like, self.scales.get(name))
        return outputs


def cut_batch(value: NDArray[Any], shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Return the pieces of a batch; empty if the batch cannot be cut into pieces of this shape."""
    fits = value.ndim == len(shape) > 0 and value.shape[1:] == shape[1:] and shape[0] > 0
    if not fits or value.shape[0] % shape[0]:
        return []
    size = shape[0]
    return [value[start : start + size] for start in range(0, value.shape[0], size)]


def resized(value: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array resized by linear interpolation; integers take the nearest element."""
    import numpy

    if value.ndim != len(shape):
        raise ValueError(f"the changed model expects {len(shape)} axes instead of {value.ndim}")
    for axis, (old, new) in enumerate(zip(value.shape, shape, strict=True)):
        if old == new:
            continue
        positions = numpy.clip((numpy.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = numpy.floor(positions).astype(int)
        high = numpy.minimum(low + 1, old - 1)
        if value.dtype.kind != "f":
            value = value.take(numpy.rint(positions).astype(int), axis)
            continue
        part = (positions - low).reshape([-1 if i == axis else 1 for i in range(value.ndim)])
        mixed = value.take(low, axis) * (1 - part) + value.take(high, axis) * part
        value = mixed.astype(value.dtype)
    return value


def stored(value: NDArray[Any], kind: str, scale: Scale | None) -> NDArray[Any]:
    """Return an array in another element type, quantized as ONNX does if a scale is given."""
    import numpy

    if value.dtype.name == kind:
        return numpy.ascontiguousarray(value)
    dtype = numpy.dtype(kind)
    if dtype.kind in "iu" and value.dtype.kind == "f":
        if scale is None:
            raise ValueError(f"values cannot be converted to {kind} without a scale")
        limits = numpy.iinfo(dtype)
        steps = numpy.rint(value / numpy.float32(scale[0])) + scale[1]
        value = numpy.clip(steps, limits.min, limits.max)
    return numpy.ascontiguousarray(value.astype(dtype))


def _restored(value: NDArray[Any], like: NDArray[Any], scale: Scale | None) -> NDArray[Any]:
    import numpy

    if value.dtype == like.dtype:
        return value
    if value.dtype.kind in "iu" and like.dtype.kind == "f" and scale is not None:
        return ((value.astype(numpy.int64) - scale[1]) * numpy.float32(scale[0])).astype(like.dtype)
    return value.astype(like.dtype)


_KINDS = {"float": "float32", "double": "float64"}  # onnxruntime's type names unlike numpy's
_KEPT: list[tuple[Tensors, Tensors]] = []  # inputs and outputs of the original model
_EDGES: list[tuple[Tensors, Tensors]] = []  # the same for edge cases, which samples seldom contain
_WHOLE: list[tuple[list[int], bytes]] = []  # sizes and bytes of the original model
# -0.0, denormals and large numbers: a rewrite may get these wrong.
_EDGE_VALUES = (-0.0, 0.0, 1e-41, -1e-41, 1e4, -1e4)
_EDGE_SHARE = 0.25
_MOST_FINDINGS = 20
_LEAST = 5e-324  # reported difference if the bits differ but the numbers are equal


@dataclass(frozen=True, slots=True)
class OutputGap:
    """Difference of one output over all samples."""

    name: str
    largest: float
    relative: float  # relative to the largest value
    decibels: float | None = None  # signal-to-noise ratio; None if undefined


@dataclass(frozen=True, slots=True)
class LevelGap:
    """Difference of two models at one optimisation level of onnxruntime."""

    level: str
    identical: bool
    largest: float
    relative: float


@dataclass(frozen=True, slots=True)
class Proof:
    """Comparison of the results of two models on the same data."""

    samples: int
    outputs: int
    differing: tuple[str, ...]  # outputs that differ in at least one bit
    largest: float  # largest difference; infinite if a number became NaN or infinite
    relative: float  # relative to the output's largest value
    each: tuple[OutputGap, ...] = ()  # gaps of outputs that differ
    unmeasured: tuple[str, ...] = ()  # outputs with another shape
    digest: str = ""  # digest of all outputs of the changed model
    levels: tuple[LevelGap, ...] = ()  # gaps at levels other than "disabled", if compared

    @property
    def identical(self) -> bool:
        """True if every bit of every output is equal."""
        return not self.differing and not self.unmeasured

    @property
    def decibels(self) -> float | None:
        """Signal-to-noise ratio of the worst output in dB; None if undefined."""
        return min((gap.decibels for gap in self.each if gap.decibels is not None), default=None)


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """Check of one output over all samples."""

    name: str
    identical: bool = True  # equal bit for bit to the original model
    largest: float = 0.0  # difference from the original model
    relative: float = 0.0  # relative to the largest value
    planned: float = 0.0  # difference between planned memory and the CPU
    nans: int = 0
    infinities: int = 0
    new: int = 0  # infinities that the original model does not output


class ProofData(WireMessage, frozen=True):
    """Input data: the user's samples, or random samples from a seed."""

    inputs: list[Input]
    samples: tuple[Sample, ...]
    seed: int


class Keep(WireMessage, frozen=True):
    """Request to run the original model and store its inputs and outputs."""

    doing: ClassVar[str] = "comparing"
    sizes: list[int]  # bytes of each model in the payload
    data: ProofData


class Compare(WireMessage, frozen=True):
    """Request to compare a changed model with the original."""

    doing: ClassVar[str] = "comparing"
    sizes: list[int]
    lossy: bool


class Compared(WireMessage, frozen=True):
    """Answer to Compare: how a changed model's results compare with the original's."""

    proof: Proof


class CompareLevels(WireMessage, frozen=True):
    """Request to compare at every optimisation level of onnxruntime above "disabled"."""

    doing: ClassVar[str] = "comparing"
    sizes: list[int]


class LevelGaps(WireMessage, frozen=True):
    """Answer to CompareLevels: the differences at each level."""

    levels: tuple[LevelGap, ...]


class Validate(WireMessage, frozen=True):
    """Request to run all models, and an LPAI binary if given, on the same data."""

    doing: ClassVar[str] = "validating"
    sizes: list[int]
    data: ProofData
    lossy: bool
    binary: Path | None


class Validated(WireMessage, frozen=True):
    """Answer to Validate: checks of each output, and broken rules."""

    samples: int
    outputs: tuple[OutputCheck, ...]
    findings: tuple[str, ...]


class CompareSaved(WireMessage, frozen=True):
    """Request to run a model on samples, and compare its outputs with saved outputs."""

    doing: ClassVar[str] = "comparing"
    sizes: list[int]
    data: ProofData
    outputs: list[Input]
    saved: tuple[Sample, ...]


class SavedChecks(WireMessage, frozen=True):
    """Answer to CompareSaved: the check of each output."""

    outputs: tuple[OutputCheck, ...]


def compare_saved(request: CompareSaved, payload: bytes) -> SavedChecks:
    """Return one check for each output that was saved."""
    (model,) = open_models(request.sizes, payload)
    checks: dict[str, OutputCheck] = {}
    for feed, files in zip(feeds(request.data), request.saved, strict=True):
        wanted = run_parts([model], feed)
        for name, value in read_sample(files, request.outputs).items():
            check = checks.get(name) or OutputCheck(name)
            checks[name] = _checked(check, wanted[name], value, None)
    return SavedChecks(tuple(checks.values()))


def keep(request: Keep, payload: bytes) -> Done:
    """Run the original model and store its inputs and outputs."""
    _KEPT.clear()
    _EDGES.clear()
    _WHOLE[:] = [(request.sizes, payload)]
    sessions = open_models(request.sizes, payload)
    for feed in feeds(request.data):
        _KEPT.append((feed, run_parts(sessions, feed)))
    edges = edge_feed(request.data.inputs, request.data.seed)
    with suppress(Exception):  # a model that refuses edge cases has no results for them
        _EDGES.append((edges, run_parts(sessions, edges)))
    return Done()


def edge_feed(inputs: list[Input], seed: int) -> Tensors:
    """Return random data with edge cases such as -0.0 and denormals."""
    import numpy

    random = numpy.random.default_rng([seed, len(_EDGE_VALUES)])
    feed = random_sample(inputs, seed, SAMPLES)
    for item in inputs:
        if item.dtype.startswith("float") and item.below is None:
            edges = numpy.asarray(random.choice(_EDGE_VALUES, item.shape), item.dtype)
            chosen = random.random(item.shape) < _EDGE_SHARE
            feed[item.name] = numpy.where(chosen, edges, feed[item.name])
    return feed


def feeds(data: ProofData) -> Iterator[Tensors]:
    """Yield the user's samples, or random samples if there are none."""
    for sample in data.samples:
        yield read_sample(sample, data.inputs)
    if not data.samples:
        for number in range(SAMPLES):
            yield random_sample(data.inputs, data.seed, number)


@dataclass
class _Gap:
    """Accumulated difference of one output."""

    largest: float = 0.0
    relative: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    def add(self, exact: NDArray[Any], rough: NDArray[Any]) -> None:
        """Add the difference of this output for another sample."""
        import numpy

        gap, part = difference(exact, rough)
        self.largest, self.relative = max(self.largest, gap), max(self.relative, part)
        if math.isfinite(gap):
            exact, rough = exact.astype(numpy.float64), rough.astype(numpy.float64)
            finite = numpy.isfinite(exact) & numpy.isfinite(rough)
            self.signal += float(numpy.square(exact[finite]).sum())
            self.noise += float(numpy.square(exact[finite] - rough[finite]).sum())

    def of(self, name: str) -> OutputGap:
        """Return the accumulated difference of the output with this name."""
        known = math.isfinite(self.largest) and self.signal > 0 and self.noise > 0
        decibels = 10 * math.log10(self.signal / self.noise) if known else None
        return OutputGap(name, self.largest, self.relative, decibels)


def compare(request: Compare, payload: bytes) -> Compared:
    """Compare a changed model with the original; only a lossy change may have other IO types."""
    sessions = open_models(request.sizes, payload)
    border = border_of(sessions) if request.lossy else None
    gaps: dict[str, _Gap] = {}
    differing: dict[str, None] = {}
    reshaped: dict[str, None] = {}
    digest = hashlib.sha256()
    for feed, wanted in _KEPT:
        changed = run_changed(sessions, feed, wanted, border)
        for name, value in wanted.items():
            if name not in changed:
                raise ValueError(f"the changed model has no output {quote(name)}")
            digest.update(changed[name].tobytes())
            gap = gaps.setdefault(name, _Gap())
            if border is not None and value.shape != changed[name].shape:
                reshaped[name] = None
                continue
            gap.add(value, changed[name])
            if not is_same(value, changed[name]):
                differing[name] = None
    if border is None:
        for feed, wanted in _EDGES:
            changed = run_parts(sessions, feed)
            for name, value in wanted.items():
                if not is_same_but_nans(value, changed[name]):
                    differing[name] = None
                    gaps[name].add(value, changed[name])
    measured = [gap for name, gap in gaps.items() if name not in reshaped]
    return Compared(
        Proof(
            samples=len(_KEPT),
            outputs=len(_KEPT[0][1]) if _KEPT else 0,
            differing=tuple(differing),
            largest=max((gap.largest for gap in measured), default=0.0),
            relative=max((gap.relative for gap in measured), default=0.0),
            each=tuple(gaps[name].of(name) for name in differing if name not in reshaped),
            unmeasured=tuple(reshaped),
            digest=digest.hexdigest(),
        )
    )


def levels(request: CompareLevels, payload: bytes) -> LevelGaps:
    """Compare the original and the changed model at every optimisation level above "disabled"."""
    enum = import_onnxruntime().GraphOptimizationLevel
    rows = []
    for level in LEVELS:
        settings = {"graph_optimization_level": getattr(enum, f"ORT_ENABLE_{level.upper()}")}
        before = open_models(*_WHOLE[0], **settings)
        after = open_models(request.sizes, payload, **settings)
        gaps = [(0.0, 0.0)]
        same = True
        for feed, _ in _KEPT:
            changed = run_parts(after, feed)
            for name, value in run_parts(before, feed).items():
                if not is_same(value, changed[name]):
                    same = False
                    gaps.append(difference(value, changed[name]))
        rows.append(LevelGap(level, same, *map(max, zip(*gaps, strict=True))))
    return LevelGaps(tuple(rows))


def run_changed(
    sessions: list[Any], feed: Tensors, wanted: Tensors, border: ModelBorder | None
) -> Tensors:
    """Return the outputs of a changed model for the original model's inputs."""
    if border is None:
        return run_parts(sessions, feed)
    return border.joined([run_parts(sessions, run) for run in border.feeds(feed)], wanted)


def border_of(sessions: list[Any]) -> ModelBorder:
    """Return the inputs of the whole chain of parts, and the scales stored in the models."""
    results = {item.name for session in sessions for item in session.get_outputs()}
    inputs, scales = {}, dict[str, Scale]()
    for session in sessions:
        for item in session.get_inputs():
            if item.name not in results:
                kind = item.type.removeprefix("tensor(").removesuffix(")")
                inputs[item.name] = (_KINDS.get(kind, kind), tuple(item.shape))
        for key, text in session.get_modelmeta().custom_metadata_map.items():
            if key.startswith(METADATA_KEY):
                encoding = json.loads(text[:1000])
                scale = float(encoding["scale"]), int(encoding["zero_point"])
                scales[key.removeprefix(METADATA_KEY)] = scale
    return ModelBorder(inputs, scales)


def run_parts(sessions: list[Any], feed: Tensors) -> Tensors:
    """Return the outputs of all parts by name; later parts can read outputs of earlier parts."""
    outputs: Tensors = {}
    for session in sessions:
        names = [item.name for item in session.get_outputs()]
        known = {**feed, **outputs}
        inputs = {item.name: known[item.name] for item in session.get_inputs()}
        outputs.update(zip(names, session.run(names, inputs), strict=True))
    return outputs


def is_same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return True if both arrays are equal bit for bit."""
    same_type = left.dtype == right.dtype and left.shape == right.shape
    return same_type and left.tobytes() == right.tobytes()


def is_same_but_nans(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return True if both arrays are equal bit for bit, with all NaNs treated as equal."""
    import numpy

    if left.dtype.kind != "f" or left.dtype != right.dtype or left.shape != right.shape:
        return is_same(left, right)
    nans = numpy.isnan(left) & numpy.isnan(right)
    return is_same(numpy.where(nans, 0, left), numpy.where(nans, 0, right))


def difference(exact: NDArray[Any], rough: NDArray[Any]) -> tuple[float, float]:
    """Return the largest difference: absolute, and relative to the largest value."""
    import numpy

    if exact.shape != rough.shape or exact.dtype.kind not in "fiub":
        return math.inf, math.inf
    exact, rough = exact.astype(numpy.float64), rough.astype(numpy.float64)
    finite = numpy.isfinite(exact) & numpy.isfinite(rough)
    same = (exact == rough) | (numpy.isnan(exact) & numpy.isnan(rough))
    if not (finite | same).all():
        return math.inf, math.inf
    gap = float(abs(exact - rough)[finite].max(initial=0.0))
    top = float(abs(exact)[finite].max(initial=0.0))
    return gap, gap / top if top else (math.inf if gap else 0.0)


def open_models(sizes: list[int], payload: bytes, **settings: Any) -> list[Any]:
    """Return a session for each model in the payload."""
    ends = zip(sizes, accumulate(sizes), strict=True)
    return [exact_session(payload[end - size : end], **settings) for size, end in ends]


def validate(request: Validate, payload: bytes) -> Validated:
    """Return one check for each output, which compares the changed model with the original."""
    before, *after = open_models(request.sizes, payload)
    border = border_of(after) if request.lossy else None
    checks: dict[str, OutputCheck] = {}
    samples = 0
    with _Planned(request.binary) as planned:
        for feed in feeds(request.data):
            samples += 1
            wanted = run_parts([before], feed)
            changed = run_changed(after, feed, wanted, border)
            in_plan = planned.run(feed)
            for name, value in wanted.items():
                check = checks.get(name) or OutputCheck(name)
                executed = None if in_plan is None else in_plan[name]
                checks[name] = _checked(check, value, changed[name], executed)
        findings = tuple(islice(planned.findings(), _MOST_FINDINGS))
    return Validated(samples, tuple(checks.values()), findings)


class _Planned:
    """Runs an LPAI binary under the LPAI memory contract; without a path, it does nothing."""

    def __init__(self, path: Path | None) -> None:
        from qnnmem.lpai.runtime.session import Session

        self._session = None if path is None else Session(path, native=True)

    def __enter__(self) -> _Planned:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._session is not None:
            self._session.close()

    def run(self, feed: Tensors) -> Tensors | None:
        """Return the outputs, computed at their planned addresses; None if there is no binary."""
        return None if self._session is None else dict(self._session.run(feed))

    def findings(self) -> Iterator[str]:
        """Yield the broken rules as text."""
        for finding in () if self._session is None else self._session.findings:
            yield str(finding)


def _checked(
    check: OutputCheck,
    original: NDArray[Any],
    changed: NDArray[Any],
    executed: NDArray[Any] | None,
) -> OutputCheck:
    """Return the check updated with the outputs of another sample."""
    import numpy

    if not is_same(original, changed):
        gap, part = difference(original, changed)
        check = replace(
            check,
            identical=False,
            largest=max(check.largest, gap),
            relative=max(check.relative, part),
        )
    if executed is not None and not is_same(changed, numpy.asarray(executed)):
        gap = difference(changed, numpy.asarray(executed))[0] or _LEAST
        check = replace(check, planned=max(check.planned, gap))
    if changed.dtype.kind != "f":
        return check
    infinite = int(numpy.isinf(changed).sum())
    return replace(
        check,
        nans=check.nans + int(numpy.isnan(changed).sum()),
        infinities=check.infinities + infinite,
        new=check.new + max(0, infinite - int(numpy.isinf(original).sum())),
    )


def main() -> int:
    """Serve requests until the parent closes the pipe."""
    return serve(
        {
            Keep: keep,
            Compare: compare,
            CompareLevels: levels,
            CompareSaved: compare_saved,
            Validate: validate,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
