"""Proves that a changed model computes the same: both are run, every output is compared bit by bit.

onnxruntime runs them without optimisation on one thread, in a child process with limits. Models
must hold their own data; a model cut into parts is run part by part, tensors handed on by name.

A change that may lose is measured: how far each output is off, and how loud that is. It may take
and give integers, smaller batches or other sizes; outputs of other shapes cannot be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input, Sample
from qnnmem.child import ChildProcess, Frame, describe_limit
from qnnmem.errors import ChildFailed
from qnnmem.fix.proof import SAMPLES

if TYPE_CHECKING:
    import onnx

_LARGEST_MODEL = (2 << 30) - 1  # protobuf's own limit


@dataclass(frozen=True, slots=True)
class OutputGap:
    """How far one output is off, over all samples."""

    name: str
    largest: float
    relative: float  # the same as part of the largest value
    decibels: float | None = None  # signal to noise; None where it cannot be said


@dataclass(frozen=True, slots=True)
class LevelGap:
    """How two models compare at one optimisation level of onnxruntime."""

    level: str
    identical: bool
    largest: float
    relative: float


@dataclass(frozen=True, slots=True)
class Proof:
    """How the results of two models compare on the same data."""

    samples: int
    outputs: int
    differing: tuple[str, ...]  # outputs that are not the same bit by bit
    largest: float  # largest difference; infinite where a number became none
    relative: float  # the same as part of the output's largest value
    each: tuple[OutputGap, ...] = ()  # of outputs that differ
    unmeasured: tuple[str, ...] = ()  # outputs that have another shape
    digest: str = ""  # of all that the changed model gave
    levels: tuple[LevelGap, ...] = ()  # beside none, where they were compared

    @property
    def identical(self) -> bool:
        """Whether every bit of every output is the same."""
        return not self.differing and not self.unmeasured

    @property
    def decibels(self) -> float | None:
        """Signal to noise of the worst output; None where it cannot be said."""
        return min((one.decibels for one in self.each if one.decibels is not None), default=None)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Proof:
        """From what a child said, or from what `as_json` gave."""
        return cls(
            int(found["samples"]),
            int(found["outputs"]),
            tuple(map(str, found["differing"])),
            float(found["largest"]),
            float(found["relative"]),
            tuple(OutputGap(*one) for one in found["each"]),
            tuple(map(str, found["unmeasured"])),
            str(found["digest"]),
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        each = [[one.name, one.largest, one.relative, one.decibels] for one in self.each]
        return {**asdict(self), "each": each, "levels": []}


class Prover(ChildProcess):
    """Keeps what a model computes, and compares any number of changed ones with it."""

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        samples: Sequence[Sample] = (),
        seed: int = 0,
        time_limit_s: float = 600.0,
    ) -> None:
        super().__init__("qnnmem.fix.proof.program", time_limit_s)
        self._header = {
            "verb": "keep",
            "inputs": inputs_of(model),
            "samples": [[(name, str(Path(p).absolute())) for name, p in one] for one in samples],
            "count": len(samples) or SAMPLES,
            "seed": seed,
        }
        self._model: onnx.ModelProto | None = model

    def compare(self, *parts: onnx.ModelProto, lossy: bool = False) -> Proof:
        """Run the parts of a changed model one after the other, and compare all outputs.

        Only a change that may lose may take and give other types and sizes.
        """
        if self._model is not None:
            self._asked(self._header, (self._model,))
            self._model = None
        return Proof.from_json(self._asked({"verb": "compare", "lossy": lossy}, parts))

    def levels(self, *parts: onnx.ModelProto) -> tuple[LevelGap, ...]:
        """Compare at every optimisation level, both models at the same."""
        if self._model is not None:
            self._asked(self._header, (self._model,))
            self._model = None
        rows = self._asked({"verb": "levels"}, parts)["levels"]
        return tuple(
            LevelGap(str(level), bool(same), float(gap), float(part))
            for level, same, gap, part in rows
        )

    def _asked(self, header: dict[str, Any], models: Sequence[onnx.ModelProto]) -> dict[str, Any]:
        if sum(model.ByteSize() for model in models) > _LARGEST_MODEL:
            raise ChildFailed("a model of more than 2 GiB cannot be run for comparison")
        blobs = [model.SerializeToString() for model in models]
        frame = self.ask({**header, "sizes": [*map(len, blobs)]}, b"".join(blobs))
        return self._answer(frame)

    def _answer(self, frame: Frame | None) -> dict[str, Any]:
        if frame is None:
            if self.expired:
                raise ChildFailed(f"comparing did not finish within {self.time_limit_s:.3g} s")
            limit = describe_limit(self.memory_limit)
            raise ChildFailed(f"comparing crashed or ran out of memory, {limit}")
        if "error" in frame[0]:
            raise ChildFailed(str(frame[0]["error"]))
        return frame[0]


def prove(
    before: onnx.ModelProto,
    *after: onnx.ModelProto,
    samples: Sequence[Sample] = (),
    seed: int = 0,
    time_limit_s: float = 600.0,
    lossy: bool = False,
) -> Proof:
    """Compare a model with a changed one, or with the parts that it was cut into."""
    with Prover(before, samples=samples, seed=seed, time_limit_s=time_limit_s) as prover:
        return prover.compare(*after, lossy=lossy)


def inputs_of(model: onnx.ModelProto) -> list[Input]:
    """Inputs of a model whose shapes are fixed, as made-up data needs them."""
    from onnx import helper

    from qnnmem.loader.onnx.index_limits import index_limits

    rows = index_limits(model.graph)
    found = []
    for item in model.graph.input:
        kind = item.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = tuple(size.dim_value for size in kind.shape.dim)
        found.append(Input(item.name, dtype.name, shape, below=rows.get(item.name)))
    return found
