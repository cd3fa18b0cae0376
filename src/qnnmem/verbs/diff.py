"""Verb `diff`: the comparison of two results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qnnmem.errors import UsageError
from qnnmem.gate.comparison import Tolerance, WhatCounts, compare_results, parse_tolerance
from qnnmem.loader.file_kind import kind_of_file
from qnnmem.options.option import typed
from qnnmem.options.plan import PlanFileOptions
from qnnmem.verbs.page import SizedFile, result_of, verb_of

if TYPE_CHECKING:
    from qnnmem.options.gate import DiffOptions
    from qnnmem.results.diff import DiffResult
    from qnnmem.verbs import VerbCall


def compare_files(before: str, after: str, options: DiffOptions, call: VerbCall) -> DiffResult:
    """Compare two results, or the results that verbs make from two files."""
    allowed = Tolerance() if options.tolerance is None else parse_tolerance(options.tolerance)
    shared = (name for name in PlanFileOptions.__struct_fields__ if hasattr(options, name))
    planning = PlanFileOptions(**{name: getattr(options, name) for name in shared})
    typed_options = typed(planning)
    if typed_options and "plan" not in (verb_of(Path(before)), verb_of(Path(after))):
        flag = typed_options[0].partition("=")[0]
        raise UsageError(
            f"{flag} applies only to models that are planned, and neither file is such a model"
        )
    sides = SizedFile(Path(before), planning), SizedFile(Path(after), planning)
    old, new = (
        result_of(_without_foreign(*pair), call, "which qnnmem diff does not compare")
        for pair in (sides, sides[::-1])
    )
    return compare_results(old, new, WhatCounts(allowed, options.pools), names=(before, after))


def _without_foreign(side: SizedFile, other: SizedFile) -> SizedFile:
    """Return `side` without sizes of open dimensions that only the model of `other` has."""
    sizes = {"dims": side.options.dims, "shapes": side.options.shapes}
    sizes |= {"values": side.options.values}
    if not any(sizes.values()):
        return side
    foreign = _open_names(other.path) - _open_names(side.path)
    kept = {
        name: tuple(pair for pair in pairs if pair[0] not in foreign)
        for name, pairs in sizes.items()
    }
    return side._replace(options=replace(side.options, **kept))


def _open_names(path: Path) -> set[str]:
    """Return the names of dimensions and tensors of an ONNX model; empty for another file."""
    if kind_of_file(path).name != "onnx":
        return set()
    from qnnmem.loader.onnx.graph import all_names
    from qnnmem.loader.onnx.inputs import named_dims
    from qnnmem.loader.onnx.passes.guard import guard
    from qnnmem.loader.onnx.passes.read import read

    graph = guard(read(path)).proto.graph
    return {*named_dims(graph), *all_names(graph)}
