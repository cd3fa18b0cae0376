"""`qnnmem net-run` of untrusted binaries: a limited child process that reads no other file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import exit_code, verb
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from patience import patient

from qnnmem.child import kill_group
from qnnmem.errors import QnnError
from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.binary import write
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.net_run import device_child
from qnnmem.lpai.net_run.device import DeviceSettings
from qnnmem.lpai.net_run.device_child import DeviceChild, RunLimits
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.program import arrange
from qnnmem.planner import PoolOptions, plan_model

run = verb("net-run", "--backend", "libQnnLpai.so", "--use_native_input_files")
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
KINDS = {1: DType.FLOAT32, 7: DType.INT64}
SECRET = b"a secret of another file, which nobody may ever see"


def info(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    """Return the type description of an input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def binary(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    change: Callable[[onnx.ModelProto], None] | None = None,
) -> str:
    """Write a binary whose one op runs all nodes; `change` alters its program."""
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    imports = [helper.make_opsetid("", 18)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    tensors = {}
    for item in (*inputs, *outputs):
        kind = item.type.tensor_type
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        tensors[item.name] = Tensor(item.name, KINDS[kind.elem_type], shape)
    ins, outs = (tuple(item.name for item in items) for items in (inputs, outputs))
    op = Op("all", "All", ins, outs, sources=tuple(range(len(nodes))))
    plan = plan_model(Model("g", "onnx", tensors, (op,), ins, outs), PoolOptions(), time_limit=1.0)
    made = arrange(proto, plan.model, None)
    if change is not None:
        change(made.proto)
    pools = plan.scratch_bytes, plan.persistent_bytes
    compiled = CompiledGraph("g", made.model, plan.buffers, *pools, plan.align)
    compiled = replace(
        compiled, program=made.proto.SerializeToString(), constants=made.constants, in_order=True
    )
    block = memoryview(made.constant_bytes())
    write(CompiledContext((compiled,), "v6", "qnnmem 0.1.0", block), "stranger.bin")
    return "stranger.bin"


def endless() -> str:
    """Write a binary that loops as often as its input says."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["u"])],
        "body",
        [info("i", INT64), info("c", BOOL), info("v", FLOAT, 4)],
        [info("d", BOOL), info("u", FLOAT, 4)],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    return binary([node], [info("n", INT64), info("x", FLOAT, 4)], [info("y", FLOAT, 4)])


def hungry() -> str:
    """Write a binary that expands a tensor to as many elements as its input says."""
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["big"]),
        helper.make_node("ReduceMax", ["big"], ["y"], keepdims=1),
    ]
    return binary(nodes, [info("n", INT64, 1), info("x", FLOAT, 1)], [info("y", FLOAT, 1)])


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder with some inputs and a secret file."""
    monkeypatch.chdir(tmp_path)
    np.ones(4, "<f4").tofile("x4.raw")
    np.ones(1, "<f4").tofile("x1.raw")
    for name, number in (("few", 3), ("many", 1 << 62), ("gigabytes", 1 << 31)):
        np.array([number], "<i8").tofile(f"{name}.raw")
    Path("secret").write_bytes(SECRET)
    return tmp_path


def arguments(file: str, *lines: str) -> list[str]:
    """Return arguments for a binary and the inputs of each inference."""
    Path("list.txt").write_text("".join(f"{line}\n" for line in lines))
    return ["--retrieve_context", file, "--input_list", "list.txt"]


# Limits


def test_an_endless_execution_is_ended_by_time() -> None:
    """The time limit ends an endless execution, keeps earlier results and names --time-limit."""
    words = arguments(endless(), "few.raw x4.raw", "many.raw x4.raw")
    limit = patient(2)
    done = run(*words, "--time-limit", str(limit))
    assert exit_code(done) == 1
    assert done.stdout.endswith("Graph Execution failure\n")
    assert (
        f"[B1] the process that executes graphs did not finish within {limit} s\n"
        "--time-limit allows more time" in done.stderr
    )
    assert [path.name for path in Path("output").glob("Result_*")] == ["Result_0"]
    assert "inferences_completed: 1" in Path("output/execution_metadata.yaml").read_text()


@pytest.mark.parametrize("style", ["--synchronous", "--asynchronous"])
def test_memory_that_an_input_asks_for_is_limited(style: str) -> None:
    """An input that asks for 8 GB fails under a memory limit of 4 GB."""
    words = arguments(hungry(), "few.raw x1.raw", "gigabytes.raw x1.raw")
    done = run(*words, style, "--memory-limit", "4G")
    assert exit_code(done) == 1
    assert "[B1] execution failed" in done.stderr
    assert [path.name for path in Path("output").glob("Result_*")] == ["Result_0"]


@pytest.mark.parametrize("limit", ["1M", "60M"])
def test_a_limit_that_no_program_can_keep_is_one_sentence(limit: str) -> None:
    """A memory limit too low for any program gives exit code 2 and names --memory-limit."""
    done = run(*arguments(hungry(), "few.raw x1.raw"), "--memory-limit", limit)
    assert exit_code(done) == 2
    assert (
        "[B1] the process that executes graphs crashed or ran out of memory\n"
        "--memory-limit allows more memory" in done.stderr
    )


def test_time_is_counted_for_each_execution() -> None:
    """The time limit does not apply to context creation and allocation, only to executions."""
    ready = DeviceChild(
        DeviceSettings(Path(hungry()).absolute(), Path("stranger.bin").stat().st_size, profile()),
        RunLimits(time_s=30.0),
        ApiTimes(None),
        lambda _level, _text: None,
        Path("stranger.bin"),
    )
    seen = []
    with ready as device:
        device.create()
        seen.append(device.deadline.limit_s)
        device.allocate("g", 1)
        seen.append(device.deadline.limit_s)
    assert min(seen) > 1e9


def test_a_crash_during_an_execution_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the child during an execution fails the run with one B1 sentence."""
    original = DeviceChild.submit

    def crash(self: DeviceChild, *given: Any) -> None:
        kill_group(self._process)
        original(self, *given)

    monkeypatch.setattr(DeviceChild, "submit", crash)
    done = run(*arguments(hungry(), "few.raw x1.raw"), "--asynchronous")
    assert exit_code(done) == 1
    assert "[B1] the process that executes graphs crashed or ran out of memory" in done.stderr
    assert "inferences_completed: 0" in Path("output/execution_metadata.yaml").read_text()


# Files


def sparse(values: TensorProto) -> onnx.SparseTensorProto:
    """Return a sparse tensor of all values in order."""
    indices = numpy_helper.from_array(np.arange(values.dims[0]), "indices")
    return onnx.SparseTensorProto(values=values, indices=indices, dims=values.dims)


def outside() -> TensorProto:
    """Return a tensor whose external data is the secret file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[12])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "secret"), ("offset", "0"), ("length", "48")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def dense_constant(program: onnx.ModelProto) -> None:
    """Replace the first node by a Constant with external data."""
    node = helper.make_node("Constant", [], ["w"], name="node:0", value=outside())
    program.graph.node[0].CopyFrom(node)


