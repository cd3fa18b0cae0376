"""Context binaries that the real library wrote, read without the library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from vendor_reader import vendor_reading

from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.context import HtpContext, describe_context
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.measure import bill_of_loaded, bill_of_model
from qnnmem.qnn.enums import DataType, TensorMemType
from qnnmem.results.footprint import Bill
from qnnmem.targets.socs import find_soc
from qnnmem.units import round_up

pytestmark = [
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]

TIME_LIMIT_S = 300
MIB = 1 << 20

# Compiles one quantized convolution per case; the library stays in that process.
PROGRAM = """
import json, sys
import numpy as np
import onnx, onnxruntime, onnxruntime_qnn
from onnx import TensorProto, helper, numpy_helper

scale = numpy_helper.from_array(np.array(0.05, np.float32), "scale")
zero = numpy_helper.from_array(np.array(128, np.uint8), "zero")
weights = np.random.default_rng(0).integers(0, 255, (32, 32, 3, 3)).astype(np.uint8)
nodes = [
    helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["real"]),
    helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["filter"]),
    helper.make_node("Conv", ["real", "filter"], ["sum"], pads=[1, 1, 1, 1]),
    helper.make_node("QuantizeLinear", ["sum", "scale", "zero"], ["y"]),
]
shape = [1, 32, 17, 19]
ends = [helper.make_tensor_value_info(n, TensorProto.UINT8, shape) for n in "xy"]
stored = [scale, zero, numpy_helper.from_array(weights, "w")]
graph = helper.make_graph(nodes, "conv", ends[:1], ends[1:], stored)
opset = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "model.onnx")

name = onnxruntime_qnn.get_ep_name()
onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
device = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == name)
for case, options in json.loads(sys.argv[1]).items():
    embed = str(int(case == "embedded"))
    session = onnxruntime.SessionOptions()
    session.add_session_config_entry("ep.context_enable", "1")
    session.add_session_config_entry("ep.context_embed_mode", embed)
    session.add_session_config_entry("ep.context_file_path", case + ".onnx")
    session.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    given = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **options}
    session.add_provider_for_devices([device], given)
    onnxruntime.InferenceSession("model.onnx", session)
"""

CASES: dict[str, dict[str, str]] = {
    "plain": {"soc_model": "57"},
    "small": {"soc_model": "35"},
    "vtcm": {"soc_model": "69", "vtcm_mb": "2"},
    "handles": {"soc_model": "57", "enable_htp_shared_memory_allocator": "1"},
    "embedded": {"soc_model": "57"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile every case once and return the folder of the files."""
    folder = tmp_path_factory.mktemp("contexts")
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def contexts(folder: Path) -> dict[str, HtpContext]:
    """Return the context of every case."""
    return {case: read_context(folder / f"{case}.onnx") for case in CASES}


def test_the_target_is_in_the_file(contexts: dict[str, HtpContext]) -> None:
    """The file states the SoC and the architecture that the compile asked for."""
    found = {case: (c.soc_model, c.dsp_arch) for case, c in contexts.items()}
    assert found["plain"] == (57, 75)
    assert found["small"] == (35, 68)
    assert found["vtcm"] == (69, 79)


def test_tensors_are_those_of_the_model(contexts: dict[str, HtpContext]) -> None:
    """Names, shapes, types and quantization read back; QNN's offset is minus the zero point."""
    graph = contexts["plain"].graphs[0]
    assert [tensor.name for tensor in graph.tensors] == ["x", "y"]
    for tensor in graph.tensors:
        assert tensor.dimensions == (1, 32, 17, 19)
        assert tensor.data_type is DataType.UFIXED_POINT_8
        assert tensor.scale_offset is not None
        assert tensor.scale_offset.offset == -128
        assert tensor.scale_offset.scale == pytest.approx(0.05)


def test_the_memory_type_survives(contexts: dict[str, HtpContext]) -> None:
    """Inputs and outputs prepared for memory handles have that memory type in the file."""
    kinds = {
        case: {tensor.mem_type for tensor in context.graphs[0].tensors}
        for case, context in contexts.items()
    }
    assert kinds["plain"] == {TensorMemType.RAW}
    assert kinds["handles"] == {TensorMemType.MEMHANDLE}


