"""Real models, fetched by package name, prepared and run in their planned memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fetched import ENTRIES, TOOL
from numpy.typing import NDArray
from seeds import EVERY, share

from qnnmem import lpai
from qnnmem.errors import QnnError
from qnnmem.ir import Model
from qnnmem.loader import kind_of, load
from qnnmem.loader.onnx import read_with_graph
from qnnmem.lpai.binary import pack, write
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.planner import Io, MemoryPlan, PlacedBuffer, Pool, PoolOptions, plan_model, verify
from qnnmem.qnn.enums import GraphOption, MemType
from qnnmem.units import Align, Bytes, Offset, round_up

pytestmark = pytest.mark.models

Array = NDArray[Any]
PLAN_SECONDS = 2.0


def chosen(suffix: str) -> list[str]:
    """Return the models of the test set; with QNNMEM_EVERY_CASE also the other static models."""
    return [
        entry.id
        for entry in ENTRIES.values()
        if entry.suffix == suffix
        and (entry.test or (EVERY and not entry.dynamic and not entry.survey))
    ]


def path_of(name: str) -> Path:
    """Return the path of a fetched model; skip the test if the model is missing."""
    entry = ENTRIES[name]
    if not TOOL.is_present(entry):
        pytest.skip(f"model {name} is not here; fetch it with: python tools/models.py {name}")
    return Path(entry.target(TOOL.CACHE))


@functools.cache
def read(name: str) -> Model:
    """Load a model with its listed dimensions."""
    entry = ENTRIES[name]
    if entry.suffix == ".onnx":
        return both_of(name)[0]
    return load(path_of(name), dims=entry.dims, shapes=entry.shapes)


@functools.cache
def both_of(name: str) -> tuple[Model, Any]:
    """Read a model once for both planning and running."""
    entry = ENTRIES[name]
    shapes = {key: tuple(shape) for key, shape in entry.shapes.items()}
    assert kind_of(path_of(name)) == "onnx"
    return read_with_graph(path_of(name), dims=entry.dims, shapes=shapes)


def feeds_of(model: Model, values: Mapping[str, int]) -> dict[str, Array]:
    """Return random inputs: small integers, and listed values where the entry has them."""
    random = np.random.default_rng(5)
    feeds: dict[str, Array] = {}
    for name in model.inputs:
        tensor = model.tensors[name]
        kind = np.dtype(tensor.dtype.value)
        if name in values:
            feeds[name] = np.full(tensor.shape, values[name], kind)
        elif tensor.dtype.is_float:
            feeds[name] = random.standard_normal(tensor.shape).astype(kind)
        else:
            feeds[name] = random.integers(0, 2, tensor.shape).astype(kind)
    return feeds


@functools.cache
def plan_of(name: str, **options: Any) -> MemoryPlan:
    """Plan a model and verify the plan."""
    plan = plan_model(read(name), PoolOptions(**options), time_limit=PLAN_SECONDS)
    assert verify(plan.scratch) is None
    assert plan.scratch.lower_bound <= plan.scratch_bytes
    return plan


def graph_of(name: str) -> Any:
    """Return the graph that the ops of a model refer to."""
    return both_of(name)[1]


def plain_session(proto: Any) -> Any:
    """Return an ONNX Runtime session without optimisation."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def plain_run(session: Any, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Return the outputs of an ordinary run, as the reference."""
    known = {item.name for item in session.get_inputs()}
    used = {name: value for name, value in feeds.items() if name in known}
    return dict(zip(names, session.run(list(names), used), strict=True))


def same_bits(first: Array, second: Array) -> bool:
    """True if two arrays have the same shape, type and bytes; NaN equals itself."""
    same = first.shape == second.shape and first.dtype == second.dtype
    return same and first.tobytes() == second.tobytes()


def prepare(name: str, **options: Any) -> lpai.Prepared:
    """Prepare a model with its listed dimensions and floating point allowed."""
    entry = ENTRIES[name]
    shapes = {key: tuple(shape) for key, shape in entry.shapes.items()}
    chosen_options = lpai.PrepareOptions(
        dims=entry.dims, shapes=shapes, allow_float=True, **options
    )
    return lpai.prepare({name: path_of(name)}, chosen_options)


