"""Measure the savings of `qnnmem fix` on real models and write the page.

    python benchmarks/fix.py                     every downloaded convolutional model
    python benchmarks/fix.py nudenet centerface  only these models, writes no page
    python benchmarks/fix.py --rows FILE         stores results in FILE; a rerun resumes
    python benchmarks/fix.py --rows FILE --page  writes the page from the results in FILE

Each model is fixed without a budget, in a separate process. The result is then prepared for LPAI
and executed in planned memory under the sanitiser. Its outputs must be equal, bit for bit, to those
of the original model in onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results" / "fix.md"
sys.path.insert(0, str(HERE.parent / "tools"))

MODELS = (
    *("nudenet", "centerface", "lk_embed", "tablecls", "light_squeezenet", "opennsfw", "orient"),
    *("yunet", "ddddocr_det", "dnsmos_v8", "light_resnet50", "light_vgg19", "age_v1", "effword_q"),
    *("ocr6t_det", "ocr4_det", "ocr_cls", "dnsmos", "light_zfnet512", "light_bvlc_alexnet"),
    *("u2netp", "layout", "ocr5_det", "ocr3_det", "linknet", "effword", "light_inception_v2"),
    "light_shufflenet",
)
# Shapes that the list of models does not give, or smaller shapes than it gives.
SHAPES = {"centerface": {"input.1": (1, 3, 480, 640)}, "ocr3_det": {"x": (1, 3, 480, 640)}}
DIMS = {
    "age_v1": {"N": 1},
    "ocr5_det": {"DynamicDimension.0": 1, "DynamicDimension.1": 480, "DynamicDimension.2": 640},
    "linknet": {"height": 224, "width": 224},
}
SECONDS = 60.0  # search time for each model
_LONGEST = 900.0


def main() -> int:
    """Measure every model and write the page; `--one` measures one model and prints JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", help="models to measure; writes no page")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=("seconds of search for each model")
    )
    parser.add_argument(
        "--rows", help=("file of stored results; models in it are not measured again")
    )
    parser.add_argument(
        "--page", action="store_true", help=("write the page from stored results; measure nothing")
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one, given.seconds)))
        return 0
    kept = None if given.rows is None else Path(given.rows)
    rows = [] if kept is None or not kept.exists() else read_rows(kept)
    if not given.page:
        known = {row["id"] for row in rows}
        for row in measure([n for n in given.models or MODELS if n not in known], given.seconds):
            rows.append(row)
            if kept is not None:
                kept.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
    text = "\n".join(page(rows, given.seconds))
    print(text)
    if not given.models:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(HERE.parent)}")
    return 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the table rows that an earlier run stored."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def measure(names: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield one row for each available model."""
    import models

    present = {entry.id for entry in models.read_entries() if models.is_present(entry)}
    for name in names:
        if name not in present:
            print(f"{name}: not fetched", file=sys.stderr)
            continue
        print(f"fixing {name}", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--one", name, "--seconds", str(seconds)]
        try:
            done = subprocess.run(  # noqa: S603 - this program
                command, capture_output=True, text=True, timeout=_LONGEST, check=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
            words = str(getattr(exc, "stderr", "") or exc).strip().splitlines()
            print(f"{name}: {words[-1] if words else exc}", file=sys.stderr)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        print(f"  {line(row)}", file=sys.stderr, flush=True)
        yield row


def one(name: str, seconds: float) -> dict[str, Any]:
    """Fix one model; return its row of the table."""
    import models

    from qnnmem.fix.lpai import fix_for_lpai
    from qnnmem.fix.remedy import FixCase
    from qnnmem.loader.onnx import read_shaped
    from qnnmem.planner import PoolOptions

    (entry,) = (entry for entry in models.read_entries() if entry.id == name)
    path = entry.target(models.CACHE)
    shapes: Any = SHAPES.get(name) or {key: tuple(to) for key, to in entry.shapes.items()}
    dims = DIMS.get(name, entry.dims)
    begin = monotonic()
    model = read_shaped(path, dims=dims, shapes=shapes)
    case = FixCase(path, model, PoolOptions(), ends_at=monotonic() + seconds)
    result = fix_for_lpai(case)
    seconds = monotonic() - begin
    sound = [one for one in result.tried if one.holds]
    planned = [one.plan.scratch_bytes for one in sound if one.change.remedy == "plan"]
    tiled = [one.plan for one in sound if one.change.remedy == "tiling"]
    plainly = [plan.scratch_bytes for plan in tiled if not plan.options.inplace]
    best, plain = result.best, result.tried[0].plan.scratch_bytes
    regions = [one for step in best.change.steps for one in step.get("regions", ())]
    return {
        "id": name,
        "input": "x".join(map(str, next(iter(model_inputs(case).values())))),
        "plain": plain,
        "planned": min([plain, *planned]),
        "tiled": min(plainly, default=None),
        "best": best.plan.scratch_bytes,
        "regions": len(regions),
        "bands": max((region["bands"] for region in regions), default=0),
        "dropped": sum(not one.holds for one in result.tried),
        "extra": best.change.extra_macs / best.change.macs if best.change.macs else 0.0,
        "seconds": seconds,
        **executed(result),
    }


def model_inputs(case: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the model's inputs, by name."""
    scope = case.model.scope
    return {item.name: scope.types[item.name].shape for item in scope.graph.input}


def executed(result: Any) -> dict[str, Any]:
    """Run the result in planned memory and compare it with the original model in onnxruntime."""
    import numpy

    from qnnmem import lpai
    from qnnmem.calibration import random_sample
    from qnnmem.fix.proof.prove import inputs_of
    from qnnmem.fix.remedy import self_contained
    from qnnmem.lpai.binary import write

    best, case = result.best, result.case
    if best.change.model is case.model:
        return {"executed": None, "findings": 0, "scratch": best.plan.scratch_bytes}
    before, after = self_contained(case.model), self_contained(best.change.model)
    feed = random_sample(inputs_of(before), 11, 0)
    options = best.change.pool_options
    with tempfile.TemporaryDirectory() as folder:
        model, binary = Path(folder, "model.onnx"), Path(folder, "model.bin")
        model.write_bytes(after.SerializeToString())
        chosen = lpai.PrepareOptions(inplace=options.inplace, allow_float=True)
        prepared = lpai.prepare({"model": model}, chosen)
        write(prepared.context, binary)
        with lpai.open(binary) as session:
            found = session.run(feed)
            findings = len(session.findings)
    wanted = plain_results(before.SerializeToString(), feed)
    same = all(numpy.asarray(found[key]).tobytes() == to.tobytes() for key, to in wanted.items())
    scratch = prepared.context.graphs[0].scratch_bytes
    return {"executed": same, "findings": findings, "scratch": scratch}


def plain_results(blob: bytes, feed: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs, by name, of an unoptimised onnxruntime session with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def line(row: dict[str, Any]) -> str:
    """Return one row of the table as Markdown."""
    plain = row["plain"]
    tiled = "-" if row["tiled"] is None else f"{row['tiled'] / plain:.2f}"
    ran = {True: "the same", False: "DIFFERS", None: "unchanged"}[row["executed"]]
    ran += f", {row['findings']} findings" if row["findings"] else ""
    ran += f", in {row['scratch']:,} bytes" if row["scratch"] != row["best"] else ""
    return (
        f"| {row['id']} | {row['input']} | {plain:,} | {row['planned'] / plain:.2f} | {tiled} | "
        f"{row['best']:,} | **{row['best'] / plain:.2f}** | {row['regions']} | {row['bands']} | "
        f"{row['extra']:+.1%} | {ran} | {row['seconds']:.0f} |"
    )


def page(rows: Sequence[dict[str, Any]], seconds: float) -> Iterator[str]:
    """Yield the page, line by line."""
    import onnxruntime

    from qnnmem.version import __version__

    yield "# Benchmarks of fix"
    yield ""
    yield (
        "Written by `benchmarks/fix.py`. Real models were fixed for LPAI without a budget, "
        f"with {seconds:.0f} seconds of search for each. Scratch is in bytes and includes "
        "inputs and outputs; types are as in the model; ratios are relative to plain "
        "planning. *Order, in place* is the best result of `--reorder` and `--inplace` "
        "alone, *bands alone* is the best result of bands without `--inplace`, *result* is "
        "the best of all. Extra work is the share of added multiply-adds. Each result was "
        "compared with the original model on three samples, and executed on another sample "
        "in planned memory under the sanitiser: *the same* means that every output is equal "
        "bit for bit; broken rules and a different scratch size would be listed. Seconds "
        "include reading and comparing, on a machine with other work."
    )
    yield ""
    yield (
        f"Measured with qnnmem {__version__}, onnxruntime {onnxruntime.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}."
    )
    yield ""
    yield (
        "| model | input | plain | order, in place | bands alone | result | ratio | regions | "
        "most bands | extra work | executed | seconds |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|"
    yield from map(line, rows)
    ratios = sorted(row["best"] / row["plain"] for row in rows)
    cut = sorted(row["best"] / row["plain"] for row in rows if row["regions"])
    yield ""
    if ratios:
        yield (
            f"- {len(ratios)} models: median ratio {statistics.median(ratios):.2f}, best "
            f"{ratios[0]:.2f}, worst {ratios[-1]:.2f}."
        )
    if cut:
        yield (
            f"- {len(cut)} of them have a result in bands, with a median ratio of "
            f"{statistics.median(cut):.2f}."
        )
    measured = {row["id"] for row in rows}
    if missing := [name for name in MODELS if name not in measured]:
        yield (
            f"- Not measured in this run, or not executable on this machine: {', '.join(missing)}."
        )
    dropped = sum(row["dropped"] for row in rows)
    yield f"- {dropped} changes were dropped because results differed."


if __name__ == "__main__":
    sys.exit(main())
