"""Preparation in words of the command line."""

from __future__ import annotations

from qnnmem.lpai.quantize.error import QuantizeError, Tried
from qnnmem.report.prepare import error_lines


def test_a_large_error_is_a_warning_with_what_was_seen_to_help() -> None:
    """Only widths that at least halve the error are named, each better than the one before."""
    tried = (Tried(8, 16, 0.168), Tried(16, 8, 1.36), Tried(16, 16, 0.021))
    poor = QuantizeError("vad", 8, 8, 1.37, made_up=True, tried=tried)
    assert error_lines([poor]) == [
        "warning: graph vad, int8 with 8-bit weights: off by up to 137.0% of the largest output on "
        "made-up samples; tried on the same samples, --weight-bits 16 gives 16.8%, "
        "--quantize int16 --weight-bits 16 gives 2.1%; "
        "real samples with --calibration give other ranges"
    ]


def test_where_nothing_helped_nothing_is_promised() -> None:
    """Wider numbers that were tried in vain are not recommended."""
    poor = QuantizeError("g", 8, 8, 0.9, made_up=False, tried=(Tried(16, 16, 0.8),))
    (line,) = error_lines([poor])
    assert "--quantize" not in line
    assert "wider numbers do not halve it; check that the samples" in line


def test_a_small_error_is_no_warning() -> None:
    """Up to a fifth of the largest output is a note among others."""
    assert error_lines([QuantizeError("g", 8, 8, 0.2, made_up=True)]) == []
