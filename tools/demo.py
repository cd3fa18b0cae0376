"""Run the main workflow: plan a real model, run it, make its HTP bill, diagnose a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from platform import machine
from typing import NamedTuple

import models

from qnnmem.htp.library import has_library
from qnnmem.installation import package_folder
from qnnmem.native_parts import find_compiler

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(".cache/demo")


class Step(NamedTuple):
    """Command of the demo, and its expected exit code."""

    story: str
    command: list[str]  # words for qnnmem, or a Python script
    code: int = 0
    kept: str = ""  # file in the demo's folder for its output


def main() -> int:
    """Run and show each command; stop at the first failure."""
    (ROOT / FOLDER).mkdir(parents=True, exist_ok=True)
    model = fetch_model()
    steps = [] if model is None else real_model(model.relative_to(ROOT))
    steps += finished() if model is None else htp(model.relative_to(ROOT))
    steps += [*examples(), *client(), *page(has_model=model is not None)]
    return next((1 for step in steps if not tell(step)), 0)


def real_model(model: Path) -> list[Step]:
    """Return the steps for a voice activity detector, from its plan to a run in the TCM pool."""
    file, binary = str(model), str(FOLDER / "vad.bin")
    frame = ["--shape", "input=1x576", "--state", "h=hn", "--state", "c=cn"]
    write_inputs(ROOT / FOLDER)
    # Eight-bit weights are too coarse for this model without real calibration data.
    quantize = ["--quantize", "int16", "--weight-bits", "16"]
    run = ["net-run", "--backend", "libQnnLpai.so", "--retrieve_context", binary]
    run += ["--input_list", str(FOLDER / "inputs.txt"), "--output_dir", str(FOLDER / "output")]
    wish = ["--budget", "constants=700K", "--time-limit", "30"]
    tcm = ["--direct_mode", "adsp", "--config_file", str(FOLDER / "eaiParams_direct.json")]
    return [
        Step("How much memory does a voice activity detector need?", ["plan", file, *frame]),
        Step("Save the plan", ["plan", file, *frame, "-o", str(FOLDER / "plan.json"), "--force"]),
        Step(
            "Prepare it for LPAI: quantized, its state in persistent memory, every offset fixed",
            ["prepare", file, *frame, *quantize, "-o", binary, "--force"],
        ),
        Step(
            "Run it under LPAI's rules, then pass a buffer that is 4 bytes off",
            ["examples/run_under_contract.py", binary],
        ),
        Step(
            "Write config files for TCM in aDSP direct mode",
            ["config", "--backend", "lpai", "--mem-type", "tcm", "-o", str(FOLDER), "--force"],
        ),
        Step("Run it in TCM", [*run, *tcm, "--log_level", "info"]),
        Step(
            "Make its weights fit 700 KiB with the same results",
            ["fix", file, *frame, *wish, "-o", str(FOLDER / "fixed"), "--force", "--json"],
            kept="fix.json",
        ),
    ]


def htp(model: Path) -> list[Step]:
    """Return the steps for the same model on HTP, compiled by the real library if available."""
    if not has_library():
        print("The real HTP library is not installed (it needs Linux x86-64 or a worker there),")
        print("so the demo reads a finished binary instead.\n")
        return finished()
    file = [str(model), "--shape", "input=1x576"]
    binary = str(FOLDER / "vad_htp.bin")
    compile_it = ["prepare", *file, "--backend", "htp", "--soc", "SM8650", "-o", binary, "--force"]
    return [
        Step(
            "How much memory does it need on HTP? Ask the real compiler",
            ["footprint", *file, "--soc", "SM8650"],
        ),
        Step("And on a smaller SoC?", ["footprint", *file, "--soc", "SM7450"]),
        Step("A real context binary for SM8650", compile_it),
        Step("Compare raw and memhandle IO", ["qmem", binary]),
        Step(
            "How much VTCM does it need?",
            ["sweep", *file, "--soc", "SM8650", "--vary", "vtcm_mb=2,4,8", *kept("sweep.json")],
        ),
        Step("Do two of them fit together?", ["place", binary, binary, *kept("place.json")]),
        Step("Save the comparison of IO for the page", ["qmem", binary, *kept("qmem.json")]),
        Step(
            "Make the real library fail: a graph over the compiler's limit",
            ["provoke", "graph-limit", "--soc", "SM8750", "-o", str(FOLDER), "--force"],
        ),
        Step(
            "Why did it fail? From the log to the cause and the missing bytes",
            ["doctor", str(FOLDER / "graph-limit-SM8750.log")],
            1,
        ),
    ]


def finished() -> list[Step]:
    """Return the steps for a finished binary of examples/small.onnx, which work on any machine."""
    binary = "examples/small_htp.bin"
    return [
        Step(
            "How much memory does it need on HTP? Read it from a finished binary",
            ["footprint", binary],
        ),
        Step("Does it fit its SoC?", ["fit", binary, "--soc", "SM8650"]),
        Step("Compare raw and memhandle IO", ["qmem", binary]),
        Step("How many copies fit into one process domain?", ["place", *[binary] * 3]),
    ]


def examples() -> list[Step]:
    """Return the steps that need no model."""
    kws = "examples/keyword_spotting.csv"
    return [
        Step(
            "A published LPAI keyword spotter: 16,000 bytes, which Qualcomm's own compiler reached",
            ["plan", kws],
        ),
        Step(
            "Does it fit 15,000 bytes? Which buffers prevent it?",
            ["plan", kws, "--capacity", "15000"],
            1,
        ),
        Step("Test the runtime against every rule", ["lpai", "selftest"]),
        Step("Diagnose a log", ["doctor", "examples/graph_limit.log"], 1),
        Step("What does 1002 mean?", ["explain", "1002"]),
    ]


def client() -> list[Step]:
    """Return the steps that check a C client; none if it cannot be compiled."""
    compiler = find_compiler() if sys.platform.startswith("linux") else None
    compiled, source = FOLDER / "lpai_client", "examples/lpai_client.c"
    if compiler is None:
        print("The C client is skipped: it needs Linux and a C compiler.\n")
        return []
    command = [compiler, "-g", source, "-o", str(compiled), "-ldl", "-lpthread"]
    print(f"# A C client of LPAI\n$ {' '.join(command)}\n", flush=True)
    subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - compiles our own source
    run = ["check-client", "--", str(compiled), "examples/small_lpai.bin"]
    steps = [
        Step("It frees scratch too early: which line?", [*run, "scratch-freed-early"], 1),
        Step("The corrected client", run),
    ]
    # On other machines, the package contains a device library, which cannot compile.
    if machine() == "x86_64" and package_folder(["libQnnHtp.so"]) is not None:
        program = ["--", sys.executable, "examples/run_on_htp.py"]
        story = "ONNX Runtime gets no memory for a context: which session continues without HTP?"
        steps.append(Step(story, ["watch", "--fail", "contextCreate=1002", *program], 1))
    return steps


def kept(name: str) -> list[str]:
    """Return the options that store a result as JSON in the demo's folder."""
    return ["-o", str(FOLDER / name), "--force"]


