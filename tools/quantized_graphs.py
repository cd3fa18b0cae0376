"""Real models quantized, as DLC files of the real library, executed and compared in output steps.

    python tools/quantized_graphs.py lk_embed orient       these models, in int8 and w8a16
    python tools/quantized_graphs.py --page                the table of what has been tried

Takes the real library, so Linux on x86-64. A model is quantized as for HTP (random samples, from a
seed), written as a DLC, prepared, and executed in planned memory. The witness is onnxruntime on the
quantized ONNX model, with nothing rewritten. It is asked a second time with its own rewriting,
which computes in integers: how far it is off itself then says how much a step means.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
from qnn_graphs import feed, named, plain
from qnn_graphs_page import PAGE, QUANTIZED

from qnnmem.errors import QnnMemError

RESULTS = models.ROOT / ".cache" / "quantized_graphs"
PRECISIONS = ("int8", "w8a16")
_SECONDS = 300
_SAMPLES = 4


def main() -> int:
    """Try models, or write the table."""
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    words.add_argument("ids", nargs="*")
    words.add_argument("--precision", choices=PRECISIONS)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--cache", type=Path, default=models.CACHE)
    words.add_argument("--page", action="store_true")
    words.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = words.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if given.page:
        write_page()
        return 0
    entries = {one.id: one for one in models.read_entries() if one.suffix == ".onnx"}
    for name in given.ids:
        for precision in (given.precision,) if given.precision else PRECISIONS:
            if given.one:
                found = tried(entries[name], precision, given)
                kept_of(name, precision).write_text(json.dumps(found, indent=1))
            else:
                in_own_process(name, precision, given)
    return 0


def kept_of(name: str, precision: str) -> Path:
    """Where the result of a model is kept."""
    return RESULTS / f"{name}.{precision}.json"


def in_own_process(name: str, precision: str, given: argparse.Namespace) -> None:
    """Try one model where a crash costs nothing but itself."""
    words = ["--one", "--precision", precision, "--seed", str(given.seed)]
    started = time.monotonic()
    kept = kept_of(name, precision)
    try:
        done = subprocess.run(  # noqa: S603 - this program
            [sys.executable, __file__, *words, "--cache", str(given.cache), name],
            timeout=_SECONDS,
            capture_output=True,
            check=False,
        )
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = "" if done.returncode == 0 else (said[-1] if said else f"code {done.returncode}")
    except subprocess.TimeoutExpired:
        why = f"not done after {_SECONDS} s"
    if why:
        failed = {"id": name, "precision": precision, "failed": why[:300]}
        kept.write_text(json.dumps(failed))
    took = time.monotonic() - started
    print(f"{took:6.1f} s  {json.loads(kept.read_text())}", flush=True)


def tried(entry: models.Entry, precision: str, given: argparse.Namespace) -> dict[str, Any]:
    """What is found out about one model."""
    from qnnmem.loader.dlc import compose
    from qnnmem.quiet_onnxruntime import exact_session, import_onnxruntime

    found: dict[str, Any] = {"id": entry.id, "precision": precision, "seed": given.seed}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        try:
            quantized = quantized_model(entry, precision, given, scratch)
            blob = quantized.SerializeToString()
            dlc = written(blob, scratch)
            session = exact_session(blob)
            values = feed(session, given.seed)
            level = import_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_ALL
            rewritten = exact_session(blob, graph_optimization_level=level)
            wanted, other = results_of(session, values), results_of(rewritten, values)
            ops, results = executed(dlc, values, scratch)
            (graph,) = compose(dlc, with_data=True)
        except QnnMemError as exc:
            return found | {"failed": str(exc)[:300]}
    steps = output_steps(quantized)
    if not steps:
        return found | {"failed": "no output is quantized"}
    found |= {"ops": ops, "outputs": len(steps)}
    found["itself"], _, _ = compared(wanted, other, steps)
    found["steps"], found["off"], found["elements"] = compared(wanted, results, steps)
    if found["steps"] <= 1:
        return found
    told = composed_source(quantized, graph)
    wanted = results_of(exact_session(told.SerializeToString()), values)
    found["told"], found["told_off"], _ = compared(wanted, results, output_steps(told))
    return found


def quantized_model(
    entry: models.Entry, precision: str, given: argparse.Namespace, scratch: Path
) -> Any:
    """The model with Q and DQ nodes, as it is prepared for HTP."""
    import onnx

    from qnnmem.htp.native.quantize import quantize
    from qnnmem.loader.onnx import executable

    shapes = {name: tuple(shape) for name, shape in entry.shapes.items()}
    path = entry.target(given.cache)
    made = executable(path, dims=entry.dims, shapes=shapes, values=dict(entry.values))
    source, target = scratch / "source.onnx", scratch / "quantized.onnx"
    source.write_bytes(made.SerializeToString())
    options = {"model": source, "folder": str(path.parent), "scratch": str(scratch)}
    options |= {"output": str(target), "precision": precision, "here": str(scratch)}
    quantize(options | {"samples": _SAMPLES, "seed": given.seed})
    return onnx.load(target)


def written(blob: bytes, scratch: Path) -> Path:
    """The DLC that the real library writes of a model which it takes whole."""
    from dlc_examples import provider_session

    # Inputs and outputs stay those of the model, in floating point.
    provider_session(blob, scratch, {"offload_graph_io_quantization": "0"})
    files = list(scratch.glob("*.dlc"))
    if len(files) != 1:
        raise SystemExit(f"taken by QNN in {len(files)} parts")
    return files[0]


def results_of(session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs of a session by their names."""
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(values)), strict=True))


