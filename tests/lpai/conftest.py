"""Small models compiled without a child process, and the memory that they run in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from qnnmem import lpai
from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.lpai.binary import write
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.program import arrange
from qnnmem.lpai.program.run import Parts
from qnnmem.lpai.runtime.execution import Execution, ExecutionOutcome, GivenBuffers, UserBuffer
from qnnmem.lpai.runtime.heap import process_tcm
from qnnmem.planner import Pool, PoolOptions, plan_model

Array = NDArray[Any]
DTYPES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool"}
VIEWS = ("Reshape", "Identity", "Flatten")
ELEMENTWISE = ("Relu", "Neg", "Sigmoid", "Tanh", "Exp", "Add", "Mul", "Sub")


class Memory:
    """A graph with its own pools, run op by op or as a whole."""

    def __init__(self, parts: Parts, *, in_order: bool = True, sanitize: bool = True) -> None:
        self.parts, self.graph = parts, parts.graph
        self.execution = Execution(parts, in_order=in_order, sanitize=sanitize)
        self.scratch = aligned(self.graph.scratch_bytes)
        self.persistent = aligned(self.graph.persistent_bytes)
        self.execution.attach(Pool.SCRATCH, self.scratch)
        self.execution.attach(Pool.PERSISTENT, self.persistent)
        self.execution.reset()

    def replace_scratch(self) -> Array:
        """Attach new scratch and return the old scratch."""
        old, self.scratch = self.scratch, aligned(self.graph.scratch_bytes)
        self.execution.attach(Pool.SCRATCH, self.scratch)
        return old

    def run(
        self, feeds: Mapping[str, Array], **how: Any
    ) -> tuple[dict[str, Array], ExecutionOutcome]:
        """Return the outputs, in the application's buffers, and the outcome of the execution."""
        given = {name: UserBuffer(raw(feeds[name]), **how) for name in self.graph.inputs}
        results = {name: self.blank(name) for name in self.graph.outputs}
        taken = {name: UserBuffer(raw(value), **how) for name, value in results.items()}
        return results, self.execution.run(GivenBuffers(given, taken))

    def blank(self, name: str) -> Array:
        """Return memory for one output."""
        tensor = self.graph.model.tensors[name]
        kind = np.dtype(tensor.dtype.value)
        return aligned(tensor.nbytes).view(kind).reshape(tensor.shape)


def aligned(size: int) -> Array:
    """Return zeros on a 64-byte boundary."""
    block = np.zeros(size + 64, np.uint8)
    start = -block.__array_interface__["data"][0] % 64
    return block[start : start + size]


def raw(array: Array) -> Array:
    """Return the array's own bytes."""
    return array.reshape(-1).view(np.uint8)


