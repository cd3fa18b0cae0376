"""Fewer bits for HTP: the library compiles the model that was compared."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qnnmem.fix.bench import CaseBench
from qnnmem.fix.lossy.lower_precision import PrecisionRemedy
from qnnmem.fix.remedy import Change, FixCase, Need, self_contained
from qnnmem.htp.compile import Compiled, CompileOptions, compile_model
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.worker import Worker
from qnnmem.loader.onnx import read_shaped
from qnnmem.targets.socs import find_soc

needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)


def layers(path: Path) -> Path:
    """Write a product with 256 KiB of 32-bit weights."""
    random = numpy.random.default_rng(0)
    weights = numpy_helper.from_array(random.normal(size=(256, 256)).astype("float32") / 16, "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 256])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 256])
    graph = helper.make_graph(nodes, "layers", [x], [y], [weights])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.mark.htp
@needs_library
def test_fewer_bits_compile_to_fewer_bytes(tmp_path: Path) -> None:
    """FP16 differs by less than 0.1 %, int8 by less than 10 %; the compared model is compiled."""
    path = layers(tmp_path / "layers.onnx")
    case = FixCase(path, read_shaped(path), CompileOptions())
    soc = find_soc("SM8650")
    sizes = {}
    with Worker(warm=True) as worker, CaseBench(case, lambda _change: Need(None, None)) as bench:
        base = bench.judged(Change("none", "as it is", case.model, case.options))
        for made in PrecisionRemedy(("fp16", "int8")).changes(bench, base):
            proof, word = made.proof, made.change.what
            assert proof is not None
            assert made.change.is_lossy
            assert 0 < proof.relative < {"fp16": 1e-3, "int8": 0.1}[word]
            (tmp_path / f"{word}.onnx").write_bytes(
                self_contained(made.change.model).SerializeToString()
            )
            found = compile_model(tmp_path / f"{word}.onnx", soc, worker=worker)
            assert isinstance(found, Compiled)
            sizes[word] = len(found.binary or b"")
    assert sizes["fp16"] - sizes["int8"] > 60_000  # half of the weights