def executed(dlc: Path, values: Mapping[str, Any], scratch: Path) -> tuple[int, dict[str, Any]]:
    """The DLC in planned memory: its operators, and its outputs by their names."""
    from qnnmem import lpai

    made = lpai.prepare(dlc, {"allow_float": True, "time_limit_s": 10.0})
    model = made.plans[0].model
    notes = [note for note in made.warnings + model.notes if "program" in note]
    if notes:
        raise SystemExit(notes[0])
    made.write(scratch / "net.bin")
    with lpai.open(scratch / "net.bin", native=True) as running:
        return len(model.ops), running.run(named(model.inputs, values))


def composed_source(model: Any, graph: Any) -> Any:
    """The source with the numbers that ONNX Runtime composed where they are others."""
    import onnx

    made = onnx.ModelProto.FromString(model.SerializeToString())
    _use_encodings(made, {plain(one.name).lstrip("_"): one for one in graph.tensors})
    tensors = {one.id: one for one in graph.tensors}
    converted = {op.outputs[0] for op in graph.ops if op.type == "Convert"}
    nodes = []
    for node in made.graph.node:
        op = next((op for op in graph.ops if node.name in (op.name, _before_token(op.name))), None)
        if op is not None and node.op_type == "BatchNormalization" and op.type == "Batchnorm":
            nodes += _folded(made, node, [tensors[one] for one in (*op.inputs, *op.outputs)])
            continue
        if op is not None and node.op_type == "MatMul" == op.type:
            for place, one in enumerate(op.inputs[:2]):
                if one in converted:
                    nodes += _narrowed(made, node, place, tensors[one])
        nodes.append(node)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _before_token(name: str) -> str:
    return name.partition("_token_")[0]


def _stored(model: Any, name: str, values: Any) -> str:
    from onnx import numpy_helper

    model.graph.initializer.append(numpy_helper.from_array(values, name))
    return name


def _use_encodings(model: Any, tensors: Mapping[str, Any]) -> None:
    """Scales and zero points that HTP wants otherwise."""
    chosen: dict[str, list[str]] = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            known = (tensors.get(plain(name).lstrip("_")) for name in (node.output[0], node.name))
            tensor = next(filter(None, known), None)
            if tensor is not None and tensor.quantization is not None:
                chosen[node.output[0]] = _encoding(model, node.name, tensor)
                node.input[1:] = chosen[node.output[0]]
        elif node.op_type == "DequantizeLinear" and node.input[0] in chosen:
            node.input[1:] = chosen[node.input[0]]


def _encoding(model: Any, name: str, tensor: Any) -> list[str]:
    values = encoded(tensor.quantization, tensor.data_type.numpy_name)
    parts = zip(("scale", "zero"), values, strict=True)
    return [_stored(model, f"{name} {part}", value) for part, value in parts]


def _folded(model: Any, node: Any, tensors: Sequence[Any]) -> list[Any]:
    """A batch normalization with the constants that were folded and quantized anew."""
    from onnx import helper

    _, factor, summand, result = tensors
    shape = (-1, *[1] * (len(result.dimensions) - 2))
    names = [
        _stored(model, f"{node.name} {kind}", real(one).reshape(shape))
        for kind, one in (("factor", factor), ("summand", summand))
    ]
    between = f"{node.name} scaled"
    return [
        helper.make_node("Mul", [node.input[0], names[0]], [between]),
        helper.make_node("Add", [between, names[1]], [node.output[0]]),
    ]