class Bench:
    """The helpers that runtime tests use to build their cases."""

    Memory = Memory
    aligned = staticmethod(aligned)
    raw = staticmethod(raw)
    node = staticmethod(helper.make_node)

    def model(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Sequence[int]],
        outputs: Iterable[str],
        weights: Mapping[str, Any] | None = None,
        kinds: Mapping[str, int] | None = None,
    ) -> onnx.ModelProto:
        """Return a model; inputs are floats unless `kinds` states another type."""
        kinds = kinds or {}
        graph = helper.make_graph(
            list(nodes),
            "tiny",
            [
                helper.make_tensor_value_info(name, kinds.get(name, 1), shape)
                for name, shape in inputs.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(np.asarray(v), name) for name, v in (weights or {}).items()],
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("qti_aisw", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def ir(self, proto: onnx.ModelProto, constants: Sequence[str] = ()) -> Model:
        """Return a model with one op per non-constant node and inferred types."""
        known = shape_inference.infer_shapes(proto, data_prop=True).graph
        fixed = [*constants, *(weight.name for weight in proto.graph.initializer)]
        ops = []
        for at, node in enumerate(proto.graph.node):
            if node.output[0] not in fixed:
                reads = tuple(name for name in node.input if name and name not in fixed)
                kind = node.op_type
                effect = Effect.ELEMENTWISE if kind in ELEMENTWISE else Effect.COMPUTE
                effect = Effect.VIEW if kind in VIEWS else effect
                ops.append(Op(f"n{at}", kind, reads, tuple(node.output), effect, sources=(at,)))
        infos = [*known.input, *known.value_info, *known.output]
        infos += [
            helper.make_tensor_value_info(w.name, w.data_type, w.dims)
            for w in proto.graph.initializer
        ]
        return Model(
            "tiny",
            "onnx",
            {info.name: tensor(info) for info in infos},
            tuple(ops),
            tuple(item.name for item in proto.graph.input),
            tuple(item.name for item in proto.graph.output),
            tuple(fixed),
        )

    def compile(
        self,
        proto: onnx.ModelProto,
        model: Model | None = None,
        folder: Path | None = None,
        **options: Any,
    ) -> Parts:
        """Return the compiled plan and program of a model whose ops refer to `proto`."""
        plan = plan_model(model or self.ir(proto), PoolOptions(**options), time_limit=1.0)
        program = arrange(proto, plan.model, folder)
        graph = CompiledGraph(
            name="tiny",
            model=program.model,
            buffers=plan.buffers,
            scratch_bytes=plan.scratch_bytes,
            persistent_bytes=plan.persistent_bytes,
            align=plan.align,
            io=plan.options.io,
            states=plan.options.states,
            quants=program.quants,
            constants=program.constants,
            program=program.proto.SerializeToString(),
            in_order=True,
        )
        return Parts(graph, memoryview(program.constant_bytes()))

    def moved(self, parts: Parts, **offsets: int) -> Parts:
        """Return the same program with some buffers at other offsets, valid or not."""
        graph = parts.graph
        names = {b.name for b in graph.buffers}
        assert offsets.keys() <= names
        buffers = tuple(
            replace(b, offset=offsets[b.name]) if b.name in offsets else b  # type: ignore[arg-type]  # a plain number
            for b in graph.buffers
        )
        inside = [b.offset + b.size for b in buffers if b.pool is Pool.SCRATCH]
        size: Any = max(graph.scratch_bytes, *inside)
        return Parts(replace(graph, buffers=buffers, scratch_bytes=size), parts.constants)

    def context(self, parts: Parts) -> CompiledContext:
        """Return a context of one graph."""
        return CompiledContext((parts.graph,), "v6", "qnnmem 0.1.0", parts.constants)

    def prepare(self, proto: onnx.ModelProto, folder: Path, **options: Any) -> lpai.Prepared:
        """Return the model prepared through the public function, floats allowed."""
        path = folder / "tiny.onnx"
        path.write_bytes(proto.SerializeToString())
        options = {"allow_float": True, "time_limit_s": 1.0} | options
        return lpai.prepare({"tiny": path}, lpai.PrepareOptions(**options))

    def open(self, context: CompiledContext, folder: Path, **options: Any) -> lpai.Session:
        """Return a session for the context."""
        path = folder / "tiny.bin"
        write(context, path)
        return lpai.open(path, **{"trusted": True, **options})

    def plain(self, proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of a run without optimisation."""
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        names = [item.name for item in session.get_outputs()]
        used = {item.name: feeds[item.name] for item in session.get_inputs()}
        return dict(zip(names, session.run(names, used), strict=True))

    def noise(self, graph: CompiledGraph, seed: int = 0) -> dict[str, Array]:
        """Return random inputs for a graph; integer inputs are 0 or 1."""
        random = np.random.default_rng(seed)
        found: dict[str, Array] = {}
        for name in graph.inputs:
            kind = graph.model.tensors[name]
            if kind.dtype.is_float:
                found[name] = random.standard_normal(kind.shape).astype(kind.dtype.value)
            else:
                found[name] = random.integers(0, 2, kind.shape).astype(kind.dtype.value)
        return found

    def check(self, proto: onnx.ModelProto, parts: Parts, **how: Any) -> Any:
        """Run three times and compare with plain runs bit for bit; the first run is sanitised."""
        memory = Memory(parts, **how)
        state = {
            old: np.zeros(parts.graph.model.tensors[old].shape, np.float32)
            for old, _ in parts.graph.states
        }
        for seed in range(3):
            feeds = self.noise(parts.graph, seed)
            expected = self.plain(proto, feeds | state)
            found, outcome = memory.run(feeds)
            assert outcome.findings == ()
            assert outcome.complete
            for name, value in found.items():
                assert value.tobytes() == expected[name].tobytes(), name
            state = {old: expected[new] for old, new in parts.graph.states}
        return memory


def tensor(info: onnx.ValueInfoProto) -> Tensor:
    """Return the tensor that an ONNX value describes."""
    kind = info.type.tensor_type
    shape = tuple(dim.dim_value for dim in kind.shape.dim)
    return Tensor(info.name, DType(DTYPES[kind.elem_type]), shape)


@pytest.fixture(autouse=True)
def unused_tcm() -> None:
    """Give the test a TCM pool without the buffers that earlier tests left in this process."""
    process_tcm.cache_clear()


@pytest.fixture(scope="session")
def bench() -> Bench:
    """Return the factory of all cases."""
    return Bench()
