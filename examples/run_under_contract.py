"""Run a prepared model frame by frame, then pass one misaligned buffer to see the finding.

    qnnmem prepare model.onnx --quantize int8 -o model.bin
    python examples/run_under_contract.py model.bin

Without an argument, it prepares a tiny recurrent model.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qnnmem import lpai
from qnnmem.errors import QnnError
from qnnmem.lpai.binary import write
from qnnmem.qnn.enums import BackendProperty, GraphOption, MemType

FRAMES = 20


def build(folder: Path) -> Path:
    """Prepare h' = tanh(x + W h), with h kept in persistent memory."""
    weights = numpy_helper.from_array(np.eye(16, dtype=np.float32) / 2, "w")
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in group]
        for group in (("x", "h"), ("y", "h_next"))
    )
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["wh"]),
        helper.make_node("Add", ["x", "wh"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_next"]),
        helper.make_node("Relu", ["h_next"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "recurrent", inputs, outputs, [weights])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "rnn.onnx")
    options = lpai.PrepareOptions(states=(("h", "h_next"),), quantize=8)
    write(lpai.prepare({"rnn": folder / "rnn.onnx"}, options).context, folder / "rnn.bin")
    return folder / "rnn.bin"


def run(path: Path) -> None:
    """Run with the short form: the session allocates and aligns all memory."""
    random = np.random.default_rng(0)
    with lpai.open(path) as session:
        graph = session.compiled
        for _ in range(FRAMES):
            inputs: dict[str, Any] = {}
            for name in graph.inputs:
                tensor = graph.model.tensors[name]
                # Real numbers: a quantized input converts them with its scale and zero point.
                inputs[name] = random.standard_normal(tensor.shape).astype(np.float32) * 0.1
            session.feed(inputs)
        done, findings = session.counters, session.findings
    print(f"{done.executions} executions, {done.early_terminations} waited for more frames")
    print(f"scratch {graph.scratch_bytes:,} bytes, persistent {graph.persistent_bytes:,} bytes")
    print(f"{done.copied_bytes:,} bytes copied by the runtime, {len(findings)} rules broken")


def break_a_rule(path: Path) -> None:
    """Make the single calls with scratch 4 bytes off; print the error and the reason."""
    backend = lpai.Backend.create()
    backend.get_property([lpai.custom_property(BackendProperty.GET_PROP_ALIGNMENT_REQ), None])
    context = lpai.Context.create_from_binary(backend, path.read_bytes())
    graph = context.graph_retrieve(lpai.get_binary_info(path.read_bytes())[0].graph_name)
    size = graph.compiled.scratch_bytes
    memory = lpai.Heap(MemType.DDR).allocate(size + 64)
    scratch = lpai.Mem(MemType.DDR, size, memory.view[4:])
    try:
        graph.set_config([lpai.custom(GraphOption.SET_CFG_SCRATCH_MEM, scratch), None])
    except QnnError as error:
        print(f"code {error.code}, rule {error.finding.rule}")
        print(f"what    {error.finding.sentence}")
        print(f"cure    {error.finding.cure}")
        print(f"source  {error.finding.source}")
    context.free()
    backend.free()


def main() -> None:
    """Run the binary named on the command line, or a new one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else build(Path(folder))
        run(path)
        print("\nThe same graph with scratch that starts 4 bytes too late:")
        break_a_rule(path)


if __name__ == "__main__":
    main()
