"""Execution in the application's memory: placement, copies, states, several graphs, layouts."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnmem import lpai
from qnnmem.contract.rules import rules
from qnnmem.errors import QnnError, UsageError
from qnnmem.lpai.binary import pack
from qnnmem.lpai.compiled import Quant
from qnnmem.lpai.preparation import _copying_old_state, _placed_once
from qnnmem.lpai.program.run import Parts
from qnnmem.lpai.runtime.execution import GivenBuffers, UserBuffer
from qnnmem.lpai.runtime.sanitizer import collisions
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.planner import Io, Pool
from qnnmem.qnn.enums import GraphOption, GraphProperty, MemType, TensorMemType
from qnnmem.units import round_up

EXAMPLES = Path(__file__).parents[2] / "examples"


def chain(bench: Any, **options: Any) -> tuple[Any, Parts]:
    """Return a compiled chain of three element-wise ops on 24 floats."""
    kinds = ("Sigmoid", "Neg", "Exp")
    nodes = [bench.node(kind, [f"t{i}"], [f"t{i + 1}"]) for i, kind in enumerate(kinds)]
    proto = bench.model(nodes, {"t0": [24]}, ["t3"])
    return proto, bench.compile(proto, **options)


def accumulator(bench: Any, in_place: bool, **options: Any) -> tuple[Any, Parts]:
    """Return a compiled running sum; in place, the new state overwrites the old one."""
    nodes = [bench.node("Add", ["h", "x"], ["a"]), bench.node("Tanh", ["a"], ["n"])]
    nodes.append(bench.node("Neg", ["n" if in_place else "h"], ["y"]))
    proto = bench.model(nodes, {"x": [24], "h": [24]}, ["n", "y"])
    return proto, bench.compile(proto, states=(("h", "n"),), **options)


# --- Scratch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sanitize", [True, False])
def test_replaced_scratch_is_left_alone(bench: Any, sanitize: bool) -> None:
    """After scratch is replaced, the results are equal and the old scratch is not written."""
    _, parts = chain(bench)
    memory = bench.Memory(parts, sanitize=sanitize)
    feeds = bench.noise(parts.graph)
    memory.run(feeds)
    expected = memory.run(feeds)[0]["t3"]
    old = memory.replace_scratch()
    old[:] = 0x5A
    for _ in range(3):
        found, outcome = memory.run(feeds)
        assert outcome.findings == ()
        assert found["t3"].tobytes() == expected.tobytes()
    assert (old == 0x5A).all()


# --- Copies --------------------------------------------------------------------------------------


def test_user_buffers_cost_their_bytes(bench: Any) -> None:
    """With IO in scratch, each raw buffer is copied once, 192 bytes in total."""
    _, parts = chain(bench)
    memory = bench.Memory(parts)
    copied = [memory.run(bench.noise(parts.graph))[1].copied_bytes for _ in range(3)]
    assert copied == [192, 192, 192]


def test_shared_buffers_cost_nothing(bench: Any) -> None:
    """Registered buffers are used in place, without a copy."""
    proto, parts = chain(bench)
    memory = bench.Memory(parts)
    for seed in range(3):  # other buffers in each run
        feeds = bench.noise(parts.graph, seed)
        found, outcome = memory.run(feeds, shared=True)
        assert (outcome.copied_bytes, outcome.findings) == (0, ())
        assert found["t3"].tobytes() == bench.plain(proto, feeds)["t3"].tobytes()


def test_buffers_may_change_kind_from_run_to_run(bench: Any) -> None:
    """Shared buffers, copied buffers and scratch views give the same bits in turn."""
    proto, parts = chain(bench)
    memory = bench.Memory(parts)
    feeds = bench.noise(parts.graph)
    expected = bench.plain(proto, feeds)["t3"].tobytes()
    for shared in (True, False, True, True, False):
        assert memory.run(feeds, shared=shared)[0]["t3"].tobytes() == expected
        memory.execution.view("t0")[:] = bench.raw(feeds["t0"])
        assert memory.execution.run(GivenBuffers({}, {})).copied_bytes == 0
        assert memory.execution.view("t3").tobytes() == expected


def test_io_outside_is_used_in_place(bench: Any) -> None:
    """With IO outside, the application's buffers are used in place, without a copy."""
    proto, parts = chain(bench, io=Io.OUTSIDE)
    assert {b.pool for b in parts.graph.buffers} == {Pool.SCRATCH, Pool.IO}
    memory = bench.check(proto, parts)
    assert memory.run(bench.noise(parts.graph))[1].copied_bytes == 0


