"""The real library compiles DLC files and composed graphs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlc_examples
import numpy as np
import onnx
import pytest
from command_line import exit_code, run, sentence

from qnnmem.errors import CannotTell, LoadError, QnnError
from qnnmem.htp import HtpBackend, HtpComposedContext, HtpComposedGraph
from qnnmem.htp.binary.read import context_from_bytes, read_context
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.measure import MeasuredModel, measure
from qnnmem.htp.worker import Worker
from qnnmem.qnn.enums import DataType, TensorMemType, TensorType
from qnnmem.qnn.tensor import ScaleOffset
from qnnmem.targets.socs import find_soc

FILES = Path(__file__).parents[1] / "loader" / "dlc"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "qmem-graphs.md"
SM8650 = find_soc("SM8650")
PARTS = ("weights", "io", "op_data", "ddr_tensors", "spill_fill", "vtcm", "total")
CODES = ScaleOffset(0.05, -128)
pytestmark = [
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return one worker for all compiles."""
    with Worker(warm=True) as one:
        yield one


@pytest.fixture
def backend() -> Iterator[HtpBackend]:
    """Return a backend and free it, with all its objects, after the test."""
    one = HtpBackend.create()
    yield one
    one.free()


def billed(path: Path, worker: Worker, **options: Any) -> dict[str, Any]:
    """Compile a model and return the numbers of its bill."""
    made = measure(path, SM8650, CompileOptions(**options), worker=worker)
    assert isinstance(made, MeasuredModel)
    found = {part: getattr(made.bill, part) for part in PARTS}
    assert made.bill.process_domain is not None
    assert not made.bill.missing_outputs
    numbers = {part: value and value.value for part, value in found.items()}
    return {**numbers, "pd": made.bill.process_domain.high.value}


@pytest.mark.parametrize(
    ("name", "options"),
    [("image", {}), ("quantized8", {"vtcm_mb": 2, "opt_level": 1})],
)
def test_a_dlc_costs_what_its_model_costs(
    name: str, options: dict[str, Any], worker: Worker, tmp_path: Path
) -> None:
    """The bill of a DLC equals the bill of its source model compiled through ONNX Runtime."""
    source = tmp_path / "model.onnx"
    onnx.save(dlc_examples.MODELS[name](), source)
    found = billed(FILES / f"{name}.dlc", worker, **options)
    assert found == billed(source, worker, **options)
    assert found["vtcm"] == options.get("vtcm_mb", 8) << 20


def test_a_dlc_becomes_a_binary_with_the_hint(tmp_path: Path) -> None:
    """With --io-mem-type, the inputs and outputs of a compiled DLC carry the Qmem hint."""
    target = tmp_path / "out.bin"
    words = ("--backend", "htp", "--soc", "SM8650", "--io-mem-type", "memhandle")
    assert exit_code(run("prepare", FILES / "quantized8.dlc", *words, "-o", target)) == 0
    (graph,) = read_context(target).graphs
    assert {tensor.mem_type for tensor in graph.tensors} == {TensorMemType.MEMHANDLE}


def test_the_generator_takes_a_dlc(tmp_path: Path) -> None:
    """`context-binary-generator --dlc_path` accepts the model library name that the SDK uses."""
    words = ("--backend", "libQnnHtp.so", "--model", "lib/libQnnModelDlc.so", "--binary_file", "x")
    dlc = ("--dlc_path", FILES / "quantized8.dlc", "--output_dir", tmp_path)
    assert exit_code(run("context-binary-generator", *words, *dlc)) == 0
    assert read_context(tmp_path / "x.bin").soc_model == 30


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"precision": "int8"}, "--precision int8 is for ONNX models"),
        ({"dim": "batch=1"}, "--dim is for ONNX models"),
    ],
)
def test_what_only_an_onnx_model_can_become_is_refused(given: dict[str, str], said: str) -> None:
    """Options for ONNX models, such as --precision and --dim, are refused for a DLC."""
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    done = run("footprint", FILES / "quantized8.dlc", "--soc", "SM8650", *words)
    assert said in sentence(done)


def test_a_damaged_dlc_is_a_file_that_cannot_be_read(worker: Worker, tmp_path: Path) -> None:
    """A truncated DLC is a LoadError that quotes the vendor's reader."""
    damaged = tmp_path / "damaged.dlc"
    damaged.write_bytes((FILES / "image.dlc").read_bytes()[:3000])
    with pytest.raises(LoadError, match="the vendor's reader"):
        measure(damaged, SM8650, worker=worker)


@pytest.mark.parametrize("verb", ["footprint", "fit"])
def test_a_dlc_that_the_reader_gives_up_on_has_one_reason(verb: str) -> None:
    """`footprint` and `fit` quote the reason of the vendor's reader exactly as `plan` does."""
    file = FILES / "recurrent.dlc"  # a GRU from ONNX Runtime's provider
    planned = sentence(run("plan", file))
    assert "rejected the file: " in planned
    assert "Attribute 'hidden_size' not present" in planned
    assert sentence(run(verb, file, "--soc=SM8650")) == planned


