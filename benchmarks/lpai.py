"""Measure the LPAI runtime against a plain onnxruntime session and write the page.

    python benchmarks/lpai.py            all downloaded test models, some minutes
    python benchmarks/lpai.py --quick    three models, nothing written

Both sides run the same operators with graph optimisation off and one thread, alternating within one
process, so that the ratio does not depend on the machine's load. Memory is measured in a separate
process for each side: the peak that opening and running adds to the imported libraries.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results" / "lpai.md"
sys.path.insert(0, str(HERE.parent / "tools"))

QUICK = ("silero_ov16k", "lk_embed", "nudenet")
SECONDS = 4.0  # seconds for each model
RUNS = 8  # runs of each side in the memory measurement


def main() -> int:
    """Measure every model and write the page; `--memory` measures one side of one model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="three models, nothing written")
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        print(json.dumps(peak_added(*given.memory)))
        return 0
    rows = [row for row in measure(given.quick) if row is not None]
    text = "\n".join(page(rows))
    print(text)
    if not given.quick:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(HERE.parent)}")
    return 0


def measure(quick: bool) -> Iterator[dict[str, Any] | None]:
    """Yield one row for each available model."""
    import models

    entries = [e for e in models.read_entries() if e.suffix == ".onnx" and (e.test or e.demo)]
    for entry in entries:
        if models.is_present(entry) and (not quick or entry.id in QUICK):
            print(f"measuring {entry.id}", file=sys.stderr, flush=True)
            yield one(entry, Path(entry.target(models.CACHE)))


def one(entry: Any, path: Path) -> dict[str, Any]:
    """Measure one model; return its row with time and memory of each side."""
    from qnnmem import lpai
    from qnnmem.loader.onnx import executable
    from qnnmem.lpai.binary import write

    shapes = {name: tuple(shape) for name, shape in entry.shapes.items()}
    options = lpai.PrepareOptions(dims=entry.dims, shapes=shapes, allow_float=True, time_limit_s=2)
    prepared = lpai.prepare({entry.id: path}, options)
    graph = prepared.context.graphs[0]
    feeds = inputs_of(graph.model, entry.values)
    with tempfile.TemporaryDirectory() as folder:
        binary, plain = Path(folder, "model.bin"), Path(folder, "model.onnx")
        write(prepared.context, binary)
        plain.write_bytes(executable(path, dims=entry.dims, shapes=shapes).SerializeToString())
        session = open_plain(plain)
        known = {item.name for item in session.get_inputs()}
        used = {name: value for name, value in feeds.items() if name in known}
        with (
            lpai.open(binary, trusted=True) as watched,
            lpai.open(binary, trusted=True, sanitize=False) as bare,
        ):
            own = {name: feeds[name] for name in graph.inputs}
            sides: list[Callable[[], Any]] = [
                lambda: session.run(None, used),
                lambda: watched.run(own),
                lambda: bare.run(own),
            ]
            times = in_turns(sides)
            broken = [finding.rule for finding in watched.findings]
        memory = [
            added(kind, file, feeds)
            for kind, file in (("plain", plain), ("session", binary), ("bare", binary))
        ]
    return {
        "id": entry.id,
        "ops": len(graph.model.ops),
        "in_order": graph.in_order,
        "ms": times,
        "memory": memory,
        "scratch": graph.scratch_bytes,
        "findings": broken,
    }


def inputs_of(model: Any, values: dict[str, int]) -> dict[str, Any]:
    """Return random inputs, or the listed values if random data would be invalid."""
    import numpy

    random = numpy.random.default_rng(0)
    feeds = {}
    for name in model.inputs:
        tensor = model.tensors[name]
        if name in values:
            feeds[name] = numpy.full(tensor.shape, values[name], tensor.dtype.value)
        elif tensor.dtype.is_float:
            feeds[name] = random.random(tensor.shape).astype(tensor.dtype.value)
        else:
            feeds[name] = random.integers(0, 2, tensor.shape).astype(tensor.dtype.value)
    return feeds