def test_inputs_are_never_written(bench: Any) -> None:
    """In-place ops and views never write to the application's input, read-only or not."""
    nodes = [
        bench.node("Reshape", ["x", "s"], ["v"]),
        bench.node("Neg", ["v"], ["a"]),
        bench.node("Exp", ["a"], ["y"]),
    ]
    proto = bench.model(nodes, {"x": [4, 6]}, ["y"], {"s": np.array([24])})
    for io in Io:
        parts = bench.compile(proto, io=io, inplace=True)
        memory = bench.Memory(parts)
        feeds = bench.noise(parts.graph)
        kept = feeds["x"].copy()
        feeds["x"].flags.writeable = False
        for shared in (True, True, False):
            found, _ = memory.run(feeds, shared=shared)
            assert found["y"].tobytes() == bench.plain(proto, feeds)["y"].tobytes()
            assert feeds["x"].tobytes() == kept.tobytes()


def test_an_input_that_an_op_writes_over_is_copied(bench: Any) -> None:
    """If the plan lets an op overwrite an input, the input is copied first."""
    proto, parts = chain(bench, inplace=True)
    first = parts.graph.buffers[0]
    assert first.name == "t0"
    together = replace(first, aliases=("t1", "t2", "t3"))
    graph = replace(parts.graph, buffers=(together,))
    memory = bench.Memory(Parts(graph, parts.constants))
    feeds = bench.noise(graph)
    kept = feeds["t0"].copy()
    found, outcome = memory.run(feeds, shared=True)
    assert outcome.findings == ()
    assert feeds["t0"].tobytes() == kept.tobytes()
    assert found["t3"].tobytes() == bench.plain(proto, feeds)["t3"].tobytes()


@pytest.mark.parametrize("io", Io)
def test_one_buffer_may_be_input_and_output(bench: Any, io: Io) -> None:
    """One buffer for input and output holds the right result afterwards."""
    nodes = [bench.node("Neg", ["x"], ["a"]), bench.node("Add", ["a", "x"], ["b"])]
    nodes.append(bench.node("Add", ["b", "x"], ["y"]))
    proto = bench.model(nodes, {"x": [24]}, ["y"])
    parts = bench.compile(proto, io=io)
    memory = bench.Memory(parts)
    feeds = bench.noise(parts.graph)
    expected = bench.plain(proto, feeds)["y"]
    both = UserBuffer(bench.raw(feeds["x"]), shared=True)
    memory.execution.run(GivenBuffers({"x": both}, {"y": both}))
    assert feeds["x"].tobytes() == expected.tobytes()


def test_views_between_inputs_and_outputs_are_copied_where_io_is_outside(
    bench: Any, tmp_path: Path
) -> None:
    """With IO outside, an output that is a view of an input has its own buffer."""
    nodes = [bench.node("Reshape", ["x", "s"], ["y"]), bench.node("Neg", ["y"], ["z"])]
    proto = bench.model(nodes, {"x": [2, 3]}, ["y", "z"], {"s": np.array([6])})
    prepared = bench.prepare(proto, tmp_path, io=Io.OUTSIDE)
    with bench.open(prepared.context, tmp_path) as session:
        for _ in range(2):
            feeds = bench.noise(session.compiled)
            expected = bench.plain(proto, feeds)
            found = session.run(feeds)
            assert all(found[n].tobytes() == expected[n].tobytes() for n in ("y", "z"))


