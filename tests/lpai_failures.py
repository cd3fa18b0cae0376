"""Provoked failures of the LPAI runtime: each breaks the contract once and prints a log.

Some run `qnnmem net-run` on small models that do not fit TCM or have wrong files. The others run a
client with one mistake and keep the backend's log.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto, helper

from qnnmem.errors import QnnError
from qnnmem.lpai import PrepareOptions, prepare
from qnnmem.lpai.binary import write
from qnnmem.lpai.net_run.log import Console
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.descriptors import Mem, MemDescriptor, MemInfoCustom, custom
from qnnmem.lpai.runtime.heap import Heap
from qnnmem.lpai.selftest.client import PERSISTENT, SCRATCH, Client
from qnnmem.lpai.selftest.models import ELEMENTS
from qnnmem.qnn.enums import DataType, GraphProperty, LogLevel, MemRegisterType, MemType

SCRATCH_SIZE = GraphProperty.GET_PROP_SCRATCH_MEM_SIZE


class Failure(NamedTuple):
    """One failure: its name, its labels, and a function that provokes it."""

    name: str
    stage: str
    cause: str
    is_memory: bool
    decidable: str
    lines: Callable[[], list[str]]


SOURCE = "qnnmem net-run and the LPAI runtime of qnnmem, tests/lpai_failures.py"


def record(failure: Failure) -> dict[str, Any]:
    """Return the failure in the stored form."""
    return {
        "id": f"lpai-{failure.name}",
        "source": SOURCE,
        "framework": "qnnmem-lpai",
        "how": "provoked",
        "stage": failure.stage,
        "cause": failure.cause,
        "is_memory": failure.is_memory,
        "decidable": failure.decidable,
        "entry": None,
        "lines": failure.lines(),
    }


# --- The tool ------------------------------------------------------------------------------------


def net_run(
    model: onnx.ModelProto, mem_type: str, target: str, files: Sequence[int], keeps: bool = True
) -> list[str]:
    """Return the output of a run with input files of these sizes.

    `keeps` selects a persistent binary.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(model, folder / "model.onnx")
        options = PrepareOptions(allow_float=True, hw_version="v6")
        write(prepare({"model": folder / "model.onnx"}, options).context, folder / "model.bin")
        for number, size in enumerate(files):
            (folder / f"x{number}.raw").write_bytes(bytes(size))
        (folder / "inputs.txt").write_text(
            " ".join(f"x{number}.raw" for number in range(len(files)))
        )
        _configs(folder, mem_type, target, keeps)
        command = [*(sys.executable, "-m", "qnnmem", "net-run", "--backend", "libQnnLpai.so")]
        command += ["--retrieve_context", "model.bin", "--input_list", "inputs.txt"]
        command += ["--config_file", "tool.json", "--use_native_input_files"]
        command += ["--direct_mode", "adsp"] if target == "adsp" else []
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode in (2, 70):
            raise SystemExit(done.stdout)
        return [line for line in done.stdout.splitlines() if line]


def _configs(folder: Path, mem_type: str, target: str, keeps: bool) -> None:
    extensions = {
        "shared_library_path": "libQnnLpaiNetRunExtensions.so",
        "config_file_path": "lpai.conf",
    }
    tool = {
        "backend_extensions": extensions,
        "context_configs": {"is_persistent_binary": keeps},
    }
    lpai = {
        "lpai_backend": {"target_env": target},
        "lpai_graph": {"execute": {"mem_type": mem_type}},
    }
    (folder / "tool.json").write_text(json.dumps(tool))
    (folder / "lpai.conf").write_text(json.dumps(lpai))


def largest_of(size: int) -> onnx.ModelProto:
    """Return a model with one input of this many bytes."""
    return _model(["x"], (size,), helper.make_node("ReduceMax", ["x"], ["y"], keepdims=1), (1,))


