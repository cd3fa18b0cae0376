"""The same model on two ways to HTP: through ONNX Runtime, and as a DLC into the library itself.

    python tools/dlc_htp.py MODEL.onnx... [--soc SM8650] [--precision fp16|int8]
                            [--vtcm-mb N] [--opt-level N] [--dim NAME=N] [--shape NAME=AxBxC]

has the real library write a DLC of each model (Linux on x86-64), compiles both, and prints a row of
a table in Markdown: what the bills say, and whether they and the bytes of the graphs are equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from dlc_examples import write_dlc

from qnnmem.errors import QnnMemError
from qnnmem.htp.bill.measure import MeasuredModel, measure
from qnnmem.htp.compile import CompileOptions, HtpPrecision, quantize_request
from qnnmem.htp.compile.model import ModelSource
from qnnmem.htp.worker import Worker
from qnnmem.loader.onnx import executable
from qnnmem.targets.socs import Soc, find_soc

PARTS = ("weights", "io", "op_data", "ddr_tensors", "spill_fill", "vtcm")


def fixed(path: Path, options: CompileOptions, folder: Path, worker: Worker) -> Path:
    """The model with its shapes fixed, and quantized if that is asked for."""
    made = executable(path, dims=options.dims, shapes=options.shapes, values={}, time_limit_s=300)
    target = folder / f"{path.stem}.onnx"
    target.write_bytes(made.SerializeToString(deterministic=True))
    if options.precision is HtpPrecision.FP16:
        return target
    quantized = folder / f"{path.stem}.quantized.onnx"
    request = quantize_request(options, ModelSource(path, target, folder), folder, quantized)
    outcome = worker.ask("quantize", request)
    if not outcome.is_done:
        raise SystemExit(outcome.sentence)
    return quantized


def bill(
    path: Path, soc: Soc, options: CompileOptions, worker: Worker, output: Path
) -> dict[str, Any]:
    """Numbers of a bill, and the bytes of the graphs."""
    made = measure(path, soc, options, worker=worker, output=output)
    if not isinstance(made, MeasuredModel):
        raise SystemExit(made.sentence)
    found = {part: getattr(made.bill, part) for part in PARTS}
    numbers = {part: None if value is None else value.value for part, value in found.items()}
    numbers |= {"pd": made.bill.pd and made.bill.pd.high.value}
    numbers |= {"ddr": (made.bill.ddr_read and made.bill.ddr_read.value)}
    context = made.compiled.context
    blob = output.read_bytes()[-context.blob_bytes :]
    return {"numbers": numbers, "blob": blob, "file": context.file_bytes}


def row(path: Path, soc: Soc, options: CompileOptions, worker: Worker) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = fixed(path, options, folder, worker)
        plain = replace(options, dims={}, shapes={}, precision=HtpPrecision.FP16)
        # As where no node may stay on the CPU: inputs and outputs are those of the model.
        whole = {"offload_graph_io_quantization": "0"}
        write_dlc(onnx.load(model), folder / "model.dlc", **whole)
        first = bill(model, soc, plain, worker, folder / "ort.bin")
        other = bill(folder / "model.dlc", soc, plain, worker, folder / "dlc.bin")
    one, two = first["numbers"], other["numbers"]
    differ = [f"{part} {one[part]:,} / {two[part]:,}" for part in one if one[part] != two[part]]
    bytes_differ = sum(a != b for a, b in zip(first["blob"], other["blob"], strict=False))
    sizes = len(first["blob"]) - len(other["blob"])
    same = "the same bytes" if not bytes_differ and not sizes else f"{bytes_differ:,} differ"
    cells = [path.stem, options.precision.value, *(f"{two[part] or 0:,}" for part in PARTS[:5])]
    cells += [f"{two['pd'] or 0:,}", "; ".join(differ) or "equal", same]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--soc", default="SM8650")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--vtcm-mb", type=int)
    parser.add_argument("--opt-level", type=int)
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--shape", action="append", default=[])
    given = parser.parse_args()
    shapes = dict(one.split("=") for one in given.shape)
    options = CompileOptions(
        precision=HtpPrecision(given.precision),
        vtcm_mb=given.vtcm_mb,
        opt_level=given.opt_level,
        shapes={name: tuple(map(int, text.split("x"))) for name, text in shapes.items()},
        dims={name: int(size) for name, size in (one.split("=") for one in given.dim)},
    )
    print("| model | precision | weights | IO | op data | DDR | spill/fill | PD | bill | graphs |")
    print(f"|{'---|' * 10}")
    with Worker(warm=True) as worker:
        for path in given.models:
            try:
                print(row(path, find_soc(given.soc), options, worker), flush=True)
            except (QnnMemError, SystemExit) as exc:
                print(f"{path.stem}: {exc}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