def sparse_constant(program: onnx.ModelProto) -> None:
    """Replace the first node by a Constant with a sparse value from the file."""
    node = helper.make_node("Constant", [], ["w"], name="node:0")
    kind = AttributeProto.SPARSE_TENSOR
    node.attribute.append(
        AttributeProto(name="sparse_value", type=kind, sparse_tensor=sparse(outside()))
    )
    program.graph.node[0].CopyFrom(node)


def sparse_initializer(program: onnx.ModelProto) -> None:
    """Add a sparse initializer from the file."""
    program.graph.node[0].output[0] = "unused"
    program.graph.sparse_initializer.append(sparse(outside()))


@pytest.mark.parametrize("change", [dense_constant, sparse_constant, sparse_initializer])
def test_a_program_cannot_read_a_file(change: Callable[[onnx.ModelProto], None]) -> None:
    """A program that refers to another file is refused with B1 and writes no output."""
    nodes = [
        helper.make_node("Identity", ["x"], ["w"]),
        helper.make_node("Identity", ["w"], ["y"]),
    ]
    ends = [info("x", FLOAT, 12)], [info("y", FLOAT, 12)]
    np.zeros(12, "<f4").tofile("x12.raw")
    done = run(*arguments(binary(nodes, *ends, change), "x12.raw"))
    assert exit_code(done) == 2
    assert "[B1]" in done.stderr
    assert not Path("output").exists()


# Answers of the child are untrusted


@pytest.mark.parametrize(
    ("said", "size"),
    [
        *(({}, 0), ([], 0), ({"type": "DeviceLogLine"}, 0), ({"type": "Done"}, 0), (3, 0)),
        ({"type": "DeviceLogLine", "level": 99, "text": "x"}, 0),
        ({"type": "DeviceAnswer", "findings": 1, "times": []}, 0),
        ({"type": "DeviceAnswer", "findings": [{"a": 1}], "times": []}, 0),
        ({"type": "DeviceAnswer", "findings": [], "times": [[1]]}, 0),
        ({"type": "DeviceAnswer", "findings": [], "times": []}, 1 << 50),
        ({"type": "DeviceAnswer", "findings": [], "times": [], "failure": {"kind": "qnn"}}, 0),
        ({"type": "DeviceAnswer", "findings": [], "times": [], "failure": {"kind": "other"}}, 0),
    ],
)
def test_answers_that_make_no_sense_are_a_lost_device(
    said: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid messages of the child raise a QnnError with code 5005."""
    monkeypatch.setattr(device_child, "_PROGRAM", "nonsense_device")
    monkeypatch.setenv("NONSENSE", json.dumps([said, size]))
    settings = DeviceSettings(Path("/stranger.bin"), 1, profile())
    quiet = (ApiTimes(None), lambda _level, _text: None)
    with (
        DeviceChild(settings, RunLimits(), *quiet, Path("stranger.bin")) as device,
        pytest.raises(QnnError) as caught,
    ):
        device.create()
    assert caught.value.code == 5005