def page(*, has_model: bool) -> list[Step]:
    """Return the steps that show all results on one page."""
    names = ["plan.json", "fix.json", "vad.bin"] if has_model else []
    names += ["vad_htp.bin", "sweep.json", "place.json", "qmem.json"] if has_library() else []
    files = (
        [str(FOLDER / name) for name in names] if has_model else ["examples/keyword_spotting.csv"]
    )
    files += [] if has_model and has_library() else ["examples/small_htp.bin"]
    files.append("examples/graph_limit.log")
    where = ["-o", str(FOLDER / "report.html"), "--force"]
    return [Step("Write all results to one page; open it in a browser", ["report", *files, *where])]


def write_inputs(folder: Path) -> None:
    """Write three frames of noise for qnn-net-run (32-bit floats), and their input list."""
    import numpy

    random = numpy.random.default_rng(0)
    lines = []
    for number in range(3):
        path = folder / f"frame_{number}.raw"
        (random.standard_normal(576) * 0.1).astype("<f4").tofile(path)
        lines.append(f"input:={path.relative_to(ROOT)}\n")
    (folder / "inputs.txt").write_text("".join(lines), encoding="utf-8")


def fetch_model() -> Path | None:
    """Return the path of the demo model; None, with a message, if it is not available."""
    entry = next(entry for entry in models.read_entries() if entry.demo)
    try:
        return models.fetch(entry, models.CACHE)
    except models.FetchError as exc:
        print(f"The real model is not available ({exc}), so the demo uses the examples.\n")
        return None


def tell(step: Step) -> bool:
    """Show and run one command; return True if it had the expected exit code."""
    script = step.command[0].endswith(".py")
    words = ["python", *step.command] if script else ["qnnmem", *step.command]
    into = f" > {FOLDER / step.kept}" if step.kept else ""
    print(f"# {step.story}\n$ {' '.join(words)}{into}", flush=True)
    program = [] if script else ["-m", "qnnmem"]
    said = subprocess.PIPE if step.kept else None
    done = subprocess.run(  # noqa: S603 - a program of this project
        [sys.executable, *program, *step.command], cwd=ROOT, check=False, stdout=said
    )
    if step.kept:
        (ROOT / FOLDER / step.kept).write_bytes(done.stdout)
    print(flush=True)
    return done.returncode == step.code


if __name__ == "__main__":
    sys.exit(main())
