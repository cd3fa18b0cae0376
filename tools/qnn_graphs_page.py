"""The page of `qnn_graphs.py`: models as QNN graphs, from what was kept of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import models

PAGE = models.ROOT / "docs" / "reference" / "benchmarks" / "qnn-graphs.md"
QUANTIZED = "## Quantized models\n"  # begins what `quantized_graphs.py` writes
_LARGEST = 12  # differences that are explained
_HEAD = """# Real models as QNN graphs

ONNX Runtime's QNN provider (onnxruntime-qnn 2.7.0, SM8650) composes each model for the real HTP
library. `tools/qnn_graphs.py` listens to the calls, has the same model written as a DLC, and reads
that back. *As DLC*: as many operators in the same order, with the same tensors, constants byte for
byte, and quantization as were handed over; all tensors of ONNX Runtime's own JSON of the graph are
there with their types and dimensions. Types and scalar parameters of operators are not compared,
since the writer of DLC files renames them (`Relu` is an `ElementWiseNeuron` there); that they mean
the same is shown by executing. The `light_` models have constant weights, which proves little.
*Scratch* is planned with alignment 64, IO inside, and minimal for its order
unless marked `*`. *Off by*: the graph as binary,
executed in planned memory with seeded inputs, against onnxruntime on the source: the largest
difference as a part of the largest output, or in steps where outputs are whole numbers.
"""


def short(kept: dict[str, Any]) -> str:
    """One line for the terminal."""
    if "failed" in kept:
        return f"FAILED {kept['failed']}"
    if "graphs" not in kept:
        return f"not composed: {kept['heard']}"
    wrong = [*kept.get("same", ()), *kept.get("witness", ())]
    sizes = [one["scratch"] for one in kept["graphs"]]
    return (
        f"ONNX {kept['onnx']['scratch']:,}, QNN {sizes}, {len(kept['on_cpu'])} on the CPU, "
        f"DLC {kept['dlc'][:60]} {wrong}, executed {kept.get('executed', 'no')} "
        f"{kept.get('error', '')} {kept.get('steps', '')}"
    )


def write(results: Path, entries: Sequence[models.Entry]) -> None:
    """Write the page."""
    files = [results / f"{entry.id}.json" for entry in entries]
    kept = [json.loads(path.read_text()) for path in files if path.is_file()]
    _, title, rest = PAGE.read_text().partition(QUANTIZED)
    lines = [*_lines([one for one in kept if "graphs" in one]), "", title + rest.rstrip()]
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


def _lines(kept: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield _HEAD
    read = [one for one in kept if one["dlc"] == "read"]
    whole = [one for one in read if not one["same"] and not one["witness"]]
    ran = [one for one in kept if one.get("executed") == "yes"]
    near = [one for one in ran if one["error"] < 1e-3 and one["steps"] <= 1]
    yield (
        f"{len(kept)} models, {len(read)} of them read back as DLC, {len(whole)} of these without "
        f"a difference. {len(ran)} executed, {len(near)} of them within 0.001 of the largest "
        "output; the others are split, because QNN does not take all of their nodes, or take "
        "longer than the trial.\n"
    )
    titles = ("model", "ops as ONNX", "as QNN", "scratch as ONNX", "scratch as QNN", "on the CPU")
    yield f"| {' | '.join((*titles, 'as DLC', 'off by'))} |"
    yield "|---|--:|--:|--:|--:|--:|---|--:|"
    yield from map(_row, kept)
    yield "\n## Why they differ\n"
    yield "The largest changes of graphs that QNN takes whole.\n"
    changed = [one for one in kept if one.get("why") and _change(one)]
    for one in sorted(changed, key=lambda one: -abs(_change(one)))[:_LARGEST]:
        before, after = one["onnx"]["scratch"], one["graphs"][0]["scratch"]
        yield f"- `{one['id']}`, {before:,} to {after:,}: {'; '.join(one.get('why', ()))}."


def _change(one: dict[str, Any]) -> int:
    return int(one["graphs"][0]["scratch"] - one["onnx"]["scratch"])


def _row(one: dict[str, Any]) -> str:
    graphs = one["graphs"]
    sizes = [f"{graph['scratch']:,}{'' if graph['proven'] else '*'}" for graph in graphs]
    shown = sizes[0] if len(sizes) == 1 else f"{len(sizes)} graphs, up to {_most(graphs):,}"
    dlc = "the same" if one["dlc"] == "read" else "the vendor's reader gives up"
    if one.get("same") or one.get("witness"):
        dlc = "differs"
    off = "-"
    if one.get("executed") == "yes":
        off = f"{one['steps']} steps" if one["steps"] else f"{one['error']:.1g}"
    cells = (
        *(f"`{one['id']}`", one["onnx"]["ops"], sum(graph["ops"] for graph in graphs)),
        f"{one['onnx']['scratch']:,}{'' if one['onnx']['proven'] else '*'}",
        *(shown, len(one["on_cpu"]), dlc, off),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _most(graphs: Sequence[dict[str, Any]]) -> int:
    return max(int(graph["scratch"]) for graph in graphs)
