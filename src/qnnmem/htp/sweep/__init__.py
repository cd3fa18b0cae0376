"""Many real compiles of one model: a table over settings, or the largest value that fits."""

from __future__ import annotations

from qnnmem.htp.sweep.rows import (
    Axis,
    Largest,
    Question,
    SweepOutcome,
    SweepPoint,
    SweepRow,
    options_of,
    parse_axis,
    points_of,
    show,
    sweep_result,
)
from qnnmem.htp.sweep.run import Identity, PointCompiler, Sweep

__all__ = [
    "Axis",
    "Identity",
    "Largest",
    "PointCompiler",
    "Question",
    "Sweep",
    "SweepOutcome",
    "SweepPoint",
    "SweepRow",
    "options_of",
    "parse_axis",
    "points_of",
    "show",
    "sweep_result",
]