def open_plain(path: Path) -> Any:
    """Return an unoptimised onnxruntime session with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def in_turns(sides: list[Callable[[], Any]]) -> list[float]:
    """Return the median milliseconds of each side, without the first two runs, which allocate."""
    for side in sides:
        side()
        side()
    taken: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(taken[0]) < 5:
        for side, times in zip(sides, taken, strict=True):
            start = time.perf_counter()
            side()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) * 1e3 for times in taken]


def added(kind: str, file: Path, feeds: dict[str, Any]) -> tuple[int, int]:
    """Return the memory that one side adds in a separate process: peak bytes, bytes at the end."""
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "feeds.npz")
        numpy.savez(given, **{f"i{at}": value for at, value in enumerate(feeds.values())})
        Path(folder, "names.json").write_text(json.dumps(list(feeds)), encoding="utf-8")
        command = [sys.executable, __file__, "--memory", kind, str(file), folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    peak, own = json.loads(done.stdout)
    return int(peak), int(own)


def peak_added(kind: str, file: str, folder: str) -> tuple[int, int]:
    """Return the memory that a side adds to this process: peak bytes, bytes at the end."""
    import numpy
    import onnxruntime  # noqa: F401 - part of the baseline of both sides

    from qnnmem import lpai

    names = json.loads(Path(folder, "names.json").read_text("utf-8"))
    with numpy.load(Path(folder, "feeds.npz")) as stored:
        feeds = {name: stored[f"i{at}"] for at, name in enumerate(names)}
    lpai.Session  # noqa: B018 - imports the modules of the runtime
    import onnx  # noqa: F401 - as above

    before, own = resident("VmRSS"), resident("RssAnon")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (Linux)
    if kind == "plain":
        session = open_plain(Path(file))
        known = {item.name for item in session.get_inputs()}
        used = {name: value for name, value in feeds.items() if name in known}
        for _ in range(RUNS):
            session.run(None, used)
    else:
        with lpai.open(file, trusted=True, sanitize=kind == "session") as opened:
            mine = {name: feeds[name] for name in opened.compiled.inputs}
            for _ in range(RUNS):
                opened.run(mine)
            return resident("VmHWM") - before, resident("RssAnon") - own
    return resident("VmHWM") - before, resident("RssAnon") - own


def resident(key: str) -> int:
    """Return the bytes in a field of /proc/self/status, such as `VmRSS`, `RssAnon` or `VmHWM`."""
    lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) << 10


def page(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the page: the tables."""
    import onnxruntime

    from qnnmem import __version__

    yield "# Benchmarks of the LPAI runtime\n"
    yield (
        "Written by `make bench`. `session.run` of a prepared model is compared with a plain "
        "onnxruntime session of the same operators, with graph optimisation off and one "
        "thread, alternating within one process. Time ratios are relative to the plain "
        "session. Memory is what opening the model and eight runs add, measured in a "
        "separate process for each side and shown as a ratio. The peak includes mapped pages "
        "of the binary, which the system may drop; anonymous memory, measured at the end, "
        "does not. The light models compute their weights. When prepared, these weights are "
        "stored, which accounts for most of the mapped pages. With the sanitiser, the first "
        "execution goes op by op.\n"
    )
    yield (
        f"Measured with qnnmem {__version__}, onnxruntime {onnxruntime.__version__}, Python "
        f"{platform.python_version()}, {platform.machine()}.\n"
    )
    yield (
        "| model | ops | plain ms | sanitised ratio | bare ratio | plain peak MiB | sanitised | "
        "bare | plain anonymous MiB | sanitised | bare | scratch KiB |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for row in rows:
        plain, watched, bare = row["ms"]
        peaks, owns = zip(*row["memory"], strict=True)
        mark = "" if row["in_order"] else " (op by op)"
        yield (
            f"| {row['id']}{mark} | {row['ops']} | {plain:.2f} | {watched / plain:.2f} | "
            f"{bare / plain:.2f} | {ratios(peaks)} | {ratios(owns)} | "
            f"{row['scratch'] / 1024:,.0f} |"
        )
    yield ""
    yield from summary(rows)


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the list below the table: ratios against their goals, memory, and findings."""
    large = [row for row in rows if row["ms"][0] > 20]
    small = [row for row in rows if row["ms"][0] <= 20]
    for title, group, bar in (("above 20 ms", large, 1.3), ("up to 20 ms", small, 3.0)):
        if group:
            found = sorted((row["ms"][1] / row["ms"][0], row["id"]) for row in group)
            over = [f"{name} {ratio:.2f}" for ratio, name in found if ratio > bar]
            middle = statistics.median(ratio for ratio, _ in found)
            verdict = f"over {bar}: {', '.join(over)}" if over else f"none over {bar}"
            yield (
                f"- {len(group)} models {title}: median sanitised ratio {middle:.2f}, worst "
                f"{found[-1][0]:.2f} ({found[-1][1]}); {verdict}."
            )
    for kind, at in (("peak", 0), ("anonymous", 1)):
        for side, title in ((1, "sanitised"), (2, "bare")):
            over = [
                f"{row['id']} {row['memory'][side][at] / row['memory'][0][at]:.2f}"
                for row in rows
                if row["memory"][side][at] > 1.1 * row["memory"][0][at]
            ]
            yield (
                f"- {kind.capitalize()} memory over 110 % of the plain session, {title}: "
                f"{len(over)} of {len(rows)} models ({', '.join(over) or 'none'})."
            )
    broken = [row["id"] for row in rows if row["findings"]]
    yield f"- Sanitiser findings: {', '.join(broken) or 'none'}."


def ratios(sizes: tuple[int, ...]) -> str:
    """Return three table cells: the plain size in MiB, and the other two sizes as ratios to it."""
    plain, watched, bare = sizes
    return f"{plain / 2**20:.1f} | {watched / plain:.2f} | {bare / plain:.2f}"


if __name__ == "__main__":
    sys.exit(main())