def maximum_of(count: int, size: int = 16) -> onnx.ModelProto:
    """Return a model with this many inputs of this many bytes."""
    names = [f"x{number}" for number in range(count)]
    return _model(names, (size,), helper.make_node("Max", names, ["y"]), (size,))


def _model(
    inputs: Sequence[str], shape: Sequence[int], node: onnx.NodeProto, result: Sequence[int]
) -> onnx.ModelProto:
    kind = TensorProto.UINT8
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name in inputs],
        [helper.make_tensor_value_info("y", kind, result)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def good_run() -> list[str]:
    """Return the log of a successful run in TCM."""
    return net_run(largest_of(1 << 16), "tcm", "adsp", [1 << 16])


# --- Clients -------------------------------------------------------------------------------------


def client(mistake: Callable[[Client], object], graph: str) -> list[str]:
    """Return the backend's log for a client with this mistake."""
    lines: list[str] = []
    console = Console(LogLevel.INFO, lines.append, lines.append)
    made = Client(graph, profile=profile("adsp"))
    made.backend.log = console.log
    try:
        mistake(made)
    except QnnError:
        return lines
    raise SystemExit(f"{mistake.__name__} went unnoticed: {lines}")


def _misaligned(made: Client) -> None:
    off = made.heap.allocate(made.need(SCRATCH_SIZE) + 64, 64)
    made.graph.set_config([custom(SCRATCH, Mem(1, off.size - 64, off.view[16:])), None])


def _odd_size(made: Client) -> None:
    buffer = made.buffer(made.need(SCRATCH_SIZE) + 64)
    made.graph.set_config([custom(SCRATCH, Mem(1, buffer.size - 1, buffer)), None])


def _too_small(made: Client) -> None:
    buffer = made.buffer(made.need(SCRATCH_SIZE))
    made.graph.set_config([custom(SCRATCH, Mem(1, buffer.size - 64, buffer)), None])


def _other_type(made: Client) -> None:
    buffer = made.buffer(made.need(SCRATCH_SIZE))
    made.graph.set_config([custom(SCRATCH, Mem(MemType.TCM, buffer.size, buffer)), None])


def _mixed_types(made: Client) -> None:
    made.ready()
    made.io_heap = Heap(MemType.TCM)
    made.run()


def _overlapping(made: Client) -> None:
    made.give_scratch()
    size = made.need(GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE)
    made.graph.set_config([custom(PERSISTENT, Mem(1, size, made.scratch.view[:size])), None])


def _no_scratch(made: Client) -> None:
    made.give_persistent()
    made.graph.finalize()


def _not_finalized(made: Client) -> None:
    made.give_scratch()
    made.graph.execute()


def _late_persistent(made: Client) -> None:
    made.ready()
    made.give_persistent()


def _scratch_freed(made: Client) -> None:
    made.ready()
    made.scratch.free()
    made.run()


def _persistent_freed(made: Client) -> None:
    made.ready()
    made.persistent.free()
    made.run()


def _context_freed(made: Client) -> None:
    made.ready()
    made.context.free()
    made.graph.execute()


def _misaligned_input(made: Client) -> None:
    made.ready()
    inputs, outputs = made.tensors()
    buffer = made.heap.allocate(inputs[0].nbytes + 64, 64)
    inputs[0].client_buf = buffer.view[4 : 4 + inputs[0].nbytes]
    made.graph.execute(inputs, outputs)


def _short_input(made: Client) -> None:
    made.ready()
    inputs, outputs = made.tensors()
    inputs[0].data_size = inputs[0].nbytes - 4
    made.graph.execute(inputs, outputs)


def _freed_output(made: Client) -> None:
    made.ready()
    inputs, outputs = made.tensors()
    outputs[0].client_buf.free()
    made.graph.execute(inputs, outputs)


def _registered_twice(made: Client) -> None:
    made.ready()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        made.context.mem_register([_range(file.fileno(), 0)])
        made.context.mem_register([_range(file.fileno(), 0)])


def _past_the_end(made: Client) -> None:
    made.ready()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        made.context.mem_register([_range(file.fileno(), 4096 - 64)])


def _misaligned_offset(made: Client) -> None:
    made.ready()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        made.context.mem_register([_range(file.fileno(), 32)])


def _range(fd: int, offset: int) -> MemDescriptor:
    place = MemInfoCustom(fd, offset)
    return MemDescriptor((1, ELEMENTS), DataType.INT_32, MemRegisterType.CUSTOM, place)


def tcm(name: str, model: onnx.ModelProto, files: Sequence[int], stage: str, cause: str) -> Failure:
    """Return a failed run whose data does not fit TCM."""
    return Failure(name, stage, cause, True, "cause", lambda: net_run(model, "tcm", "adsp", files))


def misuse(
    name: str,
    stage: str,
    mistake: Callable[[Client], object],
    graph: str = "counter",
    cause: str = "buffer_misuse",
) -> Failure:
    """Return a client failure with a wrong buffer."""
    lines = functools.partial(client, mistake, graph)
    return Failure(name, stage, cause, False, "cause", lines)


def order(name: str, stage: str, mistake: Callable[[Client], object]) -> Failure:
    """Return a client failure with a wrong order of calls, which is a fault above QNN."""
    lines = functools.partial(client, mistake, "counter")
    return Failure(name, stage, "framework_bug", False, "memory_only", lines)


MIB = 1 << 20
FAILURES = (
    tcm("tcm-pool-one-input", largest_of(3 * MIB), [3 * MIB], "graph", "mem_tcm_pool"),
    tcm("tcm-pool-two-inputs", maximum_of(2, MIB), [MIB, MIB], "graph", "mem_tcm_pool"),
    tcm("tcm-33-buffers", maximum_of(40), [16] * 40, "context", "mem_tcm_slots"),
    Failure(
        *("invalid-memory-type", "context", "tcm_memory_type", False, "memory_only"),
        lambda: net_run(largest_of(64), "TCM", "adsp", [64]),
    ),
    Failure(
        *("tcm-without-direct-mode", "context", "vtcm_config", False, "memory_only"),
        lambda: net_run(largest_of(64), "tcm", "x86", [64]),
    ),
    Failure(
        *("persistent-binary-not-said", "context", "framework_bug", False, "memory_only"),
        lambda: net_run(largest_of(64), "ddr", "adsp", [64], keeps=False),
    ),
    Failure(
        *("short-input-file", "execute", "buffer_misuse", False, "cause"),
        lambda: net_run(largest_of(64), "ddr", "adsp", [60]),
    ),
    misuse("scratch-misaligned", "memreg", _misaligned),
    misuse("scratch-odd-size", "memreg", _odd_size),
    misuse("scratch-too-small", "memreg", _too_small),
    misuse("scratch-of-other-type", "memreg", _other_type, "plain", "tcm_memory_type"),
    misuse("model-and-io-mixed", "execute", _mixed_types, "plain", "tcm_mixed"),
    misuse("pools-overlap", "memreg", _overlapping),
    misuse("no-scratch", "graph", _no_scratch),
    misuse("scratch-freed", "execute", _scratch_freed, "plain"),
    misuse("persistent-freed", "execute", _persistent_freed),
    misuse("input-misaligned", "execute", _misaligned_input, "plain"),
    misuse("input-too-short", "execute", _short_input, "plain"),
    misuse("output-freed", "execute", _freed_output, "plain"),
    misuse("registered-twice", "memreg", _registered_twice, "plain"),
    misuse("registered-past-the-end", "memreg", _past_the_end, "plain"),
    misuse("registered-misaligned", "memreg", _misaligned_offset, "plain"),
    order("execute-before-finalize", "execute", _not_finalized),
    order("persistent-after-finalize", "memreg", _late_persistent),
    order("execute-after-context-free", "execute", _context_freed),
)
