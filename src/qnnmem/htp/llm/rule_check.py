"""Corrects the rule by compiling a few layers with the real library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from qnnmem.errors import CannotTell, Setting, UsageError, Words
from qnnmem.htp.compile import CompileFailure, CompileOptions
from qnnmem.htp.llm import rule
from qnnmem.htp.llm.plan import LlmCase
from qnnmem.htp.llm.rule import LayerRatios, LayerSpan, LlmGraph, MeasuredParts
from qnnmem.htp.measure import measure
from qnnmem.htp.worker import Worker
from qnnmem.results.footprint import Bill, PartName
from qnnmem.results.llm import LlmCheck
from qnnmem.targets.socs import find_soc

DEPTHS = (1, 2)  # layers of the compiled models; two points give a slope and a constant
CHECKED_AT = 4
_FLOAT = 16


class CompiledLayers(Struct, frozen=True):
    """The bill of a model with a few layers, or the reason why the model was refused."""

    bill: Bill | None = None
    why: Words = ""


def compile_layers(
    worker: Worker, model: Path, soc: str, options: CompileOptions
) -> CompiledLayers:
    """Return the bill of a model with a few layers, compiled on a local or cluster worker."""
    measured = measure(model, find_soc(soc), options, worker=worker, try_cures=True)
    if isinstance(measured, CompileFailure):
        return CompiledLayers(why=measured.why)
    return CompiledLayers(bill=measured.bill)


Bills = Mapping[tuple[int, int], Bill]  # by tokens at a time, and layers


def plain_case(case: LlmCase) -> LlmCase:
    """Return the case to compile for a check of the rule: all layers equal, no experts."""
    if case.recipe.bits == _FLOAT:
        cure = ("remove ", Setting("compile"))
        raise UsageError(
            "a plan with floating-point layers cannot be checked by compiling", cure=cure
        )
    recipe = case.recipe if case.recipe.wide_layers is None else replace(case.recipe, wide=())
    model = replace(case.model, experts=0)
    return replace(case, model=model, recipe=recipe, measured=LayerRatios())


def ratios(case: LlmCase, bills: Bills) -> LayerRatios:
    """Return the ratios of measured to computed sizes of compiled layers, for each graph."""
    plain = plain_case(case)
    weights = rule.layer_weights(plain.model, plain.recipe)
    slopes = {ar: _slopes(bills, ar) for ar in case.ar}
    extra, ops = {}, {}
    for ar, (own, file, op_data) in slopes.items():
        ruled = rule.graph_layers(_graph(plain, 1, ar))
        extra[ar] = max(0, file - own) / ruled
        ops[ar, case.context] = op_data / ruled / rule.OPS_IN_FILE
    return LayerRatios(
        weights=max(own for own, _, _ in slopes.values()) / weights,
        file=extra,
        op_data=ops,
        compiled={(*key, case.context): _compiled(bill) for key, bill in bills.items()},
        shares=len(case.ar) > 1,
        origin="computed from 2 compiled layers",
    )


def _graph(plain: LlmCase, layers: int, ar: int) -> LlmGraph:
    return LlmGraph(plain.model, plain.recipe, LayerSpan(0, layers), ar, plain.context)


def _compiled(bill: Bill) -> MeasuredParts:
    names: tuple[PartName, ...] = ("op data", "DDR tensors", "spill/fill")
    return MeasuredParts(*(_part(bill, name) for name in names))


def checks(case: LlmCase, bills: Bills, depth: int) -> Iterator[LlmCheck]:
    """Yield comparisons of a deeper model's bill with the extrapolation from compiled layers."""
    measured, plain = ratios(case, bills), plain_case(case)
    for ar in case.ar:
        bill, graph = bills[ar, depth], _graph(plain, depth, ar)
        weights = rule.weights(plain.model, plain.recipe, graph.part, measured)
        pairs = {
            "weights": (weights, _part(bill, "weights")),
            "IO": (rule.io_bytes(graph), _part(bill, "IO")),
            "op data": (rule.op_data(graph, measured), _part(bill, "op data")),
            "file": (weights + rule.file_extra(graph, measured), bill.file_bytes),
        }
        for what, (expected, measured_size) in pairs.items():
            yield LlmCheck(
                what=what, ar=ar, layers=depth, expected=expected, measured=measured_size
            )


def _slopes(bills: Bills, ar: int) -> tuple[int, int, int]:
    """Return the weights, file bytes and op data that one more layer adds."""
    low, high = (bills[ar, depth] for depth in DEPTHS)
    return (
        _part(high, "weights") - _part(low, "weights"),
        high.file_bytes - low.file_bytes,
        _part(high, "op data") - _part(low, "op data"),
    )


def _part(bill: Bill, name: PartName) -> int:
    part = dict(bill.named_parts).get(name)
    if part is None:
        raise CannotTell(f"the compiled layers do not state their {name}")
    return int(part.value)
