"""The user's samples as a changed model takes them, for whoever learns ranges from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.fix.proof.border import ModelBorder
from qnnmem.fix.proof.prove import inputs_of
from qnnmem.fix.remedy import FixCase
from qnnmem.lpai.quantize import RANDOM_SAMPLES

if TYPE_CHECKING:
    from qnnmem.loader.onnx.passes.shape import ShapedModel

_MOST = 256  # samples; ranges hardly change with more


def calibration_folder(case: FixCase, model: ShapedModel, folder: Path) -> Path | None:
    """Samples of a case, one file each, cut or resized for the model.

    None where there are none and the model takes what it took: then whoever quantizes makes up the
    same data as whoever compares.
    """
    import zipfile

    from numpy.lib import format as npy

    from qnnmem.calibration import random_sample, read_sample
    from qnnmem.loader.onnx.passes.shape import write_typed

    inputs = inputs_of(write_typed(case.model))
    taken = {item.name: (item.dtype, item.shape) for item in inputs_of(write_typed(model))}
    if not case.samples and taken == {item.name: (item.dtype, item.shape) for item in inputs}:
        return None
    folder.mkdir()
    border = ModelBorder(taken, {})
    given = (read_sample(sample, inputs) for sample in case.samples[:_MOST])
    made_up = (random_sample(inputs, case.seed, number) for number in range(RANDOM_SAMPLES))
    number = 0
    for whole in given if case.samples else made_up:
        for feed in border.feeds(whole):
            # Not numpy's own writer: it cannot take an input that is called `file`.
            with zipfile.ZipFile(folder / f"{number:06}.npz", "w") as archive:
                for name, value in feed.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        npy.write_array(file, value, allow_pickle=False)
            number += 1
    return folder
