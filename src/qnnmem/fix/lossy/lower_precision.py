"""Remedy that computes with fewer bits: the model is quantized, and the error measured.

    LPAI   int16, w8a16, int8   as `prepare` does for LPAI, with integer inputs and outputs
    HTP    fp16, w8a16, int8    as a compile for HTP does, with integer inputs and outputs

Judge and proof get the quantized model itself, so other remedies such as bands or parts can follow.
Ranges come from the user's samples, cropped or resized for the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Literal

from qnnmem.errors import ChildFailed, LoadError, UsageError, join_words
from qnnmem.fix.proof.program import ModelBorder
from qnnmem.fix.proof.prove import inputs_of
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    Need,
    Step,
    read_again,
    self_contained,
)
from qnnmem.lpai.quantize import RANDOM_SAMPLES
from qnnmem.planner.pools import PoolOptions
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader.onnx.passes.shape import ShapedModel

_MOST = 256  # samples; more samples hardly change the ranges


def calibration_folder(case: FixCase, model: ShapedModel, folder: Path) -> Path | None:
    """Write the samples of a case for the model, one file each, and return their folder.

    Return None if the case has no samples and the model's inputs are unchanged: the quantizer and
    the proof then generate the same random data.
    """
    import zipfile

    from numpy.lib import format as npy

    from qnnmem.calibration import random_sample, read_sample
    from qnnmem.loader.onnx.passes.shape import write_typed

    inputs = inputs_of(write_typed(case.model))
    types = {item.name: (item.dtype, item.shape) for item in inputs_of(write_typed(model))}
    if not case.samples and types == {item.name: (item.dtype, item.shape) for item in inputs}:
        return None
    folder.mkdir()
    border = ModelBorder(types, {})
    real = (read_sample(sample, inputs) for sample in case.samples[:_MOST])
    random = (random_sample(inputs, case.seed, number) for number in range(RANDOM_SAMPLES))
    number = 0
    for sample in real if case.samples else random:
        for feed in border.feeds(sample):
            # numpy.savez cannot store an input whose name is `file`.
            with zipfile.ZipFile(folder / f"{number:06}.npz", "w") as archive:
                for name, value in feed.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        npy.write_array(file, value, allow_pickle=False)
            number += 1
    return folder


_QUANTIZE_S = 600.0
# Bits of activations and of weights by the name of the precision, the least lossy first.
LPAI_WIDTHS: dict[str, tuple[Literal[8, 16], Literal[8, 16]]] = {
    "int16": (16, 16),
    "w8a16": (16, 8),
    "int8": (8, 8),
}
HTP_WORDS = ("fp16", "w8a16", "int8")
_WEIGHTS = {"constants", "tcm"}  # pools that contain weights
_LAYOUT = ("plan", "tiling", "placement")  # remedies to repeat for a quantized model


@dataclass(frozen=True, slots=True)
class PrecisionRemedy:
    """Remedy that quantizes a model to each precision in `words`."""

    words: tuple[str, ...] = ()
    name: str = "precision"

    def changes(self, bench: FixBench, base: JudgedChange) -> Iterator[JudgedChange]:
        """Yield quantized models, the least lossy first; precisions that cannot fit are skipped."""
        start = without_layout(base.change)
        words = [word for word in precisions_for(bench.case) if word in self.words]
        likely = _likely(bench, base.change, words)
        skipped = words[: words.index(likely[0])] if likely else []
        notes = tuple(f"{word} loses less accuracy, but its plan does not fit" for word in skipped)
        last: tuple[int, Need] | None = None
        for word in likely:
            width = 0  # not for HTP: weights count against all of its limits
            if isinstance(start.options, PoolOptions):
                width = LPAI_WIDTHS[word][0]
            if last is not None and width and last[0] == width and not _weights_matter(last[1]):
                continue
            judged = self._judged(bench, start, word, notes)
            last = width, judged.need
            yield judged
        # If no bands of the quantized model fit, quantized bands of the float model may.
        if likely and base.change.model is not start.model and base.change.parts is None:
            yield self._judged(bench, base.change, likely[-1], notes)

    def _judged(
        self, bench: FixBench, base: Change, word: str, notes: tuple[str, ...]
    ) -> JudgedChange:
        begin = monotonic()
        change = self._quantized(bench.case, base, word)
        judged = bench.judged(replace(change, notes=(*change.notes, *notes)))
        return replace(judged, seconds=monotonic() - begin)

    def replay(self, case: FixCase, base: Change, step: Step) -> Change:
        """Return `base` quantized as in the recipe, with ranges from the samples of this run."""
        word = str(step["to"])
        if word not in precisions_for(case):
            raise UsageError(
                f"the recipe quantizes to {quote(word)}, which this backend does not support"
            )
        return self._quantized(case, base, word)

    def _quantized(self, case: FixCase, base: Change, word: str) -> Change:
        try:
            model, notes = _quantized(case, base, word)
        except (LoadError, UsageError) as exc:
            raise ChildFailed(f"{word}: {join_words(exc.what)}") from exc
        kind = "float16" if word == "fp16" else "integers whose scales are in the file"
        notes = (f"float inputs and outputs become {kind}", *notes)
        if not case.samples and word != "fp16":
            notes = (
                f"WARNING: ranges of {word} come from random data: sizes are right, but results "
                "and the error shown are not; pass your own samples",
                *notes,
            )
        return base.then(
            self.name,
            word,
            {"to": word},
            model=model,
            is_lossy=True,
            notes=(*base.notes, *notes),
        )


def precisions_for(case: FixCase) -> tuple[str, ...]:
    """Return the precisions of the case's backend, the least lossy first."""
    return tuple(LPAI_WIDTHS) if isinstance(case.options, PoolOptions) else HTP_WORDS


