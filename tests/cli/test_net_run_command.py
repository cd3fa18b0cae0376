"""`qnnmem net-run`: device scripts run on the host, with the same files and output lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import pytest
from click.testing import Result
from command_line import exit_code, verb
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qnnmem.lpai import PrepareOptions, net_run, prepare
from qnnmem.lpai.binary import MAGIC, write
from qnnmem.lpai.net_run.device import Device, DeviceSettings
from qnnmem.lpai.net_run.device_child import RunLimits
from qnnmem.lpai.runtime.descriptors import CoreAffinityCfg, PerfCfg
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.heap import Extensions, HeapBuffer
from qnnmem.planner import Io
from qnnmem.qnn.enums import ClientPerfType, CoreAffinity, Priority

Array = NDArray[Any]
FLOAT, UINT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8
TCM = 2_035_712
A = np.arange(6, dtype="<f4").reshape(2, 3)
X = np.array([-1, 0.5, 2, 100], "<f4")


def info(name: str, shape: Sequence[int] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """Return the type description of an input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """Return a model of these nodes."""
    constants = [numpy_helper.from_array(v, name) for name, v in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), constants)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("qti_aisw", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def addition() -> onnx.ModelProto:
    """Return a model that adds two float tensors."""
    shape = (2, 3)
    node = helper.make_node("Add", ["a", "b"], ["y"])
    return model([node], [info("a", shape), info("b", shape)], [info("y", shape)])


def quantized() -> onnx.ModelProto:
    """Return a Relu with 8-bit input (scale 0.5, zero 3) and 8-bit output (scale 0.25, zero 10)."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
        helper.make_node("Relu", ["f"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "t", "w"], ["out/y:0"]),
    ]
    values = {
        "s": np.float32(0.5),
        "z": np.uint8(3),
        "t": np.float32(0.25),
        "w": np.uint8(10),
    }
    constants = {name: np.asarray(value) for name, value in values.items()}
    return model(nodes, [info("x", (4,), UINT8)], [info("out/y:0", (4,), UINT8)], constants)


def largest(size: int) -> onnx.ModelProto:
    """Return a model that gives the largest of this many bytes."""
    node = helper.make_node("ReduceMax", ["x"], ["y"], keepdims=1)
    return model([node], [info("x", (size,), UINT8)], [info("y", (1,), UINT8)])


def maximum(count: int) -> onnx.ModelProto:
    """Return a model that gives the maximum of this many inputs."""
    names = [f"x{n}" for n in range(count)]
    node = helper.make_node("Max", names, ["y"])
    return model([node], [info(name, (4,)) for name in names], [info("y", (4,))])


def windowed() -> onnx.ModelProto:
    """Return a model that waits for three frames and negates the window."""
    options: dict[str, Any] = {"buffer_size": 3, "buffer_dim": 0, "mode": 0}
    nodes = [
        helper.make_node("Buffer", ["x"], ["w"], domain="qti_aisw", **options),
        helper.make_node("Neg", ["w"], ["y"]),
    ]
    return model(nodes, [info("x", (1, 4))], [onnx.ValueInfoProto(name="y")])


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that prepares each model once; equal names mean equal models."""
    folder = tmp_path_factory.mktemp("binaries")

    def make(io: Io = Io.INSIDE, hw_version: str = "v6", **models: onnx.ModelProto) -> Path:
        key = "-".join(models) + io.value + hw_version
        path = folder / f"{key}.bin"
        if not path.exists():
            files = {}
            for name, proto in models.items():
                files[name] = folder / f"{name}.onnx"
                onnx.save(proto, files[name])
            options = PrepareOptions(allow_float=True, io=io, hw_version=hw_version)
            write(prepare(files, options).context, path)
        return path

    return make


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder with some inputs."""
    monkeypatch.chdir(tmp_path)
    A.tofile("a.raw")
    (10 * A).astype("<f4").tofile("b.raw")
    X.tofile("x.raw")
    np.array([0, 3, 9, 255], np.uint8).tofile("x.u8")
    Path("ab.txt").write_text("a.raw b.raw\n")
    Path("x.txt").write_text("x.raw\n")
    Path("x8.txt").write_text("x.u8\n")
    return tmp_path


def config(
    mem_type: str = "ddr", target: str = "adsp", context: Mapping[str, Any] | None = None
) -> str:
    """Write a pair of config files and return the name of the first."""
    library = "libQnnLpaiNetRunExtensions.so"
    tool = {
        "backend_extensions": {"shared_library_path": library, "config_file_path": "l.conf"},
        "context_configs": {"is_persistent_binary": True} if context is None else context,
    }
    run = {"mem_type": mem_type, "fps": 5, "client_type": "non_real_time", "affinity": "hard"}
    lpai = {"lpai_backend": {"target_env": target}, "lpai_graph": {"execute": run}}
    Path("tool.json").write_text(json.dumps(tool))
    Path("l.conf").write_text(json.dumps(lpai))
    return "tool.json"


net_run_verb = verb("net-run")


def run(*words: str | Path) -> Result:
    """Run `net-run` with a backend unless the arguments name one."""
    backend = () if "--backend" in words else ("--backend", "/data/libQnnLpai.so")
    return net_run_verb(*backend, *words)


class DeviceHere(Device):
    """A device in this process, whose behaviour a test can change."""

    cure = ""

    def __init__(
        self, settings: DeviceSettings, _limits: RunLimits, times: Any, log: Any, _shown: Path
    ) -> None:
        super().__init__(settings, times, log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run net-run without a child process."""
    monkeypatch.setattr(net_run, "DeviceChild", DeviceHere)


def refused(*arguments: str | Path) -> str:
    """Return the sentence of a run that exits with 2."""
    result = run(*arguments)
    assert exit_code(result) == 2
    return str(result.exception)


def lines_of(result: Result) -> list[str]:
    """Return the transcript without process ids and times."""
    lines = result.stdout.splitlines()
    return [re.sub(r"^[0-9.]+ms |(?<=pid:)[0-9]+", "", line) for line in lines]


def floats(path: str) -> Array:
    """Return the values of a float32 file."""
    return np.fromfile(path, "<f4")


@cache
def version() -> str:
    """Return the version of the package."""
    import qnnmem

    return qnnmem.__version__


# Results and files


def test_a_run_prints_the_lines_of_the_tool_in_its_order(binary: Any) -> None:
    """The transcript has the tool's lines in their order, with the version of qnnmem."""
    file = binary(add=addition())
    result = run("--retrieve_context", file, "--input_list", "ab.txt", "--log_level", "warn")
    assert exit_code(result) == 0
    assert lines_of(result) == [
        "qnn-net-run pid:",
        f"qnn-net-run build version: qnnmem-{version()}",
        "qnn-net-run log level is : QNN_LOG_LEVEL_WARN",
        "Processing inference input(s):",
        "a.raw b.raw",
        f"Creating context from binary file: {file}",
        "Executing Graphs",
        "Finished Executing Graphs",
    ]
    assert np.array_equal(floats("output/Result_0/y.raw"), (11 * A).ravel())
    assert not list(Path("output").rglob(".*"))


def test_results_of_float_ops_say_so(binary: Any) -> None:
    """Results of float ops give a warning and a flag in the metadata, since LPAI has no floats."""
    result = run("--retrieve_context", binary(add=addition()), "--input_list", "ab.txt")
    assert "results of graph 'add' come from floating point" in result.stderr
    assert "results_from_floating_point: true" in Path("output/execution_metadata.yaml").read_text()


def test_floats_are_quantized_on_the_way_in_and_back(binary: Any) -> None:
    """Float32 files are quantized to 8 bits for the graph and its outputs are dequantized."""
    file = binary(quant=quantized())
    flags = ("--output_data_type", "float_and_native", "--output_dir=o")
    result = run("--retrieve_context", file, "--input_list", "x.txt", *flags)
    assert exit_code(result) == 0
    assert "floating point" not in result.stderr
    stored = np.clip(np.rint(X / 0.5 + 3), 0, 255)
    real = np.maximum((stored - 3) * 0.5, 0)
    native = np.clip(np.rint(real / 0.25 + 10), 0, 255).astype(np.uint8)
    assert np.array_equal(np.fromfile("o/Result_0/out_y_0_native.raw", np.uint8), native)
    expected = (native.astype(np.float32) - 10) * 0.25
    assert np.array_equal(floats("o/Result_0/out_y_0.raw"), expected)
    metadata = Path("o/execution_metadata.yaml").read_text().splitlines()
    assert metadata[0] == "inferences_completed: 1"
    assert "results_from_floating_point: false" in metadata


@pytest.mark.parametrize(
    "flags",
    [
        ("--use_native_input_files",),
        ("--input_data_type", "native"),
        ("--native_input_tensor_names", "quant:x"),
    ],
)
def test_native_inputs_are_taken_as_they_are(flags: tuple[str, ...], binary: Any) -> None:
    """All three flags for native input files have the same effect."""
    arguments = ("--retrieve_context", binary(quant=quantized()), "--input_list", "x8.txt")
    assert exit_code(run(*arguments, *flags, "--use_native_output_files")) == 0
    assert [path.name for path in Path("output/Result_0").iterdir()] == ["out_y_0_native.raw"]
    found = np.fromfile("output/Result_0/out_y_0_native.raw", np.uint8)
    assert found.tolist() == [10, 10, 22, 255]


def test_the_list_is_repeated_and_results_are_kept_as_asked(binary: Any) -> None:
    """Inferences repeat the input list, and only the requested number of results is kept."""
    Path("two.txt").write_text("a:=a.raw b:=b.raw\na:=b.raw b:=b.raw\n")
    flags = ("--num_inferences", "5", "--keep_num_outputs", "3")
    run("--retrieve_context", binary(add=addition()), "--input_list", "two.txt", *flags)
    found = sorted(path.name for path in Path("output").glob("Result_*"))
    assert found == ["Result_0", "Result_1", "Result_2"]
    assert np.array_equal(floats("output/Result_1/y.raw"), (20 * A).ravel())
    assert np.array_equal(floats("output/Result_2/y.raw"), (11 * A).ravel())
    assert "inferences_completed: 5" in Path("output/execution_metadata.yaml").read_text()


def test_no_outputs_are_kept_when_none_are_wanted(binary: Any) -> None:
    """`--keep_num_outputs 0` writes only the metadata; `--duration 0` still runs once."""
    flags = ("--keep_num_outputs", "0", "--duration", "0")
    run("--retrieve_context", binary(add=addition()), "--input_list", "ab.txt", *flags)
    assert [path.name for path in Path("output").iterdir()] == ["execution_metadata.yaml"]


def test_several_graphs_have_a_folder_each(binary: Any) -> None:
    """Each graph has an input list and a result folder; `__` skips a graph."""
    file = binary(add=addition(), quant=quantized())
    result = run("--retrieve_context", file, "--input_list", "ab.txt,x.txt")
    assert exit_code(result) == 0
    assert Path("output/add/Result_0/y.raw").exists()
    assert Path("output/quant/Result_0/out_y_0.raw").exists()
    flags = ("--input_list", "__,x.txt", "--output_dir", "other")
    assert exit_code(run("--retrieve_context", file, *flags)) == 0
    assert sorted(path.name for path in Path("other").iterdir()) == [
        "execution_metadata.yaml",
        "quant",
    ]
    assert "1 list for 2 graphs ('add', 'quant')" in refused(
        "--retrieve_context", file, "--input_list", "ab.txt"
    )
    assert "skips all graphs" in refused("--retrieve_context", file, "--input_list", "__,__")


def test_only_enabled_graphs_want_a_list(binary: Any) -> None:
    """Only graphs that the config enables run and need an input list."""
    file = binary(add=addition(), quant=quantized())
    chosen = config(target="x86", context={"enable_graphs": ["quant"]})
    flags = ("--input_list", "x.txt", "--config_file", chosen)
    assert exit_code(run("--retrieve_context", file, *flags)) == 0


@pytest.mark.parametrize("style", ["--synchronous", "--asynchronous"])
@pytest.mark.parametrize("io", [Io.INSIDE, Io.OUTSIDE])
def test_shared_buffers_are_not_copied(style: str, io: Io, binary: Any) -> None:
    """Registered inputs and outputs are used in place, synchronously and asynchronously."""
    file = binary(add=addition(), io=io)
    flags = ("--shared_buffer", style, "--num_inferences", "20")
    result = run("--retrieve_context", file, "--input_list", "ab.txt", *flags)
    assert exit_code(result) == 0
    assert "[INFO] Graph 'add': execution count 20; bytes copied for IO and state: 0" in lines_of(
        result
    )
    for number in range(20):
        assert np.array_equal(floats(f"output/Result_{number}/y.raw"), (11 * A).ravel())


def test_the_queue_is_as_deep_as_the_config_says(binary: Any) -> None:
    """More inferences than the queue depth complete in order."""
    Path("many.txt").write_text("a.raw b.raw\nb.raw b.raw\n")
    depth = config(target="x86", context={"async_execute_queue_depth": 2})
    flags = ("--asynchronous", "--num_inferences", "9", "--config_file", depth)
    file = binary(add=addition())
    assert exit_code(run("--retrieve_context", file, "--input_list", "many.txt", *flags)) == 0
    for number in range(9):
        expected = (20 if number % 2 else 11) * A
        assert np.array_equal(floats(f"output/Result_{number}/y.raw"), expected.ravel())


@pytest.mark.parametrize("style", ["--synchronous", "--asynchronous"])
def test_what_ran_before_a_bad_line_has_its_result(style: str, binary: Any) -> None:
    """An input file of the wrong size ends the run with exit code 1 and keeps earlier results."""
    Path("list.txt").write_text("a.raw b.raw\nx.raw b.raw\n")
    file = binary(add=addition())
    result = run("--retrieve_context", file, "--input_list", "list.txt", style)
    assert exit_code(result) == 1
    words = "Input file x.raw: file size in bytes (16), should be equal to: 24"
    assert lines_of(result)[-3:] == [
        f"[ERROR] {words}",
        "[ERROR] Execution of Graph: 0 failed!",
        "[ERROR] Graph Execution failure",
    ]
    assert f"[R4] {words}" in result.stderr
    assert [path.name for path in Path("output").glob("R*")] == ["Result_0"]
    assert "inferences_completed: 1" in Path("output/execution_metadata.yaml").read_text()


def test_windows_wait_for_frames(binary: Any) -> None:
    """An execution that returns 6038 has no result, and the run continues and counts it."""
    Path("frames.txt").write_text("x.raw\n" * 5)
    result = run("--retrieve_context", binary(w=windowed()), "--input_list", "frames.txt")
    assert exit_code(result) == 0
    found = sorted(path.name for path in Path("output").glob("Result_*"))
    assert found == ["Result_2", "Result_3", "Result_4"]
    assert np.array_equal(floats("output/Result_2/y.raw"), -np.tile(X, 3))
    assert "2 of 5 executions returned 6038" in result.stderr
    text = Path("output/execution_metadata.yaml").read_text()
    assert "inferences_completed: 3\nearly_terminations: 2\n" in text


def test_times_are_written_beside_the_results(binary: Any) -> None:
    """The profiling file has a row for each API function."""
    flags = ("--profiling_level", "detailed", "--use_mmap", "--validate_binary")
    run("--retrieve_context", binary(add=addition()), "--input_list", "ab.txt", *flags)
    text = Path("output/qnn-profiling-data_0.log").read_text()
    for name in ("QnnContext_createFromBinary", "QnnGraph_execute", "QnnContext_free"):
        assert re.search(rf"^{name} +1 ", text, re.MULTILINE)


# Modes and TCM


@pytest.mark.parametrize("mode", [("--direct_mode",), ("--direct_mode", "adsp")])
def test_direct_mode_takes_its_value_or_none(mode: tuple[str, ...], binary: Any) -> None:
    """`--direct_mode` with and without its value runs on the aDSP and prints its success line."""
    file = binary(add=addition())
    flags = (*mode, "--config_file", config(), "--input_list", "ab.txt")
    result = run("--retrieve_context", file, *flags)
    assert exit_code(result) == 0
    assert lines_of(result)[-1] == "[INFO] [Qnn Runtime] NonRPC net-run SUCCESS"


def test_direct_mode_needs_a_persistent_binary(binary: Any) -> None:
    """In direct mode, context creation fails without `is_persistent_binary` in the config."""
    file = binary(add=addition())
    flags = ("--direct_mode", "--config_file", config(context={}), "--input_list", "ab.txt")
    result = run("--retrieve_context", file, *flags)
    assert exit_code(result) == 1
    assert lines_of(result)[-3:] == [
        "[ERROR] QNN_CONTEXT_ERROR_INVALID_CONFIG (5010)",
        "[ERROR] Could not create context from binary.",
        "[ERROR] Create From Binary failure",
    ]
    assert "[R10]" in result.stderr
    assert '"is_persistent_binary": true' in result.stderr


def test_adsp_without_direct_mode_is_the_traditional_way(binary: Any) -> None:
    """Target adsp without --direct_mode runs through FastRPC, with a warning."""
    file = binary(add=addition())
    flags = ("--config_file", config(context={}), "--input_list", "ab.txt")
    result = run("--retrieve_context", file, *flags, "--io_tensor_mem_handle_type", "ion")
    assert exit_code(result) == 0  # ION works only in arm mode
    assert "without --direct_mode" in result.stderr


def test_ion_is_for_arm_mode_alone(binary: Any) -> None:
    """Without arm mode, registration of ION memory fails with code 8005."""
    file = binary(add=addition())
    flags = ("--input_list", "ab.txt", "--io_tensor_mem_handle_type", "ion")
    result = run("--retrieve_context", file, *flags)
    assert exit_code(result) == 1
    assert "[ERROR] QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE (8005)" in lines_of(result)


def tcm_run(file: Path, inputs: str, *flags: str) -> Result:
    """Return the result of a run in direct mode with all memory in TCM."""
    mode = ("--direct_mode", "adsp", "--config_file", config("tcm"), "--use_native_input_files")
    return run("--retrieve_context", file, "--input_list", inputs, *mode, *flags)


@pytest.fixture(scope="module")
def tight(binary: Any) -> tuple[Path, int]:
    """Return a binary that fills TCM to the last byte, and the size of its input."""
    guess = 2_030_000  # has as many digits as the final size, so the binary keeps its length
    around = binary(guess=largest(guess)).stat().st_size
    size = TCM - -(-around // 64) * 64 - 64
    file = binary(exact=largest(size))
    assert -(-file.stat().st_size // 64) == -(-around // 64)
    return file, size


def test_an_exact_fit_of_tcm_runs(tight: tuple[Path, int]) -> None:
    """Binary, inputs and outputs may fill TCM exactly; each allocation is logged at level debug."""
    file, size = tight
    Path("in.raw").write_bytes(bytes(size - 1) + b"\x07")
    Path("in.txt").write_text("in.raw\n")
    result = tcm_run(file, "in.txt", "--log_level", "verbose")
    assert exit_code(result) == 0
    assert "tcm pool" not in result.stdout
    result = tcm_run(file, "in.txt", "--log_level", "debug")
    assert exit_code(result) == 0
    binary_bytes = -(-file.stat().st_size // 64) * 64
    assert [line for line in lines_of(result) if "TCM" in line or "tcm" in line] == [
        "[INFO] TCM pool current size: 0 max_size: 2035712",
        f"[INFO] Allocate size {binary_bytes} from tcm pool 0",
        f"[INFO] Allocate size {size} from tcm pool 0",
        "[INFO] Allocate size 64 from tcm pool 0",
    ]
    assert floats("output/Result_0/y.raw").tolist() == [7]


def test_one_byte_more_than_tcm_fails_with_the_bill(tight: tuple[Path, int], binary: Any) -> None:
    """One byte over TCM fails without a fallback and lists the allocations and remedies."""
    size = tight[1] + 1
    Path("in.raw").write_bytes(bytes(size))
    Path("in.txt").write_text("in.raw\n")
    result = tcm_run(binary(extra=largest(size)), "in.txt", "--log_level", "error")
    assert exit_code(result) == 1
    assert lines_of(result)[-3:] == [
        "[ERROR] TCM memory allocation failure: required size: 64",
        "[ERROR] QNN_COMMON_ERROR_MEM_ALLOC (1002)",
        "[ERROR] Graph Prepare failure",
    ]
    assert "Allocate size" not in result.stdout
    first, table = result.stderr.splitlines()[0], result.stderr
    assert first.startswith("[T1] output y needs 64 bytes of TCM, but only 0 of 2,035,712 are left")
    assert "64 missing" in table
    assert re.search(r"model binary\n.*input 'x'\n.*output 'y'  <- does not fit", table)
    assert "any one of these is enough" in table
    assert "; or mem_type ddr\n" in table


def test_a_binary_larger_than_tcm_fails_before_the_context(binary: Any, tight: Any) -> None:
    """A binary larger than TCM fails at context creation, since the binary is allocated first."""
    weights = np.zeros(TCM, np.uint8)
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    index = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, (1,))
    file = binary(big=model([node], [index], [info("y", (1,), UINT8)], {"w": weights}))
    result = tcm_run(file, "x.txt")
    assert exit_code(result) == 1
    assert lines_of(result)[-1] == "[ERROR] Create From Binary failure"
    assert "a model binary that is smaller by" in result.stderr


@pytest.mark.parametrize(("count", "status"), [(30, 0), (31, 134)])
def test_the_33rd_allocation_ends_the_process(count: int, status: int, binary: Any) -> None:
    """32 TCM allocations pass; the 33rd ends the process with status 134."""
    file = binary(**{f"max{count}": maximum(count)})
    Path("in.txt").write_text(" ".join(["x.raw"] * count))
    words = ["--retrieve_context", str(file), "--backend", "libQnnLpai.so", "--input_list"]
    words += ["in.txt", "--direct_mode", "--config_file", config("tcm")]
    done = subprocess.run(
        [sys.executable, "-m", "qnnmem", "net-run", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    text = "TCM allocator limit of 32 buffers exceeded"
    assert (text in done.stdout, f"qnnmem: {text}" in done.stderr) == (status != 0,) * 2
    assert ("33 allocations are needed" in done.stderr) == (status != 0)


def test_an_unknown_memory_type_fails_with_both_messages(binary: Any) -> None:
    """An unknown memory type prints the parser's and the allocator's message and fails with T4."""
    file = binary(add=addition())
    flags = ("--direct_mode", "--config_file", config("tmc"), "--input_list", "ab.txt")
    result = run("--retrieve_context", file, *flags)
    assert exit_code(result) == 1
    said = [line for line in lines_of(result) if line.startswith("[ERROR]")]
    assert said[:2] == [
        "[ERROR] Invalid memory type",
        "[ERROR] Memory type only supports DDR & TCM",
    ]
    assert "[T4]" in result.stderr


@pytest.mark.parametrize("flags", [(), ("--direct_mode", "--hw_ver", "v5")])
def test_tcm_is_for_direct_mode_on_new_hardware(flags: tuple[str, ...], binary: Any) -> None:
    """TCM without direct mode, or on hardware before v6, fails with rule T3."""
    file = binary(hw_version="v5", add5=addition())
    mode = ("--config_file", config("tcm", "x86"), *flags)
    result = run("--retrieve_context", file, "--input_list", "ab.txt", *mode)
    assert exit_code(result) == 1
    assert "[T3]" in result.stderr


def test_shared_buffers_and_tcm_cannot_go_together(binary: Any) -> None:
    """`--shared_buffer` is refused with TCM, since IO has one kind of memory."""
    flags = ("--direct_mode", "--config_file", config("tcm"), "--shared_buffer")
    file = binary(add=addition())
    assert "TCM" in refused("--retrieve_context", file, "--input_list", "ab.txt", *flags)


def test_a_binary_for_newer_hardware_is_refused(binary: Any) -> None:
    """A binary for v7 fails with code 5008 on v6 and runs with `--hw_ver v7`."""
    arguments = ("--retrieve_context", binary(hw_version="v7", add7=addition()))
    result = run(*arguments, "--input_list", "ab.txt")
    assert exit_code(result) == 1
    assert "--hw_ver v7" in result.stderr
    assert exit_code(run(*arguments, "--input_list", "ab.txt", "--hw_ver", "v7")) == 0


@pytest.mark.parametrize("alignment", ["conservative", "v4-era"])
def test_every_alignment_runs(alignment: str, binary: Any) -> None:
    """A run allocates with the alignment of the chosen platform."""
    flags = ("--alignment", alignment, "--lenient_scratch", "--input_list", "ab.txt")
    assert exit_code(run("--retrieve_context", binary(add=addition()), *flags)) == 0


@pytest.mark.parametrize(("flags", "status"), [((), 1), (("--no-sanitize",), 0)])
@pytest.mark.usefixtures("here")
def test_findings_of_the_sanitiser_fail_the_run(
    flags: tuple[str, ...], status: int, binary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed byte behind scratch is reported as X2 and fails the run, unless --no-sanitize."""
    original = Extensions.allocate_pool

    def careless(self: Extensions, *arguments: Any) -> HeapBuffer:
        buffer = original(self, *arguments)
        buffer._storage[buffer._start + buffer.size] ^= 1
        return buffer

    monkeypatch.setattr(Extensions, "allocate_pool", careless)
    file = binary(add=addition())
    result = run("--retrieve_context", file, "--input_list", "ab.txt", *flags)
    assert exit_code(result) == status
    assert ("[X2]" in result.stderr) == (status == 1)
    assert Path("output/Result_0/y.raw").exists()


@pytest.mark.usefixtures("here")
def test_a_failing_finalize_is_told_in_the_words_of_the_tool(
    binary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed finalize logs the graph index and code; the explanation names the rule."""

    def forgetful(_self: Graph, _configs: Any) -> None:
        return None

    monkeypatch.setattr(Graph, "set_config", forgetful)
    file = binary(add=addition())
    result = run("--retrieve_context", file, "--input_list", "ab.txt")
    assert exit_code(result) == 1
    assert lines_of(result)[-3:] == [
        "[ERROR] QNN_GRAPH_ERROR_FINALIZE_FAILED (6022)",
        "[ERROR] Finalize Graph for Idx = 0 failed with error = 6022",
        "[ERROR] Graph Finalize failure",
    ]
    assert "[R2] scratch needs" in result.stderr


@pytest.mark.usefixtures("here")
def test_settings_of_the_config_reach_graph_and_context(
    binary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Performance, core and priority settings reach graph and context before finalize."""
    seen: list[Graph] = []
    original = Graph.finalize

    def watching(self: Graph) -> None:
        seen.append(self)
        original(self)

    monkeypatch.setattr(Graph, "finalize", watching)
    chosen = Path(config(target="x86", context={"context_priority": "high"}))
    entries = [
        {"graph_name": "add", "graph_priority": "low"},
        {"graph_name": "gone", "graph_priority": "low"},
    ]
    chosen.write_text(json.dumps(json.loads(chosen.read_text()) | {"graph_configs": entries}))
    arguments = ("--retrieve_context", binary(add=addition()), "--config_file", chosen)
    result = run(*arguments, "--input_list", "ab.txt")
    assert exit_code(result) == 0
    assert "an entry for graph 'gone', which does not run" in result.stderr
    (graph,) = seen
    assert graph.context.config.priority is Priority.HIGH
    assert graph.priority is Priority.LOW
    assert graph.perf == PerfCfg(5, 10, ClientPerfType.NON_REAL_TIME)
    assert graph.affinity == CoreAffinityCfg(CoreAffinity.HARD, 0)


def test_a_layout_without_a_program_fails_at_execution(tmp_path: Path) -> None:
    """A layout without a program fails at execution, and the message says so."""
    source = Path(__file__).parents[2] / "examples" / "tiny.eaix"
    write(prepare({"tiny": source}).context, tmp_path / "tiny.bin")
    Path("in.raw").write_bytes(bytes(4 * 256))
    Path("in.txt").write_text("in.raw\n")
    result = run("--retrieve_context", "tiny.bin", "--input_list", "in.txt")
    assert exit_code(result) == 1
    assert lines_of(result)[-1] == "[ERROR] Graph Execution failure"
    assert "layout without a program" in result.stderr


def test_results_of_an_earlier_run_are_pointed_out(binary: Any) -> None:
    """Files of an earlier run remain in the output folder, with a warning."""
    arguments = ("--retrieve_context", binary(add=addition()), "--input_list", "ab.txt")
    assert "earlier run" not in run(*arguments).stderr
    assert "earlier run" in run(*arguments).stderr


# What is refused, and what is ignored


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--model", "m.so"), "qnn-context-binary-generator"),
        (("--dlc_path", "m.dlc"), "qnn-context-binary-generator"),
        (("--binary_updates", "u"), "prepare the changed model"),
        (("--set_output_tensors", "a"), "cannot be combined with --retrieve_context"),
        (("--debug",), "cannot be combined with --retrieve_context"),
        (("--batch_multiplier", "2"), "one batch size"),
        (("--direct_mode", "cdsp"), "--direct_mode must be adsp"),
        (("--backend", "/x/libQnnHtp.so"), "name libQnnLpai.so"),
        (("--backend", "foo.so"), "is not an LPAI backend"),
        (("--backend", ""), "--backend is missing"),
        (("--use_native_input_files", "--native_input_tensor_names", "g:x"), "cannot be combined"),
        (("--synchronous", "--asynchronous"), "cannot be combined"),
        (
            ("--max_input_cache_tensor_sets", "1", "--max_input_cache_size_mb", "1"),
            "cannot be combined",
        ),
        (("--native_input_tensor_names", "add:z"), "'z' is not an input"),
        (("--hw_ver", "v99"), "not an LPAI hardware version"),
        (("--duration", "soon"), "not a number of seconds"),
        (("--input_list", "nowhere.txt"), "no such file"),
        (("--input_list", "."), "is a folder"),
        (("--retrieve_context", "nowhere.bin"), "no such file"),
        (("--retrieve_context", "."), "is a folder"),
        (("--config_file", "nowhere.json"), "nowhere.json"),
        (("--output_dir", "a.raw"), "exists and is not a folder"),
        (("--output_dir", "a.raw/sub"), "cannot be created"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(
    flags: tuple[str, ...], sentence: str, binary: Any
) -> None:
    """Arguments that are invalid or would change results give exit code 2 before any result."""
    file = binary(add=addition())
    usual = {"--retrieve_context": file, "--input_list": "ab.txt"}
    rest = [word for name, value in usual.items() if name not in flags for word in (name, value)]
    said = refused(*rest, *flags)
    assert sentence in said
    assert "\n" not in said
    assert not Path("output/Result_0").exists()


def test_flags_without_meaning_are_ignored_with_a_word(binary: Any) -> None:
    """Flags without effect are ignored with one warning each."""
    flags = {
        "--op_packages": "p:q",
        "--perf_profile": "burst",
        "--profiling_option": "optrace",
        "--platform_options": "a:b",
        "--device_options": "x",
        "--model_prefix": "Q",
        "--max_input_cache_tensor_sets": "1",
        "--timeout": "5",
        "--retrieve_context_timeout": "5",
    }
    words = [word for pair in flags.items() for word in pair]
    file = binary(add=addition())
    result = run("--retrieve_context", file, "--input_list", "ab.txt", *words)
    assert exit_code(result) == 0
    for flag in flags:
        assert f"warning: {flag} is ignored" in result.stderr


def test_the_version_needs_nothing_else() -> None:
    """`--version` prints the version line of the tool without other arguments."""
    result = verb("net-run")("--version")
    assert result.stdout == f"qnn-net-run build version: qnnmem-{version()}\n"


def test_an_empty_list_loads_and_executes_nothing(binary: Any) -> None:
    """A run with an empty input list succeeds and says that no inference ran."""
    Path("empty.txt").write_text("")
    result = run("--retrieve_context", binary(add=addition()), "--input_list", "empty.txt")
    assert exit_code(result) == 0
    assert "no inference runs" in result.stderr
    assert "inferences_completed: 0" in Path("output/execution_metadata.yaml").read_text()


@pytest.mark.parametrize("content", [b"", b"QNN", bytes(1000), b"\x7fELF" + bytes(5000)])
def test_what_is_no_binary_is_refused(content: bytes) -> None:
    """An invalid binary gives exit code 2; unless it is empty, the transcript has code 5005."""
    Path("bad.bin").write_bytes(content)
    result = run("--retrieve_context", "bad.bin", "--input_list", "ab.txt")
    assert exit_code(result) == 2
    if content:
        assert "[ERROR] QNN_CONTEXT_ERROR_CREATE_FROM_BINARY (5005)" in lines_of(result)


def test_a_giant_file_is_refused_unread() -> None:
    """A file of 1 GiB or 17 GiB with only a binary's magic number is refused."""
    for size in (17 << 30, 1 << 30):
        with Path("giant.bin").open("wb") as file:
            file.write(MAGIC)
            file.truncate(size)
        result = run("--retrieve_context", "giant.bin", "--input_list", "ab.txt")
        assert exit_code(result) == 2


def test_a_damaged_binary_is_refused(binary: Any) -> None:
    """A binary with a flipped bit is refused before anything runs."""
    data = bytearray(binary(add=addition()).read_bytes())
    data[len(data) // 2] ^= 4
    Path("bad.bin").write_bytes(data)
    result = run("--retrieve_context", "bad.bin", "--input_list", "ab.txt")
    assert exit_code(result) == 2
    assert "Create From Binary failure" in lines_of(result)[-1]


def test_files_that_a_list_names_must_be_there(binary: Any) -> None:
    """A missing input file of the list gives exit code 2 and is named."""
    Path("list.txt").write_text("a.raw nowhere.raw\n")
    said = refused("--retrieve_context", binary(add=addition()), "--input_list", "list.txt")
    assert said == "nowhere.raw: no such file"


def test_names_never_leave_the_output_folder(binary: Any) -> None:
    """Tensor and graph names cannot lead outside the output folder."""
    node = helper.make_node("Neg", ["x"], ["../../evil"])
    proto = model([node], [info("x", (4,))], [info("../../evil", (4,))])
    file = binary(**{"bad..": proto, "other": addition()})
    run("--retrieve_context", file, "--input_list", "x.txt,__", "--output_dir", "o")
    found = [str(path) for path in Path("o").rglob("*.raw")]
    assert found == ["o/bad_/Result_0/_evil.raw"]
