"""Correct the rule by compiling a few layers with the real library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from qnnmem.errors import CannotTell, Setting, UsageError
from qnnmem.htp.llm import rule
from qnnmem.htp.llm.plan import LlmCase
from qnnmem.htp.llm.rule import LayerRatios, LayerSpan
from qnnmem.results.footprint import Bill
from qnnmem.results.llm import LlmCheck

DEPTHS = (1, 2)  # layers of the models that are compiled: a slope and what comes once
CHECKED_AT = 4
_FLOAT = 16
Bills = Mapping[tuple[int, int], Bill]  # by tokens at a time, and layers


def plain_case(case: LlmCase) -> LlmCase:
    """Return the case whose layers are all alike: what is compiled, and compared with the rule."""
    if case.recipe.bits == _FLOAT:
        cure = ("leave ", Setting("compile"))
        raise UsageError("layers of floats are planned by rule, not compiled", cure=cure)
    recipe = case.recipe if case.recipe.wide_layers is None else replace(case.recipe, wide=())
    model = replace(case.model, experts=0)
    return replace(case, model=model, recipe=recipe, measured=LayerRatios())


def ratios(case: LlmCase, bills: Bills) -> LayerRatios:
    """Return what a compiled layer takes in proportion to the rule, graph by graph."""
    plain, one = plain_case(case), LayerSpan(0, 1)
    weights = rule.layer_weights(plain.model, plain.recipe)
    found = {ar: _slopes(bills, ar) for ar in case.ar}
    extra, ops = {}, {}
    for ar, (own, file, op_data) in found.items():
        ruled = rule.graph_layers(plain.model, one, ar, case.context)
        extra[ar] = max(0, file - own) / ruled
        ops[ar] = op_data / ruled / rule.OPS_IN_FILE
    return LayerRatios(
        weights=max(own for own, _, _ in found.values()) / weights,
        file=extra,
        op_data=ops,
        spill_fill={ar: max(_part(bills[ar, n], "spill/fill") for n in DEPTHS) for ar in case.ar},
        origin="computed from 2 compiled layers",
    )


def checks(case: LlmCase, bills: Bills, depth: int) -> Iterator[LlmCheck]:
    """Compare the bill of more layers with what the compiled ones led to expect."""
    measured = ratios(case, bills)
    plain, part = plain_case(case), LayerSpan(0, depth)
    for ar in case.ar:
        bill = bills[ar, depth]
        weights = rule.weights(plain.model, plain.recipe, part, measured)
        extra = rule.file_extra(plain.model, part, ar, case.context, measured)
        io = rule.io_bytes(plain.model, plain.recipe, part, ar, case.context)
        ops = rule.op_data(plain.model, part, ar, case.context, measured)
        pairs = {
            "weights": (weights, _part(bill, "weights")),
            "IO": (io, _part(bill, "IO")),
            "op data": (ops, _part(bill, "op data")),
            "file": (weights + extra, bill.file_bytes),
        }
        for what, (expected, found) in pairs.items():
            yield LlmCheck(what=what, ar=ar, layers=depth, expected=expected, measured=found)


def _slopes(bills: Bills, ar: int) -> tuple[int, int, int]:
    """Weights, file and op data that one more layer takes."""
    low, high = (bills[ar, depth] for depth in DEPTHS)
    return (
        _part(high, "weights") - _part(low, "weights"),
        high.file_bytes - low.file_bytes,
        _part(high, "op data") - _part(low, "op data"),
    )


def _part(bill: Bill, name: str) -> int:
    found = dict(bill.named_parts).get(name)  # type: ignore[call-overload]  # one of the names
    if found is None:
        raise CannotTell(f"the compiled layers do not state their {name}")
    return int(found.value)