def _narrowed(model: Any, node: Any, place: int, tensor: Any) -> list[Any]:
    """An input of a product that is rounded to fewer bits first."""
    from onnx import helper

    name = f"{node.name} {place}"
    encoding = _encoding(model, name, tensor)
    given, node.input[place] = node.input[place], f"{name} narrow"
    return [
        helper.make_node("QuantizeLinear", [given, *encoding], [f"{name} rounded"]),
        helper.make_node("DequantizeLinear", [f"{name} rounded", *encoding], [f"{name} narrow"]),
    ]


def encoded(quant: Any, kind: str) -> tuple[Any, Any]:
    """Scale and zero point as nodes of ONNX take them."""
    return np.asarray(quant.scales[0], "f4"), np.asarray(-quant.offsets[0], kind)


def real(tensor: Any) -> Any:
    """What a constant stands for."""
    stored = np.frombuffer(tensor.data, tensor.data_type.numpy_name).astype("f4")
    quant = tensor.quantization
    if quant is None:
        return stored
    return (stored + np.float32(quant.offsets[0])) * np.float32(quant.scales[0])


def output_steps(model: Any) -> dict[str, float]:
    """How much a step of each quantized output is worth."""
    from onnx import numpy_helper

    stored = {one.name: one for one in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for output in model.graph.output:
        maker = makers[output.name]
        if maker.op_type == "DequantizeLinear":
            found[output.name] = float(numpy_helper.to_array(stored[maker.input[1]]))
    return found


def compared(
    wanted: Mapping[str, Any], results: Mapping[str, Any], steps: Mapping[str, float]
) -> tuple[int, int, int]:
    """The largest difference in steps, how many elements differ, and how many there are."""
    by_name = {plain(name).lstrip("_"): value for name, value in results.items()}
    worst, off, elements = 0, 0, 0
    for name, step in steps.items():
        values = wanted[name].astype("f8")
        other = np.asarray(by_name[plain(name).lstrip("_")]).reshape(values.shape).astype("f8")
        far = np.rint(np.abs(values - other) / step)
        worst = max(worst, int(far.max(initial=0)))
        off += int((far > 0).sum())
        elements += values.size
    return worst, off, elements


def write_page() -> None:
    """Put the table at the end of the page of QNN graphs."""
    kept = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    before = PAGE.read_text().partition(QUANTIZED)[0].rstrip()
    PAGE.write_text("\n".join([before, "", QUANTIZED, *_lines(kept)]) + "\n")


_WORDS = """Models of the table above, quantized by onnxruntime as `prepare --backend htp` asks
(seeded samples), written as DLC by the real library, prepared, and executed in planned memory. *Off
by* counts steps of the output against onnxruntime on the quantized ONNX model, with nothing
rewritten. *onnxruntime off itself*: the same model once more with its own rewriting for integers.

Where more than one step is left, ONNX Runtime's QNN provider did not compose the arithmetic of the
source: it folds a batch normalization and quantizes its constants anew to 8 bits (`effword`), gives
the 16-bit output of a hard sigmoid the encoding that HTP wants (`ocr4_rec`), and rounds the second
input of a product of two 16-bit tensors to 8 bits (`ocr4_rec`, `mahjong`). *Told so*: against the
source with these numbers put in. What is left then begins as rounding of a sum that lies between
two steps: average pools, of which 2,923 of 19,200 elements are exact ties in `ocr4_rec` (the 236
operators before it agree in every element), and operators behind that make one step many.
"""


def _lines(kept: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ran = [one for one in kept if "steps" in one]
    near = [one for one in ran if one["steps"] <= 1]
    yield _WORDS
    models_tried = len({one["id"] for one in ran})
    told_near = [one for one in ran if one.get("told", one["steps"]) <= 1]
    yield (
        f"{models_tried} models, {len(ran)} trials: {len(near)} within one step of the quantized "
        f"source, {len(told_near)} within one step of what was composed.\n"
    )
    yield "| model | precision | ops | off by | elements off | told so | onnxruntime off itself |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for one in ran:
        share = f"{one['off']:,} of {one['elements']:,}"
        told = f"{one['told']} ({one['told_off']:,} elements)" if "told" in one else "-"
        cells = (one["precision"], one["ops"], one["steps"], share, told, one["itself"])
        yield f"| `{one['id']}` | {' | '.join(map(str, cells))} |"
    if failed := [one for one in kept if "failed" in one]:
        yield "\nNot executed:\n"
        for one in failed:
            yield f"- `{one['id']}`, {one['precision']}: {' '.join(one['failed'].split())[:120]}"


if __name__ == "__main__":
    sys.exit(main())