# --- The native interface ------------------------------------------------------------------------


def native(context: Any, **options: Any) -> tuple[lpai.Context, lpai.Graph]:
    """Return a context and a finalized graph, made through the documented calls."""
    binary = b"".join(pack(context))
    backend = lpai.Backend.create()
    loaded = lpai.Context.create_from_binary(backend, binary, trusted=True, **options)
    graph = loaded.graph_retrieve(context.graphs[0].name)
    heap = lpai.Heap(MemType.DDR)
    for asked, config in (
        (GraphProperty.GET_PROP_SCRATCH_MEM_SIZE, GraphOption.SET_CFG_SCRATCH_MEM),
        (GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE, GraphOption.SET_CFG_PERSISTENT_MEM),
    ):
        question = lpai.custom_property(asked)
        graph.get_property([question, None])
        if question.value.value:
            buffer = heap.allocate(round_up(question.value.value, 64))
            memory = lpai.Mem(MemType.DDR, buffer.size, buffer)
            graph.set_config([lpai.custom(config, memory), None])
    graph.finalize()
    return loaded, graph


def shared_file(context: lpai.Context, tensors: Sequence[Any], arrays: list[Any]) -> list[int]:
    """Write each tensor to its own shared file and register it."""
    files = []
    for tensor, array in zip(tensors, arrays, strict=True):
        fd = os.memfd_create("io")
        os.truncate(fd, 4096)
        os.pwrite(fd, array.tobytes(), 64)
        info = lpai.MemInfoCustom(fd, 64)
        descriptor = lpai.MemDescriptor(tensor.dimensions, tensor.data_type, custom_info=info)
        tensor.mem_handle = context.mem_register([descriptor])[0]
        tensor.mem_type = TensorMemType.MEMHANDLE
        files.append(fd)
    return files


def test_counters_of_the_native_interface(bench: Any) -> None:
    """Only raw buffers count as copied; memory handles and scratch views do not."""
    proto, parts = chain(bench)
    context, graph = native(bench.context(parts))
    feeds = bench.noise(parts.graph)
    expected = bench.plain(proto, feeds)["t3"].tobytes()
    inputs, outputs = io_tensors(graph.compiled)
    inputs[0].client_buf, outputs[0].client_buf = bench.aligned(96), bench.aligned(96)
    inputs[0].client_buf[:] = bench.raw(feeds["t0"])
    assert graph.execute(inputs, outputs) == 0
    assert outputs[0].client_buf.tobytes() == expected
    assert graph.counters.copied_bytes == 192
    graph.view("t0").array[:] = feeds["t0"]
    assert graph.execute() == 0
    assert graph.view("t3").array.tobytes() == expected
    assert graph.counters.copied_bytes == 192
    inputs, outputs = io_tensors(graph.compiled)
    (source,) = shared_file(context, inputs, [feeds["t0"]])
    (target,) = shared_file(context, outputs, [np.zeros(24, np.float32)])
    assert graph.execute(inputs, outputs) == 0
    assert os.pread(target, 96, 64) == expected
    assert graph.counters.copied_bytes == 192
    os.close(source)
    os.close(target)
    context.free()


