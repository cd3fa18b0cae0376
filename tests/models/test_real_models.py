"""Real models, fetched by package name, run in an arena laid out by their plan."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qnnmem.ir import Effect, Model
from qnnmem.load import load
from qnnmem.load.onnx import executable
from qnnmem.lpai.arena import ArenaRun, plain_run, run_program, same_bits
from qnnmem.lpai.arena_memory import BASE_ALIGN, Placement
from qnnmem.lpai.arena_steps import prepare
from qnnmem.plan import Io, MemoryPlan, Pool, PoolOptions, plan_model, verify
from qnnmem.units import Align, round_up

pytestmark = pytest.mark.models

Array = NDArray[Any]
# A plain run that keeps every tensor of a larger model would take gigabytes.
MAX_REFERENCE_BYTES = 400 << 20
PLAN_SECONDS = 2.0


def _tool() -> Any:
    """Import the fetching script, which is no part of the package."""
    path = Path(__file__).parents[2] / "tools" / "models.py"
    spec = importlib.util.spec_from_file_location("fetch_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
ENTRIES = {entry.id: entry for entry in TOOL.read_entries()}


def chosen(suffix: str) -> list[str]:
    """Models of the test set, or with QNNMEM_ALL_MODELS set all that can be planned as they are."""
    every = bool(os.environ.get("QNNMEM_ALL_MODELS"))
    return [
        entry.id
        for entry in ENTRIES.values()
        if entry.suffix == suffix and (entry.test or (every and not entry.dynamic))
    ]


def path_of(name: str) -> Path:
    """Where a fetched model is; skips the test aloud when it is not there."""
    entry = ENTRIES[name]
    if not TOOL.is_present(entry):
        pytest.skip(f"model {name} is not here; fetch it with: python tools/models.py {name}")
    return Path(entry.target(TOOL.CACHE))


@functools.cache
def read(name: str) -> Model:
    """Load a model with its free dimensions fixed as listed."""
    entry = ENTRIES[name]
    return load(path_of(name), dims=entry.dims, shapes=entry.shapes)


def feeds_of(model: Model, values: Mapping[str, int]) -> dict[str, Array]:
    """Random inputs, small where they are indices, as listed where they must make sense."""
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


def plan_of(name: str, **options: Any) -> MemoryPlan:
    """Plan a model and have the plan checked again."""
    plan = plan_model(read(name), PoolOptions(**options), time_limit=PLAN_SECONDS)
    assert verify(plan.scratch) is None
    assert plan.scratch.lower_bound <= plan.scratch_bytes
    return plan


def placement_of(plan: MemoryPlan) -> Placement:
    """Put the pools of a plan one behind the other in one arena."""
    base: dict[Pool, int] = {}
    end = 0
    for pool in (Pool.SCRATCH, Pool.PERSISTENT, Pool.IO):
        base[pool] = end
        end = round_up(end + plan.pool_bytes(pool), BASE_ALIGN)
    offsets = {
        name: base[buffer.pool] + buffer.offset
        for buffer in plan.buffers
        for name in (buffer.name, *buffer.aliases)
        if name in plan.model.tensors
    }
    return Placement(offsets, end)


def graph_of(name: str) -> Any:
    """Build the graph that a model's ops point into."""
    entry = ENTRIES[name]
    shapes = {key: tuple(shape) for key, shape in entry.shapes.items()}
    return executable(path_of(name), dims=entry.dims, shapes=shapes)


def check_run(name: str, plan: MemoryPlan) -> ArenaRun:
    """Run op by op at the planned addresses and compare with a plain run, bit for bit."""
    model, placement = plan.model, placement_of(plan)
    proto, feeds = graph_of(name), feeds_of(model, ENTRIES[name].values)
    total = sum(model.tensors[item].nbytes for item in placement.offsets)
    inner = placement.offsets if total <= MAX_REFERENCE_BYTES else ()
    reference = plain_run(proto, feeds, list(dict.fromkeys([*model.outputs, *inner])))
    result = run_program(prepare(proto, model), placement, feeds, reference=reference)
    assert result.findings == ()
    assert result.outside == ()
    assert result.outputs.keys() == set(model.outputs)
    assert all(same_bits(result.outputs[item], reference[item]) for item in model.outputs)
    return result


@pytest.mark.parametrize("name", chosen(".onnx"))
def test_model_runs_in_its_plan_bit_for_bit(name: str) -> None:
    """Executed op by op at the planned addresses, a model gives exactly its plain answer."""
    assert check_run(name, plan_of(name)).copied_bytes == 0


@pytest.mark.parametrize("name", [name for name in chosen(".onnx") if ENTRIES[name].states])
def test_stateful_model_runs_bit_for_bit(name: str) -> None:
    """State in the persistent pool, new over old where the plan says so, changes no bit."""
    states = ENTRIES[name].states
    model = read(name)
    plan = plan_of(name, states=tuple(states.items()))
    assert plan.persistent_bytes >= sum(model.tensors[item].nbytes for item in states)
    check_run(name, plan)


