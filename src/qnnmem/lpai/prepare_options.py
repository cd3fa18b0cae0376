"""Input of preparation: the models by name, and the options for the binary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from qnnmem.arguments import as_dataclass, expect, expect_items, expect_mapping
from qnnmem.errors import Setting, UsageError
from qnnmem.loader import as_dims, as_shapes
from qnnmem.loader.onnx import FixedSizes
from qnnmem.loader.onnx.inputs import InputValue
from qnnmem.planner.pools import LayoutChoices
from qnnmem.text import quote
from qnnmem.units import Size, as_align

DEFAULT_HW_VERSION = "v6"
_BITS = (8, 16)
_WORDS = {"int8": 8, "int16": 16}


@dataclass(frozen=True, slots=True)
class PrepareOptions(LayoutChoices):
    """Options for the binary; the defaults are those of the LPAI documentation."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, InputValue] = field(default_factory=dict)
    rnn_state: bool = False
    align: Size = 64
    quantize: Literal[8, 16] | None = None  # or the command line's words, int8 and int16
    weight_bits: Literal[8, 16] = 8
    calibration: Path | str | None = None
    seed: int = 0
    allow_float: bool = False
    trust: bool = False  # a model library, which is native code, may be executed
    hw_version: str = DEFAULT_HW_VERSION
    # Time limit for planning; the whole preparation ends at most 10 s later. None means 10 s for
    # planning, and one to ten minutes for each child process that runs or folds a model.
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        LayoutChoices.__post_init__(self)  # `super()` does not work in classes with slots
        object.__setattr__(self, "dims", as_dims(self.dims))
        object.__setattr__(self, "shapes", as_shapes(self.shapes))
        expect_mapping(self.values, "values must be a mapping from inputs to their values")
        as_align(self.align)
        if isinstance(self.quantize, str):  # a word of the command line
            object.__setattr__(self, "quantize", _WORDS.get(self.quantize, self.quantize))
        for name, bits in (("quantize", self.quantize), ("weight_bits", self.weight_bits)):
            known = type(bits) is int and bits in _BITS
            if not known and not (bits is None and name == "quantize"):
                raise UsageError((Setting(name), f" must be 8 or 16, not {quote(bits)}"))
        for name in ("rnn_state", "allow_float", "trust"):
            expect(getattr(self, name), bool, f"{name} must be True or False")
        expect(self.calibration, (Path, str, NoneType), "calibration must be a path to samples")
        expect(self.seed, int, "a seed must be a whole number")
        expect(self.hw_version, str, "hw_version must be a string such as v6")
        limit = self.time_limit_s
        expect(limit, (int, float, NoneType), "time_limit_s must be a number of seconds")

    @property
    def sizes(self) -> FixedSizes:
        """The options that fix open dimensions and input values of the model."""
        return {"dims": self.dims, "shapes": self.shapes, "values": self.values}


def as_files(files: object) -> Mapping[str, Path | str]:
    """Return paths by graph name; the default name is the file name without its suffix."""
    what = "files must be paths, or a mapping from graph names to paths"
    if not isinstance(files, Mapping):
        several = [files] if isinstance(files, Path | str) else files
        several = expect_items(several, (Path, str), what)
        files = {Path(file).stem: file for file in several}
        if len(files) < len(several):
            raise UsageError("two files have the same name; set a different graph name for each")
    models = expect_mapping(files, what)
    expect_items(models.values(), (Path, str), what)
    if not models:
        raise UsageError("pass at least one model to prepare")
    return models


def as_prepare_options(options: PrepareOptions | Mapping[str, Any] | None) -> PrepareOptions:
    """Return options; a mapping sets some of them, and the others have their defaults."""
    return as_dataclass(options, PrepareOptions)
