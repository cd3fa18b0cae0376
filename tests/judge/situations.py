"""Commands of each verb on files of each kind, with outcomes of each class."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import onnx.parser
from context_writer import old_context, pack_context
from file_samples import write_samples
from judge.generated import write_model
from msgspec import structs
from onnx import TensorProto, helper, numpy_helper
from tflite_writer import G, O, T, write_tflite

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
MODELS = {
    "float": "g (float[2,50] x) => (float[2,50] y) { a = Relu(x) b = Tanh(a) y = Mul(a, b) }",
    "open": "g (float[n,50] x) => (float[n,50] y) { a = Relu(x) b = Tanh(a) y = Mul(a, b) }",
    "unnamed": "g (float[?,50] x) => (float[?,50] y) { a = Relu(x) y = Mul(a, x) }",
    "states": """g (float[2,50] x, float[3] h_in) => (float[2,50] y, float[3] h_out)
        { a = Relu(x) b = Tanh(a) y = Mul(a, b) h_out = Tanh(h_in) }""",
    "nonzero": "g (float[8,8] x) => (int64[r,k] y) { a = Relu(x) y = NonZero(a) }",
    "count": """g (float[4] x, int64[1] n) => (float[r] y) { a = Relu(x) y = Tile(a, n) }""",
    "branch": """g (float[8] x, bool flag) => (float[8] y) {
        y = If(flag) <then_branch = t () => (float[8] p) { p = Relu(x) },
                      else_branch = e () => (float[8] q) { q = Tanh(x) }> }""",
    "wide": """g (float[1,300] x) => (float[1,300] y)
        { a = Relu(x) b = Tanh(a) c = Sigmoid(b) d = Neg(c) y = Exp(d) }""",
}


def write_files(folder: Path) -> list[Path]:
    """Write a file of each kind, and models with missing or broken parts."""
    names = ("small_htp.bin", "small_lpai.bin", "graph_limit.log", "tiny.eaix")
    found = [Path(shutil.copy(EXAMPLES / name, folder / name)) for name in names]
    found += [path for _, path in write_samples(folder)]
    for name, text in MODELS.items():
        path = folder / f"{name}.onnx"
        path.write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
        found.append(path)
    found.append(write_convolution(folder / "conv.onnx"))
    write_model(folder / "qdq.onnx", 14)
    shutil.copy(EXAMPLES / "keyword_spotting.csv", folder / "buffers.csv")
    (folder / "nosoc.bin").write_bytes(pack_context(structs.replace(old_context(), soc_model=None)))
    found.append(folder / "nosoc.bin")
    sized = [T(name, (1, 1, 4), signature=(-1, -1, 4)) for name in ("in", "out")]
    write_tflite(folder / "sized.tflite", G(tuple(sized), (0,), (1,), (O("ABS", (0,), (1,)),)))
    _projects(folder)
    _many_states(folder / "streams.onnx")
    _hard_list(folder / "hard.csv")
    (folder / "held.bin").write_bytes(b"here before")
    (folder / "models").mkdir()
    for name in ("float", "wide"):
        shutil.copy(folder / f"{name}.onnx", folder / "models")
    return [*found, folder / "missing.onnx"]


def _projects(folder: Path) -> None:
    """Write projects with kept and broken budgets, and baselines."""
    (folder / "holds.toml").write_text('models = ["wide.onnx"]\nbudget = { scratch = "1M" }\n')
    (folder / "broken.toml").write_text('models = ["wide.onnx"]\nbudget = { scratch = 64 }\n')
    (folder / "total.toml").write_text('models = ["wide.onnx"]\nbudget = { total = 64 }\n')
    text = '[[model]]\npath = "small_htp.bin"\nsocs = ["SM8650"]\nbudget = { ram = 1 }\n'
    (folder / "binary.toml").write_text(text)
    text = '[[model]]\npath = "small_lpai.bin"\nbudget = { scratch = 1 }\n'
    (folder / "prepared.toml").write_text(text)
    (folder / "new.toml").write_text('models = ["wide.onnx"]\nbaseline = "none.json"\n')
    (folder / "grown.toml").write_text('models = ["wide.onnx"]\nbaseline = "less.json"\n')
    pools = '"scratch": 1, "persistent": 0, "io": 0, "constants": 0, "tcm": 1'
    head = '"schema": "qnnmem.baseline/1", "tool": "qnnmem"'
    (folder / "less.json").write_text(
        f'{{{head}, "models": {{"wide.onnx (LPAI)": {{"pools": {{{pools}}}}}}}}}'
    )
    (folder / "open.toml").write_text('models = ["open.onnx"]\nbudget = { scratch = 64 }\n')


def _many_states(path: Path) -> None:
    """Write a model with more states than a command line can hold."""
    names = [f"layer_with_a_long_name_{number}_state" for number in range(60)]
    kind = TensorProto.FLOAT
    nodes = [helper.make_node("Tanh", [f"{name}_in"], [f"{name}_out"]) for name in names]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(f"{name}_in", kind, [4]) for name in names],
        [helper.make_tensor_value_info(f"{name}_out", kind, [4]) for name in names],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def _hard_list(path: Path) -> None:
    """Write a buffer list that quick searches place badly."""
    random = Random(4)  # noqa: S311
    rows = ["id,lower,upper,size"]
    for number in range(400):
        lower = random.randrange(200)
        rows.append(
            f"b{number},{lower},{lower + random.randrange(1, 60)},{random.randrange(1, 4000)}"
        )
    path.write_text("\n".join(rows) + "\n")


def write_convolution(path: Path) -> Path:
    """Write a model that widens a picture and then narrows the result."""
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    narrow = np.random.default_rng(1).standard_normal((2, 8, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["c"], pads=[1] * 4, name="widen"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "k2"], ["y"], strides=[2, 2], name="narrow"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(weights, "k1"), numpy_helper.from_array(narrow, "k2")]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def situations(files: list[Path]) -> Iterator[tuple[str, ...]]:
    """Yield the command lines that run without the real library."""
    for file in files:
        name = file.name
        yield from ((verb, name) for verb in ("plan", "inspect", "footprint", "qmem", "lint"))
        yield ("prepare", name, "-o", f"{name}.out")
        yield ("prepare", "--backend", "htp", name, "-o", f"{name}.htp.out")
        if not name.endswith(".onnx"):
            yield ("fix", name, "-o", f"{name}.fixed")
            yield ("fit", name)
    yield from _plans()
    yield from _fixes()
    yield from _others()


def _plans() -> Iterator[tuple[str, ...]]:
    limits = ("scratch=64", "scratch=700", "scratch=1M", "io=1", "constants=0", "tcm=100")
    for model in ("wide.onnx", "conv.onnx"):
        for limit in limits:
            yield ("plan", model, "--budget", limit)
    for model in ("states.onnx", "qdq.onnx", "branch.onnx"):
        yield ("plan", model, "--budget", "scratch=64")
    yield ("plan", "wide.onnx", "--budget", "scratch=1M", "--bits", "8", "-v")
    yield ("plan", "wide.onnx", "--reorder", "--inplace", "--bits", "8")
    yield ("plan", "wide.onnx", "--budget", "scratch=64", "--inplace", "--io", "outside")
    yield ("plan", "buffers.csv", "--capacity", "100")
    yield ("plan", "buffers.csv", "--capacity", "1M")
    yield ("plan", "buffers.csv", "--io", "outside")
    yield ("plan", "models")
    yield ("plan", "models", "float.onnx", "--budget", "scratch=100")
    yield ("plan", "states.onnx", "--state", "h_in=y")
    yield ("plan", "states.onnx", "--state", "h_in=h_out", "--state", "h_in=h_out")
    yield ("plan", "model.tflite", "--dim", "n=1")
    yield ("plan", "model.tflite", "--value", "a=1")
    yield ("plan", "tiny.eaix", "--shape", "a=1x2")
    yield ("plan", "open.onnx", "--dim", "m=1")
    yield ("plan", "float.onnx", "-o", "held.bin")
    yield ("plan", "tiny.eaix", "-v")
    yield ("plan", "streams.onnx")
    yield ("plan", "hard.csv", "--time-limit", "0.05")
    yield ("plan", "buffers.csv", "--dim", "n=1")
    yield ("plan", "sized.tflite")
    yield ("plan", "sized.tflite", "--dim", "n=1")
    yield ("plan", "buffers.csv", "--shape", "n=1")


def _fixes() -> Iterator[tuple[str, ...]]:
    for model, limit in (
        ("float.onnx", 64),
        ("wide.onnx", 2600),
        ("conv.onnx", 9000),
        ("conv.onnx", 4000),
        ("qdq.onnx", 900),
    ):
        out = f"{model}.{limit}"
        yield ("fix", model, "--budget", f"scratch={limit}", "-o", out, "--cache", "kept")
    yield ("fix", "conv.onnx", "--budget", "constants=1000", "-o", "turns", "--cache", "kept")
    yield ("fix", "open.onnx", "-o", "opened", "--cache", "kept")
    shapes = ("--shape", "x=1x50", "--shape", "x=2x50")
    yield ("fix", "open.onnx", *shapes, "-o", "several", "--cache", "kept")
    yield ("fix", "float.onnx", "--backend", "htp", "-o", "nosoc")


def _others() -> Iterator[tuple[str, ...]]:
    for name in ("small_htp.bin", "nosoc.bin"):
        yield ("fit", name)
        yield ("fit", name, "--soc", "SM8650")
        yield ("fit", name, "--soc", "SM8650", "--budget", "ram=1")
        yield ("fit", name, "--soc", "SM9999")
        yield ("qmem", name, "--misuse", "nothing")
    yield ("fit", "float.onnx")
    yield ("fit", "small_htp.bin", "--soc", "nonsense")
    yield ("sweep", "float.onnx", "--soc", "SM8650", "--vary", "vtcm=1", "--vary", "vtcm=2")
    yield ("prepare", "qdq.onnx", "-o", "held.bin")
    yield ("prepare", "states.onnx", "-o", "s.bin", "--float")
    yield ("prepare", "tiny.eaix", "--quantize", "int8", "-o", "t.bin")
    yield ("prepare", "model.tflite", "--dim", "n=1", "-o", "t.bin")
    yield ("prepare", "model.tflite", "--value", "a=1", "-o", "t.bin")
    yield ("prepare", "model.dlc", "--dim", "n=1", "-o", "t.bin")
    yield ("llm", "llama-3.2-1b", "--soc", "SM8650", "--bits", "q=16")
    yield ("llm", "llama-3.2-1b", "--soc", "SM8650", "--recipe", "fp16", "--compile")
    yield ("llm", "small_htp.bin", "--soc", "SM8650")
    yield ("explain", "nonsense")
    yield ("explain", "1002")
    yield ("doctor", "graph_limit.log", "--jobs", "0")
    yield ("doctor", "graph_limit.log", "--host", "adb")
    yield ("socs", "nonsense")
    yield ("kb", "show", "nonsense")
    yield ("lpai", "rules", "nonsense")
    yield ("diff", "float.onnx", "small_htp.bin")
    yield ("diff", "float.onnx", "open.onnx")
    for name in ("none", "holds", "broken", "total", "binary", "prepared", "new", "grown", "open"):
        yield ("check", "--config", f"{name}.toml")
    yield ("config", "--backend", "lpai", "-o", "pair")
    yield ("config", "--backend", "lpai", "--mem-type", "tcm", "--target-env", "x86", "-o", "pair2")
    tcm = ("--mem-type", "tcm", "--target-env", "adsp")
    yield ("config", "--backend", "lpai", *tcm, "--hw-ver", "v5", "-o", "pair3")
    yield ("config", "--backend", "lpai", "--fps", "0", "-o", "pair4")
    yield ("pla", "float.onnx")
    yield ("plan", "float.onnx", "--budgt", "scratch=1")


def library_situations() -> Iterator[tuple[str, ...]]:
    """Yield the command lines that need the real library."""
    soc = ("--soc", "SM8650")
    yield ("footprint", "conv.onnx", *soc)
    yield ("qmem", "conv.onnx", *soc)
    yield ("qmem", "small_htp.bin", *soc)
    yield ("prepare", "--backend", "htp", "conv.onnx", *soc, "-o", "compiled.bin")
    yield ("prepare", "--backend", "htp", "conv.onnx", *soc, "-o", "held.bin")
    yield ("fit", "conv.onnx", *soc, "--budget", "weights=1", "--try", "1")
    yield ("fit", "small_htp.bin", *soc, "--load")
    htp = ("--backend", "htp", *soc, "--cache", "kept")
    yield ("fix", "conv.onnx", *htp, "-o", "whole")
    yield ("fix", "conv.onnx", *htp, "--budget", "weights=24K", "-o", "parts")
    yield ("fix", "conv.onnx", *htp, "--budget", "vtcm=1M", "-o", "less")
