"""Measure qnnmem's use of the real HTP compiler against ONNX Runtime called directly.

    python benchmarks/htp.py            four models, a minute or two
    python benchmarks/htp.py --quick    one model, nothing written

Each model is compiled for the same SoC by both sides alternately: by a plain script in a separate
process, which times only the creation of the session (without interpreter start and imports), and
by `compile_model` through a running worker, which counts all its work. The plain script logs as
much as qnnmem: without its log the compiler does not describe memory.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results" / "htp.md"
MODELS = ("silero_ov16k", "lk_embed", "magika", "nudenet")
SOC = "SM8650"
ROUNDS = 7

PLAIN = """
import sys, time
import onnxruntime as ort
import onnxruntime_qnn as qnn
model, folder, soc = sys.argv[1:4]
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
devices = [d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider"]
ort.set_default_logger_severity(0)
options = ort.SessionOptions()
options.log_severity_level = 0
options.add_session_config_entry("ep.context_enable", "1")
options.add_session_config_entry("ep.context_embed_mode", "0")
options.add_session_config_entry("ep.context_file_path", folder + "/plain.onnx")
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
options.add_provider_for_devices(devices[:1], {"soc_model": soc, "backend_path": sys.argv[4]})
started = time.perf_counter()
ort.InferenceSession(model, options)
print("seconds", time.perf_counter() - started, flush=True)
"""


def main() -> int:
    """Measure every model and write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one model, nothing written")
    quick = parser.parse_args().quick
    text = "\n".join(page(list(measure(MODELS[:1] if quick else MODELS))))
    print(text)
    if not quick:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(HERE.parent)}")
    return 0


def measure(names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield one row for each available model."""
    import models

    entries = {entry.id: entry for entry in models.read_entries()}
    for name in names:
        entry = entries[name]
        if models.is_present(entry):
            print(f"compiling {name}", file=sys.stderr, flush=True)
            yield one(entry, Path(entry.target(models.CACHE)))


def one(entry: Any, path: Path) -> dict[str, Any]:
    """Measure both sides alternately, on the same model with fixed dimensions."""
    from qnnmem.htp.compile import Compiled, CompileOptions, compile_model
    from qnnmem.htp.requests import CompileReply
    from qnnmem.htp.worker import Worker
    from qnnmem.loader.onnx import executable
    from qnnmem.targets.socs import find_soc

    soc = find_soc(SOC)
    shapes = {name: tuple(shape) for name, shape in entry.shapes.items()}
    with tempfile.TemporaryDirectory() as folder, Worker(warm=True) as worker:
        fixed = Path(folder, "model.onnx")
        fixed.write_bytes(executable(path, dims=entry.dims, shapes=shapes).SerializeToString())
        options = CompileOptions(time_limit_s=600)
        ours, plain, inside, size = [], [], [], 0
        for _ in range(ROUNDS):
            plain.append(compile_plainly(fixed, Path(folder), soc.model_id))
            started = time.perf_counter()
            result = compile_model(fixed, soc, options, worker=worker)
            ours.append(time.perf_counter() - started)
            if not isinstance(result, Compiled):
                raise SystemExit(f"{entry.id} does not compile: {result.sentence}")
            inside.append(ours[-1] / result.outcome.result(CompileReply).seconds)
            size = result.context.file_bytes
    return {"id": entry.id, "plain": plain, "ours": ours, "inside": inside, "bytes": size}


def compile_plainly(model: Path, folder: Path, soc: int) -> float:
    """Return the seconds that ONNX Runtime itself takes; its log is discarded."""
    from qnnmem.htp.library import find_library

    for old in folder.glob("plain*"):
        old.unlink()
    library = str(find_library().folder / "libQnnHtp.so")
    command = [sys.executable, "-c", PLAIN, str(model), str(folder), str(soc), library]
    done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - this program
    line = next(x for x in done.stdout.splitlines() if x.startswith(b"seconds "))
    return float(line.split()[1])


def page(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the page: the table and its summary."""
    from qnnmem.htp.library import find_library
    from qnnmem.version import __version__

    yield "# Benchmarks of compiling for HTP\n"
    yield (
        f"Written by `make bench`. Models are compiled for {SOC} in two ways: by ONNX Runtime "
        "called directly (only session creation, with a verbose log), and by `compile_model` "
        "through a running worker (checking the model, compiling, reading log and binary). "
        f"Times are medians of {ROUNDS} alternating runs. On a busy machine, two compiles can "
        "differ by a third. The last column does not depend on that: it divides the time of "
        "`compile_model` by the time that ONNX Runtime took in the same run.\n"
    )
    yield (
        f"Measured with qnnmem {__version__}, {find_library().name}, Python "
        f"{platform.python_version()}, {platform.machine()}.\n"
    )
    yield (
        "| model | context bytes | direct s | qnnmem s | ratio of medians | ratio of fastest "
        "| ratio to its compile |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for row in rows:
        plain, ours = statistics.median(row["plain"]), statistics.median(row["ours"])
        fastest = min(row["ours"]) / min(row["plain"])
        yield (
            f"| {row['id']} | {row['bytes']:,} | {plain:.2f} | {ours:.2f} | {ours / plain:.2f} | "
            f"{fastest:.2f} | {statistics.median(row['inside']):.2f} |"
        )
    ratios = [statistics.median(r["ours"]) / statistics.median(r["plain"]) for r in rows]
    if ratios:
        own = [statistics.median(row["inside"]) for row in rows]
        yield (
            f"\nRatio of medians: median {statistics.median(ratios):.2f}, worst "
            f"{max(ratios):.2f}; ratio to its compile: median {statistics.median(own):.2f}, "
            f"worst {max(own):.2f}."
        )


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent / "tools"))
    sys.exit(main())