@pytest.mark.parametrize(
    ("name", "scratch"), [("keyword_spotting", 16_000), ("anomaly_detection", 768)]
)
def test_layouts_report_the_known_sizes(name: str, scratch: int) -> None:
    """A buffer list gives a layout with the documented pool sizes, which cannot run."""
    path = EXAMPLES / f"{name}.csv"
    prepared = lpai.prepare({name: path}, lpai.PrepareOptions(allow_float=True))
    context, graph = native(prepared.context)
    question = lpai.custom_property(GraphProperty.GET_PROP_SCRATCH_MEM_SIZE)
    graph.get_property([question, None])
    assert question.value.value == scratch == prepared.plans[0].scratch_bytes
    with pytest.raises(QnnError) as caught:
        graph.execute()
    assert caught.value.code == 1000
    found = caught.value.finding
    assert "layout without a program" in found.sentence
    # The named rule describes this mistake.
    rule = rules()[found.rule]
    assert "executes only graphs whose binary contains a program" in rule.title
    assert "layout without a program" in rule.consequence
    context.free()


def autoencoder(bench: Any) -> Any:
    """Return an autoencoder of int8 matrix products: 640-128x4-8-128x4-640."""
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640]
    numbers = np.random.default_rng(0)
    weights: dict[str, Any] = {"s": np.float32(0.05), "z": np.int8(0)}
    nodes = []
    for at, (rows, columns) in enumerate(pairwise(widths)):
        weights[f"w{at}"] = numbers.integers(-9, 9, (rows, columns)).astype(np.int8)
        inputs = [f"t{at}", "s", "z", f"w{at}", "s", "z", "s", "z"]
        nodes.append(bench.node("QLinearMatMul", inputs, [f"t{at + 1}"]))
    return bench.model(nodes, {"t0": [1, 640]}, [f"t{len(nodes)}"], weights, {"t0": 3})


def test_the_int8_autoencoder_needs_768_bytes(bench: Any, tmp_path: Path) -> None:
    """The int8 anomaly detector needs 768 bytes of scratch and computes the plain result."""
    proto = autoencoder(bench)
    prepared = bench.prepare(proto, tmp_path, allow_float=False)
    assert prepared.context.graphs[0].scratch_bytes == 768
    with bench.open(prepared.context, tmp_path) as session:
        for seed in range(3):
            x = np.random.default_rng(seed).integers(-99, 99, (1, 640)).astype(np.int8)
            expected = bench.plain(proto, {"t0": x})["t10"]
            assert session.run({"t0": x})["t10"].tobytes() == expected.tobytes()
    assert session.findings == ()


# --- State ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("io", Io)
def test_state_survives(bench: Any, in_place: bool, io: Io) -> None:
    """A state, in place or copied, gives the same bits as feeding it back by hand."""
    proto, parts = accumulator(bench, in_place, io=io)
    together = parts.graph.buffer_of["h"] is parts.graph.buffer_of["n"]
    assert together == in_place
    memory = bench.check(proto, parts)
    copied = memory.run(bench.noise(parts.graph))[1].copied_bytes
    assert copied == (0 if in_place else 96) + (192 if io is Io.INSIDE else 0)


def test_snapshot_restore_and_reset(bench: Any) -> None:
    """A restored state continues as before; a reset state starts from zero."""
    _, parts = accumulator(bench, in_place=True)
    memory = bench.Memory(parts)
    feeds = bench.noise(parts.graph)

    def outputs(count: int) -> list[bytes]:
        return [memory.run(feeds)[0]["y"].tobytes() for _ in range(count)]

    first = outputs(3)
    saved = memory.execution.snapshot()
    later = outputs(3)
    memory.execution.restore(saved)
    assert outputs(3) == later
    memory.execution.reset()
    assert outputs(3) == first
    assert first != later


@pytest.mark.parametrize(
    "damage", [None, (b"", {}), (b"x" * 128, {"w": 1}), (b"", {}, 0), ("text", {})]
)
def test_what_is_no_snapshot_is_refused(bench: Any, tmp_path: Path, damage: Any) -> None:
    """Restoring anything but a snapshot of the same graph raises UsageError."""
    _, parts = accumulator(bench, in_place=True)
    with bench.open(bench.context(parts), tmp_path) as session:
        with pytest.raises(UsageError, match="not a snapshot"):
            session.restore(damage)
        session.restore(session.snapshot())