def without_layout(change: Change) -> Change:
    """Return the change without bands, order and parts, because they depend on the model."""
    while change.of is not None and (change.remedy in _LAYOUT or change.parts is not None):
        change = change.of
    return change


def repeated_precision(case: FixCase, change: Change, done: Change) -> Change:
    """Return `change` quantized to the precision with which `done` was quantized."""
    for step in done.steps:
        if step["remedy"] == "precision":
            change = PrecisionRemedy().replay(case, change, step)
    return change


def _likely(bench: FixBench, best: Change, words: list[str]) -> list[str]:
    """Return the first precision whose plan fits and all after it; only the last if no plan fits.

    Planning the best change with fewer bits is cheap; quantizing takes long.
    """
    options = best.options
    if not isinstance(options, PoolOptions):
        return words
    present = options.bits
    words = [word for word in words if present is None or LPAI_WIDTHS[word][0] < present]
    for index, word in enumerate(words):
        bits, weight_bits = LPAI_WIDTHS[word]
        need = bench.judge(replace(best, options=replace(options, bits=bits)))
        # The plan gives weights as many bits as activations, so it overstates weights with fewer
        # bits.
        over = set(need.over) - (_WEIGHTS if weight_bits < bits else set())
        if need.fits is not False or not over:
            return words[index:]
    return words[-1:]


def _weights_matter(need: Need) -> bool:
    """Return True if a pool that contains weights exceeds its limit."""
    return bool(_WEIGHTS & set(need.over))


def _quantized(case: FixCase, base: Change, word: str) -> tuple[ShapedModel, tuple[str, ...]]:
    """Return the quantized model, and notes about the quantization."""
    import onnx

    if word == "fp16":
        return read_again(_halved(self_contained(base.model))), ()
    with TemporaryDirectory(".qnnmem") as name:
        folder = Path(name)
        source, target = folder / "model.onnx", folder / "quantized.onnx"
        source.write_bytes(self_contained(base.model).SerializeToString())
        samples = calibration_folder(case, base.model, folder / "samples")
        options = base.options
        if isinstance(options, PoolOptions):
            notes = _for_lpai(case, options, word, (source, target, samples))
        else:
            notes = _for_htp(case, options, word, (source, target, samples))
        model = onnx.load(target)
    return read_again(model), notes


_Files = tuple[Path, Path, Path | None]  # model, quantized model, samples


def _for_lpai(case: FixCase, options: PoolOptions, word: str, files: _Files) -> tuple[str, ...]:
    from qnnmem.lpai.quantize import quantize_model

    bits, weight_bits = LPAI_WIDTHS[word]
    result = quantize_model(
        files[0],
        files[1],
        bits=bits,
        weight_bits=weight_bits,
        calibration=files[2],
        seed=case.seed,
        states=options.states,
        time_limit_s=_QUANTIZE_S,
    )
    # The first note is about random samples, the last about the error; both are reported elsewhere.
    return result.notes[result.seeded_random : -1 if result.worst_error is not None else None]


def _for_htp(case: FixCase, options: CompileOptions, word: str, files: _Files) -> tuple[str, ...]:
    import onnx

    from qnnmem.htp.compile import HtpPrecision, ModelSource, quantize_request
    from qnnmem.htp.worker import Worker
    from qnnmem.lpai.quantize.quantized_graph import integer_io

    source, target, samples = files
    wanted = replace(options, precision=HtpPrecision(word), calibration=samples, seed=case.seed)
    scratch = target.with_name("scratch")
    scratch.mkdir()
    model = ModelSource(source, source.parent)
    with Worker() as worker:
        outcome = worker.ask(quantize_request(wanted, model, scratch, target))
    if not outcome.is_done:
        raise ChildFailed(f"{word}: {outcome.sentence}")
    quantized = onnx.load(target)
    integer_io(quantized)  # otherwise inputs and outputs would keep their size
    onnx.save(quantized, target)
    return ()


def _halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model converted to 16-bit floats."""
    import warnings

    from qnnmem.quiet_onnxruntime import import_onnxruntime

    module = import_onnxruntime("transformers.float16")
    with warnings.catch_warnings():  # about weights that become zero
        warnings.simplefilter("ignore")
        converted: onnx.ModelProto = module.convert_float_to_float16(
            model, keep_io_types=False, disable_shape_infer=True
        )
    del converted.graph.value_info[:]
    return converted
