from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from epcontext_run import run_epcontext
from onnx import TensorProto, helper, numpy_helper
from seeds import share
from vendor_reader import vendor_reading

from qnnmem.errors import UsageError
from qnnmem.flags import with_flags
from qnnmem.htp.compile import (
    Compiled,
    CompileFailure,
    CompileOptions,
    HtpPrecision,
    compile_model,
)
from qnnmem.htp.compile.compiled import rename_binary
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.log import Cause
from qnnmem.htp.worker import Worker
from qnnmem.qnn.enums import TensorMemType
from qnnmem.targets.socs import find_soc

MODELS = Path(__file__).parents[2] / ".cache" / "models"
SM8650, SM8350 = find_soc("SM8650"), find_soc("SM8350")
pytestmark = [
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return one worker for all compiles."""
    with Worker(warm=True) as one:
        yield one


def save(path: Path, nodes: list[Any], shapes: tuple[list[Any], list[Any]], **weights: Any) -> Path:
    """Write a model from float input x to float output y."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shapes[0])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes[1])],
        [numpy_helper.from_array(numpy.asarray(value), name) for name, value in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def conv(folder: Path, batch: int | str = 1) -> Path:
    """Write a convolution and a Relu over 64 channels of 16x16."""
    random = numpy.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    shape = [batch, 64, 16, 16]
    weights = random.standard_normal((64, 64, 3, 3)).astype("float32")
    return save(folder / "conv.onnx", nodes, (shape, shape), w=weights)


def single(folder: Path, operator: str, shape: list[int], **attributes: Any) -> Path:
    """Write a model of one operator that keeps the shape."""
    node = helper.make_node(operator, ["x"], ["y"], "only", **attributes)
    return save(folder / f"{operator}.onnx", [node], (shape, shape))


def made(path: Path, worker: Worker, soc: Any = SM8650, **options: Any) -> Compiled:
    """Compile a model and fail if the compile fails."""
    result = compile_model(path, soc, CompileOptions(**options), worker=worker)
    assert isinstance(result, Compiled), result.sentence
    return result


def refused(path: Path, worker: Worker, soc: Any = SM8650, **options: Any) -> CompileFailure:
    """Return the failure of a model that must not compile."""
    result = compile_model(path, soc, CompileOptions(**options), worker=worker)
    assert isinstance(result, CompileFailure)
    return result


def test_a_model_becomes_a_binary(worker: Worker, tmp_path: Path) -> None:
    """A compiled binary states the SoC, has the model's inputs and outputs and matches the log."""
    done = made(conv(tmp_path), worker)
    (graph,) = done.context.graphs
    assert (done.context.soc_model, done.context.dsp_arch) == (57, 75)
    assert [tensor.name for tensor in (*graph.inputs, *graph.outputs)] == ["x", "y"]
    (ram,) = done.log.ram_summary
    assert (graph.const, graph.io, graph.op_data) == (ram.const, ram.io, ram.op_data)
    assert done.log.vtcm_size == 8 << 20
    assert done.on_cpu == ()


def test_two_compiles_give_the_same_bytes(worker: Worker, tmp_path: Path) -> None:
    """Two compiles give the same bytes, whatever the folder and the worker's history."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = made(conv(tmp_path / "a"), worker)
    second = made(conv(tmp_path / "b"), worker)
    assert first.binary == second.binary
    assert first.epcontext == second.epcontext


def test_external_data_does_not_change_the_binary(worker: Worker, tmp_path: Path) -> None:
    """Weights in a separate file are compiled in, and the folder does not change the binary."""
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        path = conv(tmp_path / name)
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin")
        assert (tmp_path / name / "w.bin").stat().st_size > 100_000
        found.append(made(path, worker))
    assert found[0].binary == found[1].binary
    (graph,) = found[0].context.graphs
    assert (graph.const or 0) > 64 * 64 * 9 * 2


def test_the_log_level_does_not_change_the_binary(worker: Worker, tmp_path: Path) -> None:
    """A quieter log level keeps the traffic and does not change the binary."""
    path = conv(tmp_path)
    loud, quiet = made(path, worker), made(path, worker, log_level="info")
    assert loud.binary == quiet.binary
    assert loud.log.traffic == quiet.log.traffic
    assert quiet.outcome.log_bytes < loud.outcome.log_bytes


def test_the_vendors_reader_agrees_with_ours(worker: Worker, tmp_path: Path) -> None:
    """The vendor's libQnnSystem and our reader agree on every size of the binary."""
    output = tmp_path / "out.bin"
    done = compile_model(conv(tmp_path), SM8650, output=output, worker=worker)
    assert isinstance(done, Compiled)
    reply = vendor_reading(output)
    (ours,), (theirs,) = done.context.graphs, reply["graphs"]
    names = ("name", "spill_fill", "vtcm", "io", "op_data", "const", "ddr_tensors")
    assert [getattr(ours, name) for name in names] == [theirs[name] for name in names]
    assert reply["file_bytes"] == output.stat().st_size == done.context.file_bytes


def test_the_memhandle_hint_survives_in_the_file(worker: Worker, tmp_path: Path) -> None:
    """With memhandle each input and output carries the hint, and no size changes."""
    path = conv(tmp_path)
    raw, hinted = made(path, worker), made(path, worker, memhandle=True)
    kinds = [
        {tensor.mem_type for tensor in (*graph.inputs, *graph.outputs)}
        for done in (raw, hinted)
        for graph in done.context.graphs
    ]
    assert kinds == [{TensorMemType.RAW}, {TensorMemType.MEMHANDLE}]
    assert raw.context.file_bytes == hinted.context.file_bytes


def test_a_free_dimension_is_fixed(worker: Worker, tmp_path: Path) -> None:
    """--dim fixes a free dimension: the binary has the given batch."""
    done = made(conv(tmp_path, "batch"), worker, dims={"batch": 2})
    assert done.context.graphs[0].inputs[0].dimensions[0] == 2


def test_vtcm_and_level_are_stored(worker: Worker, tmp_path: Path) -> None:
    """The requested VTCM and optimisation level are in the binary and in the log."""
    done = made(conv(tmp_path), worker, vtcm_mb=2, opt_level=3)
    (graph,) = done.context.graphs
    assert (graph.vtcm, graph.optimization_level, done.log.vtcm_size) == (2 << 20, 3, 2 << 20)


def test_more_vtcm_than_there_is_is_refused(worker: Worker, tmp_path: Path) -> None:
    """More VTCM than the SoC has is refused, although the library would compile it."""
    with pytest.raises(UsageError, match="16 MiB of VTCM were requested but SM8650 has 8"):
        compile_model(conv(tmp_path), SM8650, CompileOptions(vtcm_mb=16), worker=worker)


def test_nodes_that_qnn_cannot_take_are_named(worker: Worker, tmp_path: Path) -> None:
    """Unsupported nodes are named before the compile starts."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "fine"),
        helper.make_node("ReduceSumSquare", ["r"], ["y"], "strange", axes=[1]),
    ]
    path = save(tmp_path / "odd.onnx", nodes, ([1, 16], [1, 1]))
    failure = refused(path, worker)
    (node,) = failure.unsupported
    assert (failure.stage, node.name, node.operator) == ("partition", "strange", "ReduceSumSquare")
    assert not any("QnnGraph_finalize" in line.text for line in failure.outcome.log)
    assert "--partition" in with_flags(failure.why)


def test_a_partition_leaves_them_to_the_cpu(worker: Worker, tmp_path: Path) -> None:
    """With partition, supported nodes are compiled and the others are listed for the CPU."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "fine"),
        helper.make_node("ReduceSumSquare", ["r"], ["y"], "strange", axes=[1]),
    ]
    path = save(tmp_path / "odd.onnx", nodes, ([1, 16], [1, 1]))
    done = made(path, worker, partition=True)
    assert [(node.name, node.operator) for node in done.on_cpu] == [("strange", "ReduceSumSquare")]
    assert done.on_htp == 1


def test_a_model_that_qnn_cannot_take_at_all_is_refused(worker: Worker, tmp_path: Path) -> None:
    """A partition without any supported node is refused."""
    node = helper.make_node("ReduceSumSquare", ["x"], ["y"], "strange", axes=[1])
    path = save(tmp_path / "odd.onnx", [node], ([1, 16], [1, 1]))
    assert "supports no node" in refused(path, worker, partition=True).sentence


@pytest.mark.parametrize("precision", [HtpPrecision.INT8, HtpPrecision.W8A16])
def test_a_float_model_is_quantized(
    worker: Worker, tmp_path: Path, precision: HtpPrecision
) -> None:
    """INT8 and W8A16 make smaller weights, and a note says that ranges come from random data."""
    path = conv(tmp_path)
    done = made(path, worker, precision=precision)
    float_weights = made(path, worker).context.graphs[0].const
    assert (done.context.graphs[0].const or 0) < (float_weights or 0)
    assert any("random data" in note for note in done.notes)


def test_calibration_data_is_used(worker: Worker, tmp_path: Path) -> None:
    """Different calibration samples give a different binary."""
    path, found = conv(tmp_path), []
    for scale in (1.0, 10.0):
        folder = tmp_path / str(scale)
        folder.mkdir()
        numpy.save(folder / "a.npy", numpy.full((1, 64, 16, 16), scale, "float32"))
        found.append(made(path, worker, precision=HtpPrecision.INT8, calibration=folder).binary)
    assert found[0] != found[1]


def test_calibration_data_of_another_shape_is_refused(worker: Worker, tmp_path: Path) -> None:
    """A sample of the wrong shape is refused with its file name and both shapes."""
    folder = tmp_path / "samples"
    folder.mkdir()
    numpy.save(folder / "a.npy", numpy.zeros((1, 2), "float32"))
    options = CompileOptions(precision=HtpPrecision.INT8, calibration=folder)
    with pytest.raises(UsageError, match=r"a\.npy: float32 of shape 1x2 given"):
        compile_model(conv(tmp_path), SM8650, options, worker=worker)


def test_a_graph_just_below_the_limit_compiles_and_just_above_does_not(
    worker: Worker, tmp_path: Path
) -> None:
    """On SM8350 a graph just below 2 GiB compiles; 8,192 bytes more give code 1002."""
    made(single(tmp_path, "Relu", [1, 64, 2048, 2047]), worker, SM8350)
    failure = refused(single(tmp_path, "Relu", [1, 64, 2048, 2048]), worker, SM8350)
    assert failure.refusal is not None
    assert (failure.refusal.cause, failure.code) == (Cause.GRAPH_LIMIT, 1002)
    assert (failure.refusal.need or 0) - (failure.refusal.limit or 0) == 8192
    assert "8,192 over the limit" in failure.sentence


def test_an_operator_over_vtcm_is_told_from_the_limit(worker: Worker, tmp_path: Path) -> None:
    """An operator over VTCM has the same code 1002 as the graph limit, but its own cause."""
    failure = refused(single(tmp_path, "Softmax", [1, 4_000_000]), worker, vtcm_mb=2)
    assert failure.refusal is not None
    assert (failure.refusal.cause, failure.code) == (Cause.OP_OVER_VTCM, 1002)


def test_a_compile_that_takes_too_long_is_ended(worker: Worker, tmp_path: Path) -> None:
    """A compile over the time limit is stopped, and the next compile works."""
    failure = refused(single(tmp_path, "Neg", [9000, 32768]), worker, SM8350, time_limit_s=1.0)
    assert failure.outcome.kind == "timeout"
    assert made(conv(tmp_path), worker)


def test_a_compile_without_memory_is_ended(worker: Worker, tmp_path: Path) -> None:
    """A compile without enough address space is a memory failure, and the next compile works."""
    path = conv(tmp_path)
    failure = refused(path, worker, memory_limit=450 << 20)
    assert failure.outcome.kind == "memory"
    assert failure.unsupported == ()
    assert "host memory" in failure.sentence
    assert made(path, worker)


def test_the_epcontext_model_runs_the_binary(worker: Worker, tmp_path: Path) -> None:
    """ONNX Runtime runs the renamed binary, and FP16 results are within 0.001."""
    output, model = tmp_path / "out.bin", tmp_path / "out_ctx.onnx"
    done = compile_model(single(tmp_path, "Relu", [1, 64]), SM8650, output=output, worker=worker)
    assert isinstance(done, Compiled)
    assert done.epcontext is not None
    model.write_bytes(rename_binary(done.epcontext, done.binary_name, output.name))
    x = numpy.linspace(-1, 1, 64, dtype="float32")
    found = run_epcontext(model, {"x": x.reshape(1, 64)})
    assert [(name, y.dtype.name, y.shape) for name, y in found.items()] == [
        ("y", "float32", (1, 64))
    ]
    numpy.testing.assert_allclose(found["y"][0], numpy.maximum(x, 0), atol=1e-3)


def test_the_whole_log_can_be_kept(worker: Worker, tmp_path: Path) -> None:
    """The log file contains each byte that the library wrote."""
    file = tmp_path / "log.txt"
    done = made(conv(tmp_path), worker, log_file=file)
    assert file.stat().st_size == done.outcome.log_bytes


REAL = [
    # name, SoC, shapes, VTCM, bytes, (spill, fill)
    ("silero_ov16k", "SM8650", {}, None, 774_144, (0, 0)),
    ("silero_ov16k", "SM8750", {}, None, 774_144, (0, 0)),
    ("lk_embed", "SM8650", {"input_1": (1, 76, 32, 1)}, None, 888_832, (0, 0)),
    ("magika", "SM8650", {"bytes": (1, 2048)}, None, 2_097_152, (0, 0)),
    ("magika", "SM8750", {"bytes": (1, 2048)}, None, 2_093_056, (0, 0)),
    ("nudenet", "SM8650", {"images": (1, 3, 320, 320)}, None, 6_680_576, (0, 0)),
    ("nudenet", "SM8650", {"images": (1, 3, 320, 320)}, 2, 6_701_056, (2_908_160, 2_908_160)),
]


@pytest.mark.models
@pytest.mark.parametrize(("name", "soc", "shapes", "vtcm_mb", "size", "moved"), share(REAL, 2))
def test_real_models_cost_what_was_measured(
    worker: Worker,
    name: str,
    soc: str,
    shapes: dict[str, tuple[int, ...]],
    vtcm_mb: int | None,
    size: int,
    moved: tuple[int, int],
) -> None:
    """Real models have the binary size and the spill and fill of onnxruntime-qnn 2.7.0."""
    path = MODELS / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there; python tools/models.py fetches it")
    if worker.library.package_version != "2.7.0":
        pytest.skip("the numbers are those of onnxruntime-qnn 2.7.0")
    done = made(path, worker, find_soc(soc), shapes=shapes, vtcm_mb=vtcm_mb)
    assert done.context.file_bytes == size
    total = done.log.total_traffic
    assert total is not None
    assert (total.spill, total.fill) == moved