def test_quantized_state_starts_at_its_zero_point(bench: Any) -> None:
    """A quantized state starts at its zero point, which stands for 0."""
    nodes = [bench.node("Max", ["h", "x"], ["n"])]
    proto = bench.model(nodes, {"x": [5], "h": [5]}, ["n"], kinds={"x": 3, "h": 3})
    parts = bench.compile(proto, states=(("h", "n"),))
    graph = replace(parts.graph, quants={"h": Quant(0.1, -7)})
    memory = bench.Memory(Parts(graph, parts.constants))
    assert memory.execution.view("h").view(np.int8).tolist() == [-7] * 5


def shift_register(bench: Any) -> Any:
    """Return a model with two states, of which the second is the first one execution later."""
    nodes = [
        bench.node("Relu", ["x"], ["n1"]),
        bench.node("Reshape", ["h1", "s"], ["n2"]),
        bench.node("Reshape", ["h2", "f"], ["v"]),
        bench.node("Add", ["h1", "v"], ["y"]),
        bench.node("Identity", ["h1"], ["z"]),
    ]
    shapes = {"s": np.array([2, 2]), "f": np.array([4])}
    return bench.model(nodes, {"x": [4], "h1": [4], "h2": [2, 2]}, ["n1", "n2", "y", "z"], shapes)


@pytest.mark.parametrize("io", Io)
def test_old_state_may_become_a_state_or_an_output(bench: Any, tmp_path: Path, io: Io) -> None:
    """An old state that is also an output or another new state keeps its value."""
    states = (("h1", "n1"), ("h2", "n2"))
    prepared = bench.prepare(shift_register(bench), tmp_path, states=states, io=io)
    with bench.open(prepared.context, tmp_path) as session:
        frames = [np.full(4, value, np.float32) for value in (1, 2, 3, 4, 5)]
        results = [session.run({"x": frame}) for frame in frames]
    assert [int(found["y"][0]) for found in results] == [0, 1, 3, 5, 7]
    assert [int(found["z"][0]) for found in results] == [0, 1, 2, 3, 4]
    assert session.findings == ()


def test_states_may_change_places(bench: Any, tmp_path: Path) -> None:
    """Two states that swap in every execution keep their right values."""
    nodes = [bench.node("Identity", ["h2"], ["n1"]), bench.node("Identity", ["h1"], ["m"])]
    nodes += [bench.node("Add", ["m", "x"], ["n2"]), bench.node("Sub", ["h1", "h2"], ["y"])]
    proto = bench.model(nodes, {"x": [4], "h1": [4], "h2": [4]}, ["n1", "n2", "y"])
    prepared = bench.prepare(proto, tmp_path, states=(("h1", "n1"), ("h2", "n2")))
    state = {"h1": np.zeros(4, np.float32), "h2": np.zeros(4, np.float32)}
    with bench.open(prepared.context, tmp_path) as session:
        for value in (1, 2, 3, 4, 5):
            x = np.full(4, value, np.float32)
            expected = bench.plain(proto, {"x": x, **state})
            assert session.run({"x": x})["y"].tobytes() == expected["y"].tobytes()
            state = {"h1": expected["n1"], "h2": expected["n2"]}
    assert session.findings == ()


def test_a_failed_execution_is_one_code_and_no_stranger(bench: Any, tmp_path: Path) -> None:
    """An index out of range fails with code 1100 and gives no finding about the state."""
    nodes = [
        bench.node("Add", ["h", "x"], ["a"]),
        bench.node("Neg", ["a"], ["n"]),
        bench.node("Gather", ["table", "i"], ["y"]),
    ]
    weights = {"table": np.arange(5, dtype=np.float32)}
    shapes = {"x": [4], "h": [4], "i": [1]}
    proto = bench.model(nodes, shapes, ["n", "y"], weights, {"i": 7})
    parts = bench.compile(proto, states=(("h", "n"),))
    assert parts.graph.buffer_of["h"] is parts.graph.buffer_of["n"]
    x = np.ones(4, np.float32)
    with bench.open(bench.context(parts), tmp_path) as session:
        session.run({"x": x, "i": np.array([1])})
        with pytest.raises(QnnError) as caught:
            session.run({"x": x, "i": np.array([9])})
        assert caught.value.code == 1100
        assert session.run({"x": x, "i": np.array([2])})["y"] == 2
        assert {found.rule for found in session.findings} == {"B1"}