def check_run(name: str, folder: Path, **options: Any) -> lpai.Prepared:
    """Run a model twice under the contract and compare outputs and states bit for bit.

    The sanitiser checks the first run op by op; the second run is not interrupted.
    """
    prepared = prepare(name, **options)
    graph = prepared.context.graphs[0]
    write(prepared.context, folder / "model.bin")
    plain, feeds = plain_session(graph_of(name)), feeds_of(graph.model, ENTRIES[name].values)
    # The runtime starts with zero states.
    feeds |= {old: np.zeros_like(feeds[old]) for old, _ in graph.states}
    with lpai.open(folder / "model.bin", trusted=True) as session:
        for _ in range(2):
            expected = plain_run(plain, feeds, graph.model.outputs)
            found = session.run({item: feeds[item] for item in graph.inputs})
            assert found.keys() == set(graph.outputs)
            assert [item for item in found if not same_bits(found[item], expected[item])] == []
            feeds |= {old: expected[new] for old, new in graph.states}
    assert session.findings == ()
    return prepared


# These models run below with another plan, or share their architecture with another model.
ALSO_RUN = {
    *("smartturn", "ocr4_rec", "nudenet", "centerface", "silero_v3", "basicpitch"),
    *("light_densenet121", "light_shufflenet", "magika", "aecmos", "dnsmos", "light_resnet50"),
}
LONG = {"layout", "ocr4_det"}  # seconds each, planned below


@pytest.mark.parametrize(
    "name", [name for name in chosen(".onnx") if EVERY or name not in {*ALSO_RUN, *LONG}]
)
def test_model_runs_in_its_plan_bit_for_bit(name: str, tmp_path: Path) -> None:
    """A model that runs at its planned addresses gives the bits of an ordinary run."""
    prepared = check_run(name, tmp_path)
    graph = prepared.context.graphs[0]
    assert graph.scratch_bytes == prepared.plans[0].scratch_bytes == plan_of(name).scratch_bytes


@pytest.mark.parametrize("name", [name for name in chosen(".onnx") if ENTRIES[name].states])
def test_stateful_model_runs_bit_for_bit(name: str, tmp_path: Path) -> None:
    """State in the persistent pool gives the same bits, also if the new state replaces the old."""
    states = ENTRIES[name].states
    model = read(name)
    prepared = check_run(name, tmp_path, states=tuple(states.items()))
    least = sum(model.tensors[item].nbytes for item in states)
    assert prepared.context.graphs[0].persistent_bytes >= least


@pytest.mark.parametrize("name", ["silero_fw6", "silero_seq"])
def test_frame_by_frame_equals_the_whole_sequence(name: str, tmp_path: Path) -> None:
    """A voice detector run frame by frame gives the bits of one run over all frames."""
    states = (("h", "hn"), ("c", "cn"))
    shapes = {"input": (1, 576)}
    options = lpai.PrepareOptions(shapes=shapes, states=states, allow_float=True)
    prepared = lpai.prepare({name: path_of(name)}, options)
    write(prepared.context, tmp_path / "frame.bin")
    frames = np.random.default_rng(2).standard_normal((64, 576)).astype(np.float32)
    zero = np.zeros((1, 1, 128), np.float32)
    feeds = {"input": frames, "h": zero, "c": zero}
    whole = plain_run(plain_session(graph_of(name)), feeds, ["speech_probs"])
    with lpai.open(tmp_path / "frame.bin", trusted=True) as session:
        results = [session.run({"input": frame[None]})["speech_probs"] for frame in frames]
    assert same_bits(np.concatenate(results), whole["speech_probs"])
    assert session.findings == ()


