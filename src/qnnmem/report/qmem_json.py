"""The Qmem table as JSON, schema `qnnmem.qmem/1`."""

from __future__ import annotations

import json
from typing import Any

from qnnmem.htp.qmem import QmemRow
from qnnmem.htp.qmem.advice import FLAGS, advise, traps
from qnnmem.htp.qmem.model import QmemResult
from qnnmem.htp.qmem.run import QmemRun, RanRow
from qnnmem.provenance import Sourced

SCHEMA = "qnnmem.qmem/1"


def render(result: QmemResult, file: str, tool: str) -> str:
    """One JSON object."""
    return json.dumps(as_values(result, file, tool), indent=1, ensure_ascii=True) + "\n"


def as_values(result: QmemResult, file: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    qmem = result.qmem
    best = qmem.best
    return {
        "schema": SCHEMA,
        "tool": tool,
        "file": file,
        "compiled": result.compiled,
        "soc": None if qmem.bill.soc is None else qmem.bill.soc.name,
        "io_layer": "emulated",
        "tensors": qmem.tensors,
        "memhandle_tensors": qmem.memhandles,
        "io_exact": _part(qmem.exact),
        "io_stored": _part(qmem.stored),
        "process_domain_budget": _part(qmem.bill.pd_budget),
        "rows": [_row(row) for row in qmem.rows],
        "recommended": {"prepared": best.prepared.value, "executed": best.executed.value},
        "advice": advise(qmem),
        "traps": list(traps(qmem)),
        "flags": [{"tool": f.tool, "step": f.step, "text": f.text} for f in FLAGS],
        "run": None if result.run is None else _run(result.run),
    }


def schema() -> dict[str, Any]:
    """Read the JSON Schema (2020-12) that every rendered table satisfies."""
    from importlib.resources import files

    text = files("qnnmem.report").joinpath("schemas/qmem-1.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _row(row: QmemRow) -> dict[str, Any]:
    time = row.copy_ns
    return {
        "prepared": row.prepared.value,
        "executed": row.executed.value,
        "reserved_at_load": _part(row.at_load),
        "reserved_at_first_inference": _part(row.at_first),
        "copied_in": _part(row.copied_in),
        "copied_out": _part(row.copied_out),
        "copy_time": {
            "nanoseconds": time.value,
            "origin": time.origin.value,
            "source": time.source,
        },
        "shared_memory": _part(row.shared),
        "process_domain_left": None if row.pd_room is None else _part(row.pd_room),
    }


def _run(run: QmemRun) -> dict[str, Any]:
    return {
        "library": run.library,
        "graph": run.graph,
        "agrees": run.agrees,
        "binaries": run.binaries,
        "rows": [_ran(row) for row in run.rows],
    }


def _ran(row: RanRow) -> dict[str, Any]:
    return {
        "prepared": row.prepared.value,
        "executed": row.executed.value,
        "reserved_at_load": row.at_load,
        "inferences": [
            {
                "reserved": once.reserved,
                "copied_in": once.copied_in,
                "copied_out": once.copied_out,
                "copy_seconds": once.copy_seconds,
            }
            for once in row.inferences
        ],
        "sha256": row.digest,
        "findings": [{"rule": f.rule, "sentence": f.sentence} for f in row.findings],
    }


def _part(part: Sourced) -> dict[str, Any]:
    return {"bytes": part.value, "origin": part.origin.value, "source": part.source}