# --- Order, several graphs -----------------------------------------------------------------------


def test_a_program_that_is_not_in_order_runs_op_by_op(bench: Any, tmp_path: Path) -> None:
    """An op that onnxruntime expands, such as HardSwish, gives the same bits op by op."""
    nodes = [
        bench.node("HardSwish", ["x"], ["a"]),
        bench.node("Relu", ["a"], ["b"]),
        bench.node("Add", ["a", "b"], ["y"]),
    ]
    proto = bench.model(nodes, {"x": [1, 24]}, ["y"])
    prepared = bench.prepare(proto, tmp_path)
    assert not prepared.context.graphs[0].in_order
    with bench.open(prepared.context, tmp_path) as session:
        for seed in range(3):
            feeds = bench.noise(session.compiled, seed)
            expected = bench.plain(proto, feeds)["y"]
            assert session.run(feeds)["y"].tobytes() == expected.tobytes()
    assert session.findings == ()


def test_several_graphs_in_one_binary(bench: Any, tmp_path: Path) -> None:
    """Each of several graphs in a binary uses its own constants."""
    files, protos = {}, {}
    for at, size in enumerate((5, 300, 7)):
        weights = {"w": np.arange(size, dtype=np.float32) + at}
        nodes = [bench.node("Mul", ["x", "w"], ["y"])]
        protos[f"g{at}"] = bench.model(nodes, {"x": [size]}, ["y"], weights)
        files[f"g{at}"] = tmp_path / f"g{at}.onnx"
        files[f"g{at}"].write_bytes(protos[f"g{at}"].SerializeToString())
    prepared = lpai.prepare(files, lpai.PrepareOptions(allow_float=True))
    with pytest.raises(UsageError, match="several graphs; choose one of 'g0', 'g1', 'g2'"):
        bench.open(prepared.context, tmp_path)
    for name, proto in protos.items():
        with bench.open(prepared.context, tmp_path, graph=name) as session:
            for _ in range(2):
                feeds = bench.noise(session.compiled)
                expected = bench.plain(proto, feeds)["y"]
                assert session.run(feeds)["y"].tobytes() == expected.tobytes()


def test_an_unused_input_does_no_harm(bench: Any, tmp_path: Path) -> None:
    """An unused input may be overwritten without a finding."""
    proto = bench.model([bench.node("Neg", ["x"], ["y"])], {"x": [4], "z": [4]}, ["y"])
    parts = bench.compile(proto)
    parts = bench.moved(parts, y=int(parts.graph.buffer_of["z"].offset))
    with bench.open(bench.context(parts), tmp_path) as session:
        for _ in range(2):
            feeds = bench.noise(session.compiled)
            assert session.run(feeds)["y"].tobytes() == (-feeds["x"]).tobytes()
    assert session.findings == ()


def test_strays_of_single_ops_are_brought_home(bench: Any) -> None:
    """A result that onnxruntime puts elsewhere is copied to its planned offset."""
    _, parts = chain(bench)
    memory = bench.Memory(parts, in_order=False)
    feeds = bench.noise(parts.graph)
    expected = memory.run(feeds)[0]["t3"].copy()
    memory.execution._strays[(2, 3)] = ["t3"]
    assert memory.run(feeds)[0]["t3"].tobytes() == expected.tobytes()


# --- Random models -------------------------------------------------------------------------------


