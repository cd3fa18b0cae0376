"""Child program that runs a model and changed ones on the same data and compares the results.

A model is foreign code: here a crash, a hang or running out of memory costs one limited process.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input, random_sample, read_sample
from qnnmem.child import Frame, serve
from qnnmem.fix.proof import LEVELS, SAMPLES
from qnnmem.fix.proof.border import ModelBorder, Scale, Tensors
from qnnmem.lpai.quantize.graph import METADATA_KEY
from qnnmem.quiet_onnxruntime import exact_session, import_onnxruntime
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KINDS = {"float": "float32", "double": "float64"}  # onnxruntime's names that are not numpy's
_KEPT: list[tuple[Tensors, Tensors]] = []  # inputs and outputs of the model as it was
_EDGES: list[tuple[Tensors, Tensors]] = []  # the same for numbers that samples seldom hold
_WHOLE: list[tuple[list[int], bytes]] = []  # the model as it was
# Zero below zero, numbers too small for full precision, large ones: what a rewrite may forget.
_ODD = (-0.0, 0.0, 1e-41, -1e-41, 1e4, -1e4)
_ODD_SHARE = 0.25


def keep(options: Mapping[str, Any], payload: bytes) -> Frame:
    """Run the model as it was and keep what it is given and gives."""
    inputs = [Input(name, kind, tuple(shape), *of) for name, kind, shape, *of in options["inputs"]]
    _KEPT.clear()
    _EDGES.clear()
    _WHOLE[:] = [(options["sizes"], payload)]
    sessions = open_models(options["sizes"], payload)
    for feed in feeds(options, inputs):
        _KEPT.append((feed, run_parts(sessions, feed)))
    edges = edge_feed(inputs, options["seed"])
    with suppress(Exception):  # a model that does not take such numbers computes nothing of them
        _EDGES.append((edges, run_parts(sessions, edges)))
    return {}, b""


def edge_feed(inputs: list[Input], seed: int) -> Tensors:
    """Made-up data with numbers among them that real data seldom hold."""
    import numpy

    random = numpy.random.default_rng([seed, len(_ODD)])
    found = random_sample(inputs, seed, SAMPLES)
    for item in inputs:
        if item.dtype.startswith("float") and item.below is None:
            odd = numpy.asarray(random.choice(_ODD, item.shape), item.dtype)
            chosen = random.random(item.shape) < _ODD_SHARE
            found[item.name] = numpy.where(chosen, odd, found[item.name])
    return found


def feeds(options: Mapping[str, Any], inputs: list[Input]) -> Iterator[Tensors]:
    """Samples of the user, or made-up ones."""
    for sample in options["samples"]:
        yield read_sample(tuple((name, path) for name, path in sample), inputs)
    if not options["samples"]:
        for number in range(options["count"]):
            yield random_sample(inputs, options["seed"], number)


@dataclass
class _Gap:
    """How far the results of one output are from what they were, over all samples so far."""

    largest: float = 0.0
    relative: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    def add(self, exact: NDArray[Any], rough: NDArray[Any]) -> None:
        """Take in the results of one more sample."""
        import numpy

        gap, part = difference(exact, rough)
        self.largest, self.relative = max(self.largest, gap), max(self.relative, part)
        if math.isfinite(gap):
            true, other = exact.astype(numpy.float64), rough.astype(numpy.float64)
            even = numpy.isfinite(true) & numpy.isfinite(other)
            self.signal += float(numpy.square(true[even]).sum())
            self.noise += float(numpy.square(true[even] - other[even]).sum())

    @property
    def row(self) -> list[float | None]:
        """Largest difference, the same as part of the largest value, and decibels."""
        known = math.isfinite(self.largest) and self.signal > 0 and self.noise > 0
        decibels = 10 * math.log10(self.signal / self.noise) if known else None
        return [self.largest, self.relative, decibels]


def compare(options: Mapping[str, Any], payload: bytes) -> Frame:
    """Run a changed model on the same data; only one that may lose may have another border."""
    sessions = open_models(options["sizes"], payload)
    border = border_of(sessions) if options.get("lossy") else None
    gaps: dict[str, _Gap] = {}
    differing: dict[str, None] = {}
    others: dict[str, None] = {}  # outputs of other shapes
    digest = hashlib.sha256()
    for feed, wanted in _KEPT:
        found = run_changed(sessions, feed, wanted, border)
        for name, value in wanted.items():
            if name not in found:
                raise ValueError(f"the changed model has no output {quote(name)}")
            digest.update(found[name].tobytes())
            gap = gaps.setdefault(name, _Gap())
            if border is not None and value.shape != found[name].shape:
                others[name] = None
                continue
            gap.add(value, found[name])
            if not is_same(value, found[name]):
                differing[name] = None
    if border is None:
        for feed, wanted in _EDGES:
            found = run_parts(sessions, feed)
            for name, value in wanted.items():
                if not is_alike(value, found[name]):
                    differing[name] = None
                    gaps[name].add(value, found[name])
    measured = [gap for name, gap in gaps.items() if name not in others]
    header = {
        "samples": len(_KEPT),
        "outputs": len(_KEPT[0][1]) if _KEPT else 0,
        "differing": list(differing),
        "largest": max((gap.largest for gap in measured), default=0.0),
        "relative": max((gap.relative for gap in measured), default=0.0),
        "each": [[name, *gaps[name].row] for name in differing if name not in others],
        "unmeasured": list(others),
        "digest": digest.hexdigest(),
    }
    return header, b""


def levels(options: Mapping[str, Any], payload: bytes) -> Frame:
    """Compare both models at every optimisation level of onnxruntime but none."""
    enum = import_onnxruntime().GraphOptimizationLevel
    rows = []
    for level in LEVELS:
        chosen = {"graph_optimization_level": getattr(enum, f"ORT_ENABLE_{level.upper()}")}
        before = open_models(*_WHOLE[0], **chosen)
        after = open_models(options["sizes"], payload, **chosen)
        gaps = [(0.0, 0.0)]
        same = True
        for feed, _ in _KEPT:
            found = run_parts(after, feed)
            for name, value in run_parts(before, feed).items():
                if not is_same(value, found[name]):
                    same = False
                    gaps.append(difference(value, found[name]))
        rows.append([level, same, *map(max, zip(*gaps, strict=True))])
    return {"levels": rows}, b""


def run_changed(
    sessions: list[Any], feed: Tensors, wanted: Tensors, border: ModelBorder | None
) -> Tensors:
    """Outputs of a changed model for the data of the model as it was."""
    if border is None:
        return run_parts(sessions, feed)
    return border.joined([run_parts(sessions, one) for one in border.feeds(feed)], wanted)


def border_of(sessions: list[Any]) -> ModelBorder:
    """What all parts together take, and the scales that their files note."""
    made = {item.name for session in sessions for item in session.get_outputs()}
    inputs, scales = {}, dict[str, Scale]()
    for session in sessions:
        for item in session.get_inputs():
            if item.name not in made:
                kind = item.type.removeprefix("tensor(").removesuffix(")")
                inputs[item.name] = (_KINDS.get(kind, kind), tuple(item.shape))
        for key, text in session.get_modelmeta().custom_metadata_map.items():
            if key.startswith(METADATA_KEY):
                noted = json.loads(text[:1000])
                scale = float(noted["scale"]), int(noted["zero_point"])
                scales[key.removeprefix(METADATA_KEY)] = scale
    return ModelBorder(inputs, scales)


def run_parts(sessions: list[Any], feed: Tensors) -> Tensors:
    """Outputs of all parts by name; each part reads inputs and what parts before it gave."""
    known: Tensors = dict(feed)
    given: Tensors = {}
    for session in sessions:
        names = [item.name for item in session.get_outputs()]
        wanted = {item.name: known[item.name] for item in session.get_inputs()}
        results = dict(zip(names, session.run(names, wanted), strict=True))
        known.update(results)
        given.update(results)
    return given


def is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether every bit is the same."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()


def is_alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether every bit is the same, whatever stands for what is no number."""
    import numpy

    if one.dtype.kind != "f" or is_same(one, other):
        return is_same(one, other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    none = numpy.isnan(one) & numpy.isnan(other)
    return is_same(numpy.where(none, 0, one), numpy.where(none, 0, other))


def difference(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """Largest difference, and the same as part of the largest value."""
    import numpy

    endless = float("inf")
    if one.shape != other.shape or one.dtype.kind not in "fiub":
        return endless, endless
    exact, rough = one.astype(numpy.float64), other.astype(numpy.float64)
    odd = ~(numpy.isfinite(exact) & numpy.isfinite(rough))
    same = (exact == rough) | (numpy.isnan(exact) & numpy.isnan(rough))
    if (odd & ~same).any():
        return endless, endless
    gap = float(abs(exact - rough)[~odd].max(initial=0.0))
    top = float(abs(exact)[~odd].max(initial=0.0))
    return gap, gap / top if top else (endless if gap else 0.0)


def open_models(sizes: list[int], payload: bytes, **settings: Any) -> list[Any]:
    """Sessions on the models that stand one after the other in the payload."""
    ends = zip(sizes, accumulate(sizes), strict=True)
    return [exact_session(payload[end - size : end], **settings) for size, end in ends]


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    return serve({"keep": keep, "compare": compare, "levels": levels})


if __name__ == "__main__":
    sys.exit(main())