@pytest.mark.parametrize(
    "name", share(["oww_mel", "nudenet", "magika", "light_shufflenet", "aecmos"], 2)
)
def test_io_pool_runs_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Inputs and outputs in application buffers give the same bits."""
    prepared = check_run(name, tmp_path, io=Io.OUTSIDE)
    model = read(name)
    least = sum(model.tensors[item].nbytes for item in model.inputs)
    assert prepared.plans[0].io_bytes >= least


@pytest.mark.parametrize("name", share(["centerface", "ocr4_rec", "nudenet", "smartturn"], 2))
def test_model_runs_in_place_bit_for_bit(name: str, tmp_path: Path) -> None:
    """In-place element-wise ops save scratch and change no bit."""
    tight = check_run(name, tmp_path, inplace=True)
    assert tight.plans[0].scratch_bytes < plan_of(name).scratch_bytes


@pytest.mark.parametrize("name", share(["silero_v3", "light_densenet121", "basicpitch"], 2))
def test_reordered_model_runs_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Ops in the order that saves memory give the bits of the original order."""
    better = check_run(name, tmp_path, reorder=True)
    assert better.plans[0].scratch_bytes <= plan_of(name).scratch_bytes


@pytest.mark.parametrize("name", ["silero_fw6", "lk_embed", "ocr_cls", "nudenet"])
def test_prepared_graph_computes_what_the_file_computes(name: str) -> None:
    """The graph that the reader prepares gives the same bits as the original file."""
    import onnx

    model = read(name)
    feeds = feeds_of(model, ENTRIES[name].values)
    ours = plain_run(plain_session(graph_of(name)), feeds, model.outputs)
    theirs = plain_run(plain_session(onnx.load(path_of(name))), feeds, model.outputs)
    assert all(same_bits(ours[name], theirs[name]) for name in model.outputs)


@pytest.mark.parametrize("name", share(["silero_ov16k", "silero_v3", "lk_embed", "ocr_cls"], 2))
def test_a_moved_buffer_is_always_caught(name: str) -> None:
    """Moving one buffer by one alignment step onto a live tensor is found in 25 of 25 trials."""
    context = prepare(name).context
    graph = context.graphs[0]
    random = Random(11)  # noqa: S311 - trials, no secrets
    for buffer, moved in random.sample(_broken(graph), 25):
        buffers = tuple(moved if item is buffer else item for item in graph.buffers)
        larger = Bytes(max(graph.scratch_bytes, moved.offset + moved.size))
        broken = replace(graph, buffers=buffers, scratch_bytes=larger)
        with pytest.raises(QnnError) as caught:
            _finalize(replace(context, graphs=(broken,)))
        assert (caught.value.code, caught.value.finding.rule) == (6022, "X1")


def _broken(graph: CompiledGraph) -> list[tuple[PlacedBuffer, PlacedBuffer]]:
    """Return each way to move one scratch buffer by one step onto another live buffer."""
    tensors = graph.model.tensors
    scratch = [b for b in graph.buffers if b.pool is Pool.SCRATCH and b.name in tensors]
    found = []
    for buffer in scratch:
        for step in (-graph.align, graph.align):
            start = buffer.offset + step
            end = start + tensors[buffer.name].nbytes
            hit = any(
                other is not buffer
                and other.live.overlaps(buffer.live)
                and start < other.offset + tensors[other.name].nbytes
                and other.offset < end
                for other in scratch
            )
            if start >= 0 and hit:
                found.append((buffer, replace(buffer, offset=Offset(start))))
    return found


def _finalize(context: CompiledContext) -> None:
    """Take a context through the documented calls up to finalize."""
    binary = b"".join(pack(context))
    backend = lpai.Backend.create()
    loaded = lpai.Context.create_from_binary(backend, binary, trusted=True)
    graph = loaded.graph_retrieve(context.graphs[0].name)
    heap = lpai.Heap(MemType.DDR)
    scratch = heap.allocate(round_up(context.graphs[0].scratch_bytes, 64))
    memory = lpai.Mem(MemType.DDR, scratch.size, scratch)
    graph.set_config([lpai.custom(GraphOption.SET_CFG_SCRATCH_MEM, memory), None])
    graph.finalize()


