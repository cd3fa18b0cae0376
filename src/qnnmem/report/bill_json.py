"""The memory bill of a context binary as JSON, schema `qnnmem.footprint/1`."""

from __future__ import annotations

import json
from typing import Any

from qnnmem.htp.bill import Bill, GraphBill, Item, SizeRange
from qnnmem.provenance import Sourced

SCHEMA = "qnnmem.footprint/1"


def render(bill: Bill, file: str, tool: str) -> str:
    """One JSON object."""
    return json.dumps(as_values(bill, file, tool), indent=1, ensure_ascii=True) + "\n"


def as_values(bill: Bill, file: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    context = bill.context
    return {
        "schema": SCHEMA,
        "tool": tool,
        "file": file,
        "file_bytes": context.file_bytes,
        "build_id": context.build_id,
        "soc": None if bill.soc is None else bill.soc.name,
        "made_for_soc_model": context.soc_model,
        "dsp_arch": context.dsp_arch,
        "total": _part(bill.ram),
        "dominant": None if bill.dominant is None else bill.dominant[0],
        "parts": {name: _part(part) for name, part in bill.parts},
        "io_exact": _part(bill.io_exact),
        "vtcm_stored": _part(bill.vtcm_stored),
        "compile_estimate": _part(bill.compile_estimate),
        "compile_limit": _part(bill.compile_limit),
        "process_domain": _range(bill.pd),
        "process_domain_budget": _part(bill.pd_budget),
        "ddr_read_per_inference": _part(bill.ddr_read),
        "ddr_written_per_inference": _part(bill.ddr_written),
        "host_ram": _part(bill.host_ram),
        "graphs": [_graph(graph) for graph in bill.graphs],
        "largest_io": [_item(item) for item in bill.largest],
        "largest_weights": [_item(item) for item in bill.largest_weights],
        "traps": [{"id": trap.id, "sentence": trap.sentence} for trap in bill.traps],
    }


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered bill satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/footprint-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _graph(graph: GraphBill) -> dict[str, Any]:
    return {
        "name": graph.name,
        "weights": _part(graph.weights),
        "io": _part(graph.io),
        "io_exact": _part(graph.io_exact),
        "op_data": _part(graph.op_data),
        "ddr_tensors": _part(graph.ddr_tensors),
        "spill_fill": _part(graph.spill_fill),
        "vtcm_stored": _part(graph.vtcm_stored),
        "vtcm": _part(graph.vtcm),
        "total": _part(graph.ram),
        "compile_estimate": _part(graph.compile_estimate),
        "process_domain": _range(graph.pd),
    }


def _part(part: Sourced | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {"bytes": part.value, "origin": part.origin.value, "source": part.source}


def _range(found: SizeRange | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"low": _part(found.low), "high": _part(found.high)}


def _item(item: Item) -> dict[str, Any]:
    return {"graph": item.graph, "name": item.name, "kind": item.kind, "bytes": item.size.value}