def relu(
    context: HtpComposedContext, name: str = "net", mem_type: TensorMemType = TensorMemType.RAW
) -> HtpComposedGraph:
    """Compose a product with a constant and a Relu."""
    graph = context.create_graph(name)
    shape, kind = (1, 8, 8, 4), DataType.UFIXED_POINT_8
    more: dict[str, Any] = {"quantize_params": CODES}
    x = graph.create_tensor("x", kind, shape, TensorType.APP_WRITE, mem_type=mem_type, **more)
    y = graph.create_tensor("y", kind, shape, TensorType.APP_READ, mem_type=mem_type, **more)
    middle = graph.create_tensor("middle", kind, shape, **more)
    weights = graph.create_tensor(
        *("weights", DataType.SFIXED_POINT_8, (1, 1, 4, 4), TensorType.STATIC),
        quantize_params=ScaleOffset(0.01, 0),
        data=np.eye(4, dtype="i1") * np.int8(100),
    )
    params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]], "group": 1}
    graph.add_node("qti.aisw", "Conv2d", params, [x, weights], [middle])
    graph.add_node("qti.aisw", "ElementWiseNeuron", {"operation": np.uint32(4)}, [middle], [y])
    return graph


def test_a_composed_graph_computes(backend: HtpBackend) -> None:
    """Constants, parameters and quantization reach the library: Relu keeps positive values only."""
    context = HtpComposedContext.create(backend, soc="SM8650")
    graph = relu(context)
    graph.finalize()
    inputs, outputs = graph.tensors()
    values = np.random.default_rng(3).integers(0, 256, (1, 8, 8, 4)).astype("u1")
    for tensor, memory in ((inputs[0], bytearray(values)), (outputs[0], bytearray(256))):
        tensor.client_buf = memory
    graph.execute(inputs, outputs)
    found = np.frombuffer(outputs[0].client_buf, "u1").reshape(values.shape)
    assert abs(found.astype(int) - np.maximum(values, 128)).max() <= 1


def test_several_graphs_share_a_context(backend: HtpBackend) -> None:
    """Graphs of one context are finalized in turn, with separate hints, into one binary."""
    context = HtpComposedContext.create(backend, soc="SM8650", vtcm_mb=2)
    first, second = relu(context, "one"), relu(context, "two", TensorMemType.MEMHANDLE)
    first.finalize()
    with pytest.raises(QnnError, match="graph 'two' is not finalized") as error:
        context.get_binary()
    assert error.value.code == 5003
    second.finalize()
    found = context_from_bytes(context.get_binary(), "composed")
    hints = {graph.name: graph.inputs[0].mem_type for graph in found.graphs}
    assert hints == {"one": TensorMemType.RAW, "two": TensorMemType.MEMHANDLE}
    assert {graph.vtcm for graph in found.graphs} == {2 << 20}


def test_what_the_library_refuses_has_its_code(backend: HtpBackend) -> None:
    """A refused call raises QnnError with its code, the call, the node and the line of the log."""
    context = HtpComposedContext.create(backend, soc="SM8650")
    graph = context.create_graph("net")
    x = graph.create_tensor("x", DataType.FLOAT_32, (1, 8), TensorType.APP_WRITE)
    y = graph.create_tensor("y", DataType.FLOAT_32, (1, 8), TensorType.APP_READ)
    graph.add_node("elsewhere", "Relu", {}, [x], [y], name="strange")
    with pytest.raises(QnnError, match="QnnGraph_addNode of 'strange'") as error:
        graph.finalize()
    assert error.value.code == 6007
    assert "unregistered op package elsewhere" in error.value.finding.sentence


def test_a_graph_that_ends_the_library_ends_no_more(backend: HtpBackend) -> None:
    """A zero dimension crashes the library; the error names the signal and the next graph works."""
    context = HtpComposedContext.create(backend, soc="SM8650")
    graph = context.create_graph("net")
    x = graph.create_tensor("x", DataType.FLOAT_32, (0, 8), TensorType.APP_WRITE)
    y = graph.create_tensor("y", DataType.FLOAT_32, (1, 8), TensorType.APP_READ)
    graph.add_node("qti.aisw", "Relu", {}, [x], [y])
    with pytest.raises(CannotTell, match="ended by SIGFPE"):
        graph.finalize()
    relu(HtpComposedContext.create(backend, soc="SM8650")).finalize()


def test_the_page_about_qmem_graphs_runs(tmp_path: Path) -> None:
    """The snippets of the Qmem page form one program that prints the output shown on the page."""
    fences = re.findall(r"^```(py|text)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    program = "".join(text for kind, text in fences if kind == "py")
    wanted = "".join(text for kind, text in fences if kind == "text")
    (tmp_path / "page.py").write_text(program, "utf-8")
    command = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == wanted