@pytest.mark.parametrize("name", ["oww_mel", "magika", "aecmos", "nudenet", "light_shufflenet"])
def test_io_pool_runs_bit_for_bit(name: str) -> None:
    """Inputs and outputs in buffers of the application leave the answer as it is."""
    plan = plan_of(name, io=Io.OUTSIDE)
    model = read(name)
    assert plan.io_bytes >= sum(model.tensors[item].nbytes for item in model.inputs)
    check_run(name, plan)


@pytest.mark.parametrize("name", ["smartturn", "ocr4_rec", "nudenet", "centerface"])
def test_model_runs_in_place_bit_for_bit(name: str) -> None:
    """Element-wise ops that write over a dying input save memory and change no bit."""
    tight = plan_of(name, inplace=True)
    assert tight.scratch_bytes < plan_of(name).scratch_bytes
    check_run(name, tight)


@pytest.mark.parametrize("name", ["silero_v3", "basicpitch", "light_densenet121"])
def test_reordered_model_runs_bit_for_bit(name: str) -> None:
    """Ops in the order chosen to save memory give the answer of the file's order."""
    better = plan_of(name, reorder=True)
    assert better.scratch_bytes <= plan_of(name).scratch_bytes
    check_run(name, better)


@pytest.mark.parametrize("name", ["silero_fw6", "lk_embed", "ocr_cls", "nudenet"])
def test_prepared_graph_computes_what_the_file_computes(name: str) -> None:
    """What the reader changed on the way to the plan changes no bit of the answer."""
    import onnx

    model = read(name)
    proto, feeds = graph_of(name), feeds_of(model, ENTRIES[name].values)
    ours = plain_run(proto, feeds, model.outputs)
    theirs = plain_run(onnx.load(path_of(name)), feeds, model.outputs)
    assert all(same_bits(ours[name], theirs[name]) for name in model.outputs)


@pytest.mark.parametrize("name", ["silero_fw6", "centerface", "ocr_cls", "light_squeezenet"])
def test_one_misplaced_tensor_is_noticed(name: str) -> None:
    """Moving one tensor over another that is alive with it changes the run, and that is found."""
    model = read(name)
    placement = placement_of(plan_of(name))
    proto, feeds = graph_of(name), feeds_of(model, ENTRIES[name].values)
    victim, over = _live_pair(model)
    moved = {**placement.offsets, victim: placement.offsets[over]}
    size = placement.size + model.tensors[victim].nbytes
    reference = plain_run(proto, feeds, [*placement.offsets])
    result = run_program(prepare(proto, model), Placement(moved, size), feeds, reference=reference)
    assert result.findings


def _live_pair(model: Model) -> tuple[str, str]:
    """Find an op that cannot work in place: its output and its input, no views of them."""
    views = {name for op in model.ops if op.effect is Effect.VIEW for name in op.inputs}
    return next(
        (op.outputs[0], op.inputs[0])
        for op in model.ops
        if op.type in ("Conv", "Concat", "MaxPool")
        and op.outputs[0] not in views
        and op.inputs[0] not in model.constants
    )


@pytest.mark.parametrize("name", chosen(".tflite"))
def test_tflite_model_loads_and_plans(name: str) -> None:
    """Every tensor of a real TFLite model gets a place inside its plan."""
    model = read(name)
    plan = plan_of(name)
    placement = placement_of(plan)
    assert model.ops
    assert model.constants
    made = {result for op in model.ops for result in op.outputs}
    assert made <= placement.offsets.keys()
    assert set(model.states) == {b.name for b in plan.buffers if b.pool is Pool.PERSISTENT}
    ends = [at + model.tensors[name].nbytes for name, at in placement.offsets.items()]
    assert max(ends) <= placement.size


@pytest.mark.parametrize(
    ("name", "size"), [("hey_jarvis", 2840), ("alexa", 3024), ("hey_mycroft", 3664)]
)
def test_streaming_models_keep_six_variables(name: str, size: int) -> None:
    """The wake word models carry their state in six resource variables of known size."""
    model = read(name)
    assert len(model.states) == 6
    assert sum(model.tensors[state].nbytes for state in model.states) == size


# What TFLite Micro's own planner allocates as scratch for these files, by its recording allocator
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
    """Lifetimes read from a TFLite file cost no more than in the runtime made for such files."""
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


# What an independent greedy planner (largest first, best fit, 64 bytes) reached on these files.
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
    """Plans of well-studied models need no more bytes than somebody else's simple planner."""
    assert 0 < plan_of(name).scratch_bytes <= scratch


@pytest.mark.parametrize("name", [name for name in chosen(".onnx") if ENTRIES[name].states])
def test_listed_state_pairs_exist(name: str) -> None:
    """Each listed state leaves the model with the type and shape it came in with."""
    model = read(name)
    for before, after in ENTRIES[name].states.items():
        assert before in model.inputs
        assert after in model.outputs
        assert model.tensors[before].shape == model.tensors[after].shape
        assert model.tensors[before].dtype == model.tensors[after].dtype