class Draft:
    """A random model of views, element-wise ops, splits and states, with an unused input."""

    FORMS = ((24,), (4, 6), (6, 4))

    def __init__(self, bench: Any, rng: random.Random) -> None:
        self.bench, self.rng = bench, rng
        self.nodes: list[Any] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": (4, 6), "h": (4, 6), "g": (24,)}
        for at in range(rng.randint(2, 9)):
            self.add(f"t{at}", rng.choice(sorted(self.shapes)))
        made = sorted(name for name in self.shapes if name.startswith("t"))
        self.outputs = rng.sample(made, rng.randint(1, min(4, len(made))))
        self.states = tuple(self.pairs())

    def add(self, name: str, source: str) -> None:
        """Append an op that reads a tensor, or two of its shape."""
        shape = self.shapes[source]
        kind = self.rng.choice(["Neg", "Tanh", "Softmax", "Identity", "Reshape", "Add", "Split"])
        inputs = [source]
        if kind == "Reshape":
            shape = self.rng.choice(self.FORMS)
            inputs.append("x".join(map(str, shape)))
        elif kind == "Add":
            inputs.append(self.rng.choice([n for n, s in self.shapes.items() if s == shape]))
        if kind == "Split":
            halves = [f"{name}a", f"{name}b"]
            self.nodes.append(self.bench.node("Split", inputs, halves, axis=0))
            kind, inputs = "Concat", halves[::-1]
        axis = {"axis": 0} if kind == "Concat" else {}
        self.nodes.append(self.bench.node(kind, inputs, [name], **axis))
        self.shapes[name] = shape

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of an old state and an output of its shape."""
        free = list(self.outputs)
        for old in ("h", "g"):
            fit = [name for name in free if self.shapes[name] == self.shapes[old]]
            if fit and self.rng.random() < 0.8:
                free.remove(fit[0])
                yield old, fit[0]

    def proto(self) -> Any:
        """Return the model."""
        shapes = {name: self.shapes[name] for name in ("x", "h", "g")} | {"idle": (3,)}
        forms = {"x".join(map(str, form)): np.array(form) for form in self.FORMS}
        return self.bench.model(self.nodes, shapes, self.outputs, forms)


def test_random_models_run_bit_for_bit(bench: Any) -> None:
    """Random models with random options compute the same bits as plain runs."""
    for seed in range(60):
        rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        draft = Draft(bench, rng)
        proto = draft.proto()
        options = {"inplace": rng.random() < 0.6, "reorder": rng.random() < 0.3}
        model = _copying_old_state(bench.ir(proto), draft.states)
        io = rng.choice(list(Io))
        parts = bench.compile(proto, model, io=io, states=draft.states, **options)
        graph = replace(parts.graph, buffers=_placed_once(parts.graph.buffers))
        assert list(collisions(graph)) == []
        compare(bench, proto, Parts(graph, parts.constants), rng)


def compare(bench: Any, proto: Any, parts: Parts, rng: random.Random) -> None:
    """Run four times, with shared buffers and new scratch at random, and compare each run."""
    memory = bench.Memory(parts, in_order=rng.random() < 0.7)
    tensors = parts.graph.model.tensors
    state = {old: np.zeros(tensors[old].shape, np.float32) for old, _ in parts.graph.states}
    for turn in range(4):
        feeds = bench.noise(parts.graph, turn)
        kept = {name: value.tobytes() for name, value in feeds.items()}
        expected = bench.plain(proto, feeds | state)
        if rng.random() < 0.2:
            memory.replace_scratch()[:] = 0
        found, outcome = memory.run(feeds, shared=rng.random() < 0.5)
        assert outcome.findings == ()
        for name, value in found.items():
            assert value.tobytes() == expected[name].tobytes(), name
        assert kept == {name: value.tobytes() for name, value in feeds.items()}
        state = {old: expected[new] for old, new in parts.graph.states}