@pytest.mark.parametrize("name", chosen(".tflite"))
def test_tflite_model_loads_and_plans(name: str) -> None:
    """Every tensor of a real TFLite model gets a place inside its plan."""
    model = read(name)
    plan = plan_of(name)
    assert model.ops
    assert model.constants
    places = {name: b for b in plan.buffers for name in (b.name, *b.aliases)}
    made = {result for op in model.ops for result in op.outputs}
    assert made <= places.keys()
    assert set(model.states) == {b.name for b in plan.buffers if b.pool is Pool.PERSISTENT}
    for name, buffer in places.items():
        if name in model.tensors:
            assert model.tensors[name].nbytes <= buffer.size
        assert buffer.offset + buffer.size <= plan.pool_bytes(buffer.pool)


@pytest.mark.parametrize(
    ("name", "size"), [("hey_jarvis", 2840), ("alexa", 3024), ("hey_mycroft", 3664)]
)
def test_streaming_models_keep_six_variables(name: str, size: int) -> None:
    """The wake word models keep their state in six resource variables of known size."""
    model = read(name)
    assert len(model.states) == 6
    assert sum(model.tensors[state].nbytes for state in model.states) == size


# Scratch that TFLite Micro's planner allocates for these files, by its recording allocator
# (16-byte alignment; kernels' own scratch included).
TFLM_SCRATCH = {
    "basicpitch_tflite": 5_388_416,
    "iris_landmark": 786_432,
    "anomaly_detection": 3_200,
    "keyword_spotting": 16_000,
    "visual_wake_words": 138_240,
    "audio_example1": 10_032,
    "keyword_spotting_on_off": 21_568,
    "tflite_micro_speech": 8_000,
}


@pytest.mark.parametrize(("name", "scratch"), TFLM_SCRATCH.items())
def test_scratch_is_not_above_tflite_micro(name: str, scratch: int) -> None:
    """The plan of a TFLite file needs no more scratch than TFLite Micro."""
    assert 0 < plan_of(name, align=Align(16)).scratch_bytes <= scratch


# Tensors and bytes that cross the border of the model, counted from the files.
TFLITE_IO = {
    "hey_jarvis": (2, 121),
    "visual_wake_words": (2, 110_600),
    "keyword_spotting": (2, 2_048),
    "face_front": (3, 257_536),
    "face_back": (3, 847_360),
    "basicpitch_tflite": (4, 478_096),
}


@pytest.mark.parametrize(("name", "expected"), TFLITE_IO.items())
def test_tflite_io_is_counted(name: str, expected: tuple[int, int]) -> None:
    """Inputs and outputs of a TFLite model have the known number and bytes."""
    model = read(name)
    border = [*model.inputs, *model.outputs]
    assert (len(border), sum(model.tensors[item].nbytes for item in border)) == expected


# An independent greedy planner (largest first, best fit, 64 bytes) reached these numbers.
GREEDY_SCRATCH = {
    "nudenet": 4_915_200,
    "layout": 46_694_400,
    "ocr_cls": 509_952,
    "silero_v3": 52_736,
    "oww_mel": 234_432,
    "dnsmos_v8": 27_648_000,
}


@pytest.mark.parametrize(("name", "scratch"), GREEDY_SCRATCH.items())
def test_scratch_is_not_above_a_greedy_plan(name: str, scratch: int) -> None:
    """Plans need no more scratch than an independent greedy planner."""
    assert 0 < plan_of(name).scratch_bytes <= scratch


@pytest.mark.parametrize("name", [name for name in chosen(".onnx") if ENTRIES[name].states])
def test_listed_state_pairs_exist(name: str) -> None:
    """Each listed state has the same type and shape as input and as output."""
    model = read(name)
    for before, after in ENTRIES[name].states.items():
        assert before in model.inputs
        assert after in model.outputs
        assert model.tensors[before].shape == model.tensors[after].shape
        assert model.tensors[before].dtype == model.tensors[after].dtype