def test_stored_io_is_rounded_as_the_rule_says(contexts: dict[str, HtpContext]) -> None:
    """The stored IO counts each tensor as a multiple of 8,192 bytes."""
    graph = contexts["plain"].graphs[0]
    assert graph.io == sum(round_up(tensor.nbytes, 8192) for tensor in graph.tensors)


@pytest.mark.parametrize(
    ("case", "stored", "true"), [("plain", 4, 8), ("small", 4, 2), ("vtcm", 2, 2)]
)
def test_vtcm_is_true_only_when_it_was_set(
    contexts: dict[str, HtpContext], case: str, stored: int, true: int
) -> None:
    """Without a VTCM option the file stores 4 MiB; the bill counts the VTCM of the SoC."""
    bill = bill_of(contexts[case])
    assert bill.vtcm_stored is not None
    assert bill.vtcm is not None
    assert (bill.vtcm_stored.value, bill.vtcm.value) == (stored * MIB, true * MIB)


def test_an_embedded_context_is_the_same(contexts: dict[str, HtpContext]) -> None:
    """A context inside an ONNX model has the same size and bill as a context beside the model."""
    embedded, plain = contexts["embedded"], contexts["plain"]
    assert embedded.file_bytes == plain.file_bytes
    assert bill_of(embedded).total == bill_of(plain).total


def test_the_nesting_holds_the_file_s_numbers(contexts: dict[str, HtpContext]) -> None:
    """The JSON in the vendor's nesting contains the weights and the blob version."""
    info = to_builtins(describe_context(contexts["plain"]))["info"]
    record = info["graphs"][0]["info"]["graphBlobInfoV2"]["info"]
    assert record["constSize"] == contexts["plain"].graphs[0].const
    assert record["constSize"] > 32 * 32 * 9
    assert info["contextBlobVersion"].count(".") == 2


@pytest.mark.parametrize("case", ["plain", "small", "vtcm", "handles"])
def test_the_vendors_reader_agrees(folder: Path, case: str) -> None:
    """The vendor's libQnnSystem reads the same values in every field that it knows."""
    binary = folder / f"{case}_qnn.bin"
    mine = to_builtins(read_context(binary))
    for key, theirs in vendor_reading(binary).items():
        assert _same(mine[key], theirs), key


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return all(_same(mine[key], value) for key, value in theirs.items())
    if isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return bool(mine == theirs)


@pytest.mark.parametrize("case", ["plain", "small", "vtcm"])
def test_the_loaders_estimate_lies_in_the_range(folder: Path, case: str) -> None:
    """The range computed from the file alone contains the loader's estimate."""
    binary = folder / f"{case}_qnn.bin"
    guessed, measured = (
        bill_of(read_context(binary)).process_domain,
        bill_of_loaded(binary, None).process_domain,
    )
    assert guessed is not None
    assert measured is not None
    assert measured.is_exact
    assert guessed.low.value <= measured.low.value <= guessed.high.value


def test_a_model_is_compiled_loaded_and_billed(folder: Path) -> None:
    """`bill_of_model` measures traffic, host memory and the process domain as well."""
    bill = bill_of_model(folder / "model.onnx", find_soc("SM8650"))
    assert isinstance(bill, Bill)
    assert None not in (
        bill.total,
        bill.ddr_read_per_inference,
        bill.ddr_written_per_inference,
        bill.host_ram,
    )
    assert bill.process_domain is not None
    assert bill.process_domain.is_exact
    assert bill.traps == ()


def test_the_command_compiles_a_model(folder: Path) -> None:
    """`qnnmem footprint model.onnx` prints the bill without the library's own output."""
    command = [sys.executable, "-m", "qnnmem", "footprint", "model.onnx", "--soc", "SM8650"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, timeout=TIME_LIMIT_S
    )
    lines = done.stdout.splitlines()
    assert " of memory on SM8650; VTCM is " in lines[0]
    assert lines[-1] == (
        "next: keep the binary: qnnmem prepare model.onnx --backend htp --soc SM8650 -o model.bin"
    )
