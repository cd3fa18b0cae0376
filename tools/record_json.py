"""Record qnnmem's JSON output, so that a later version can be compared field by field.

    python tools/record_json.py FOLDER [NAME...]         all cases without the library
    python tools/record_json.py FOLDER [NAME...] --htp   cases with the real library, Linux only
    python tools/record_json.py FOLDER --inputs          makes models and binaries in FOLDER/inputs
    python tools/record_json.py FOLDER --inputs --htp    makes the binary of the real library

FOLDER/cases.json lists the cases: a `name` and, in `argv`, the command with paths relative to
FOLDER. `stdin` names a file for standard input, `writes` a file to record in place of the output.
Recording stores the text as FOLDER/NAME.json and sets `exit_code` and `schema` (for inspect, the
schema under the key `qnnmem`). The order matters: a case may read the cache of an earlier case, in
FOLDER/made, which holds the output of commands and is removed at the end.

Values that differ between runs are recorded unchanged: times (`seconds`, `copy_seconds`,
`copy_time`), memory (`host_ram`, `peak_rss`) and, for provoke, addresses and times in log lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
from msgspec import structs
from onnx import TensorProto, helper
from small_files import tflite_seeds

from qnnmem.htp.binary.context import HtpContext
from qnnmem.qnn.enums import TensorMemType, TensorType

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # folder with the writer of binaries

from context_writer import example_context, example_graph, example_tensor, old_context, pack_context

MIB = 1 << 20
BINARIES = {
    "one_graph": "inputs/quantized.onnx",
    "two_graphs": "inputs/wide_a.onnx inputs/wide_b.onnx",
    "quantized_here": "inputs/small.onnx --shape x=1x4x8x8 --quantize int8 --io outside",
    "state": "inputs/state.onnx --float --state h_in=h_out",
    "window": "inputs/window.onnx --float",
    "layout": "inputs/tiny.eaix --hw-ver v5",
}
REAL = "prepare inputs/small.onnx --dim N=1 --backend htp --soc SM8650"


def main() -> None:
    """Read the options and run."""
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("folder", type=Path)
    words.add_argument("--inputs", action="store_true", help="make the inputs again")
    words.add_argument("--htp", action="store_true", help="record with the real library")
    words.add_argument("names", nargs="*", help="record only these cases")
    given = words.parse_args()
    os.chdir(given.folder)
    if given.inputs:
        must(REAL, "htp_real.bin") if given.htp else make_inputs()
        return
    Path("made").mkdir(exist_ok=True)
    cases = json.loads(Path("cases.json").read_text("utf-8"))
    for case in cases:
        wanted = not given.names or case["name"] in given.names
        if wanted and case["needs_htp_library"] == given.htp:
            record(case)
            rows = ",\n".join(json.dumps(case) for case in cases)
            Path("cases.json").write_text(f"[\n{rows}\n]\n", "utf-8")
    shutil.rmtree("made")


def record(case: dict[str, Any]) -> None:
    """Run one case, store its JSON and record its outcome; print an error if there is no JSON."""
    done = run(case["argv"], case.get("stdin", os.devnull))
    try:
        text = Path(case["writes"]).read_text("utf-8") if "writes" in case else done.stdout
        values = json.loads(text)
    except (OSError, ValueError):
        print(f"{case['name']}: no JSON: {done.stdout}{done.stderr}", file=sys.stderr, flush=True)
        return
    Path(f"{case['name']}.json").write_text(text, "utf-8")
    case["exit_code"] = done.returncode
    case["schema"] = values.get("schema", values.get("qnnmem", {}).get("schema"))
    print(f"{case['name']}: {case['exit_code']}, {case['schema']}", flush=True)


def run(argv: list[str], stdin: str = os.devnull) -> subprocess.CompletedProcess[str]:
    """Run qnnmem with a new cache folder, so that earlier runs have no effect."""
    with tempfile.TemporaryDirectory() as cache, Path(stdin).open("rb") as source:
        command = [sys.executable, "-m", "qnnmem", *argv]
        env = os.environ | {"XDG_CACHE_HOME": cache}
        return subprocess.run(  # noqa: S603 - a program of this project
            command, stdin=source, capture_output=True, text=True, env=env, check=False
        )


def make_inputs() -> None:
    """Make all inputs that are not text: models, binaries for LPAI, crafted binaries for HTP."""
    folder = Path("inputs")
    for text in folder.glob("models/*.txt"):
        model = onnx.parser.parse_model(text.read_text("utf-8"))
        onnx.save(model, folder / f"{text.stem}.onnx")
    (folder / "tiny.tflite").write_bytes(tflite_seeds()[0])
    for name, words in BINARIES.items():
        must(f"prepare {words}", f"lpai_{name}.bin")
    must("config --backend lpai --mem-type tcm", "config")
    for name, context in contexts().items():
        (folder / f"htp_{name}.bin").write_bytes(pack_context(context))
    binary = Path("inputs/htp_one_graph.bin").read_bytes()
    kept: dict[str, Any] = {"embed_mode": 1, "ep_cache_context": binary}
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **kept)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    onnx.save(helper.make_model(graph), folder / "epcontext.onnx")


def contexts() -> dict[str, HtpContext]:
    """Return crafted context binaries: ordinary, old, and with sizes at and above the limits."""
    one = example_context()
    x = example_tensor("x", 1, mem_type=TensorMemType.MEMHANDLE)
    y = example_tensor("y", 2, mem_type=TensorMemType.MEMHANDLE, type=TensorType.APP_READ)
    second = example_graph("second", inputs=(x,), outputs=(y,), spill_fill=131_072)
    sizes: dict[str, dict[str, Any]] = {
        **{"small": {"const": 1350 * MIB}, "large": {"const": 2050 * MIB}},
        "over": {"const": 3600 * MIB},
        "across": {"const": 0, "op_data": 2300 * MIB, "io": 0, "ddr_tensors": 0},
    }
    made = {
        name: structs.replace(one, graphs=(example_graph(**size),)) for name, size in sizes.items()
    }
    return made | {
        "one_graph": one,
        "two_graphs": example_context(example_graph("first"), second),
        "later_arch": structs.replace(one, dsp_arch=79),
        "no_soc": structs.replace(one, soc_model=None),
        "old": old_context(),
    }


def must(command: str, target: str) -> None:
    """Run a command that must write an input; exit if it fails."""
    done = run([*command.split(), "-o", f"inputs/{target}", "--force"])
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
