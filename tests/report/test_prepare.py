"""The command-line report of a preparation."""

from __future__ import annotations

from qnnmem.report.prepare import error_lines
from qnnmem.results.prepared import LARGE_ERROR, QuantizedGraph, TriedWidths


def quantized(error: float, *tried: TriedWidths, made_up: bool = True) -> QuantizedGraph:
    """Return the facts about a graph quantized to 8 bits."""
    return QuantizedGraph(
        bits=8,
        weight_bits=8,
        error=error,
        error_is_large=error > LARGE_ERROR,
        made_up_samples=made_up,
        tried=tried,
    )


def test_a_large_error_is_a_warning_with_what_was_seen_to_help() -> None:
    """A large error is a warning that names only widths that at least halve the error."""
    tried = (TriedWidths(8, 16, 0.168), TriedWidths(16, 8, 1.36), TriedWidths(16, 16, 0.021))
    assert error_lines({"vad": quantized(1.37, *tried)}) == [
        "warning: graph vad, int8 with 8-bit weights: off by up to 137.0% of the largest output on "
        "random samples; tried with the same samples: --weight-bits 16 gives 16.8%, "
        "--quantize int16 --weight-bits 16 gives 2.1%; "
        "pass real samples with --calibration: random samples have other ranges"
    ]


def test_where_nothing_helped_nothing_is_promised() -> None:
    """If no wider data type halves the error, none is recommended."""
    poor = quantized(0.9, TriedWidths(16, 16, 0.8), made_up=False)
    (line,) = error_lines({"g": poor})
    assert "--quantize" not in line
    assert "no wider data type that was tried halves the error; check that the samples" in line


def test_a_small_error_is_no_warning() -> None:
    """An error of up to a fifth of the largest output gives no warning."""
    assert error_lines({"g": quantized(0.2)}) == []
