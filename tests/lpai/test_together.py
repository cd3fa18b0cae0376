"""Several always-on models follow the contract in one process with shared scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import exit_code, run, sentence

from qnnmem import lpai
from qnnmem.contract.leaks import separate
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import Config, Mem, ask, custom
from qnnmem.lpai.runtime.heap import Heap, HeapBuffer
from qnnmem.lpai.selftest.client import KEEP, PERSISTENT, SCRATCH
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.planner.pools import Limits
from qnnmem.planner.together import arrange
from qnnmem.qnn.enums import BackendProperty, MemType

MODELS = Path(__file__).parents[2] / ".cache" / "models"
NAMES = ("hey_jarvis", "alexa", "keyword_spotting")


def frames(session: lpai.Session, count: int, seed: int) -> list[dict[str, Any]]:
    """Return random inputs of a graph."""
    numbers = np.random.default_rng(seed)
    tensors = [session.compiled.model.tensors[name] for name in session.compiled.inputs]
    return [
        {
            one.name: numbers.integers(-128, 128, one.shape).astype(one.dtype.value)
            for one in tensors
        }
        for _ in range(count)
    ]


def test_three_models_take_turns_in_one_scratch(tmp_path: Path) -> None:
    """Three models that share scratch compute, in turn, what each computes alone."""
    paths = [MODELS / f"{name}.tflite" for name in NAMES]
    if any(not path.exists() for path in paths):
        pytest.skip("the models are not here; fetch them with tools/models.py")
    prepared = lpai.prepare(paths, lpai.PrepareOptions(time_limit_s=240.0))
    planned = [
        PlannedFile(plan, str(path)) for plan, path in zip(prepared.plans, paths, strict=True)
    ]
    found = arrange(planned, (), Limits({}))
    assert found.scratch_bytes == max(plan.scratch_bytes for plan in prepared.plans) == 16_000
    file = tmp_path / "all.bin"
    prepared.write(file)
    fed, wanted = {}, {}
    for seed, name in enumerate(NAMES):
        with lpai.open(file, graph=name, native=True) as session:
            fed[name] = frames(session, 3, seed)
            wanted[name] = [session.run(frame) for frame in fed[name]]
    with separate():
        backend, graphs = take_over(file.read_bytes(), found.scratch_bytes, found)
        for turn in range(3):
            for name in NAMES:
                graph = graphs[name]
                for tensor, value in fed[name][turn].items():
                    graph.view(tensor).array[...] = value
                graph.execute()
                for tensor, value in wanted[name][turn].items():
                    assert graph.view(tensor).array.tolist() == value.tolist()
        assert [one.rule for one in backend.findings] == []


def test_net_run_gives_all_graphs_one_scratch(tmp_path: Path) -> None:
    """With `--one_scratch`, net-run gives the same results as with separate scratch."""
    made, names = tmp_path / "both.bin", ("--graph-name", "a", "--graph-name", "b")
    model = str(Path(__file__).parents[2] / "examples" / "small.onnx")
    options = ("--shape", "x=1x4x8x8", "--quantize", "int8", "-o", made)
    assert exit_code(run("prepare", model, model, *names, *options)) == 0
    results = []
    for words in ((), ("--one_scratch",)):
        folder = tmp_path / f"out{len(words)}"
        done = run("net-run", made, "--random-inputs", "2", *words, "--output_dir", folder)
        assert exit_code(done) == 0, sentence(done)
        files = sorted(path for path in folder.rglob("*.raw") if "Result" in str(path))
        results.append([(path.relative_to(folder), path.read_bytes()) for path in files])
    assert len(results[0]) == 4
    assert results[0] == results[1]


def take_over(binary: bytes, scratch: int, found: Any) -> tuple[Backend, dict[str, Any]]:
    """Return graphs that share scratch and have their own persistent memory."""
    heap = Heap(MemType.DDR)
    backend = Backend.create()
    ask(backend.get_property, BackendProperty.GET_PROP_ALIGNMENT_REQ)
    content = heap.allocate(-(-len(binary) // 256) * 256, 256)
    content.view[: len(binary)] = binary
    keep: list[Config | None] = [KEEP, None]
    context = Context.create_from_binary(backend, content.view[: len(binary)], keep, trusted=True)
    shared: HeapBuffer = heap.allocate(scratch, 64)
    graphs = {}
    for model in found.models:
        graph = context.graph_retrieve(model.name)
        configs = [custom(SCRATCH, Mem(MemType.DDR, shared.size, shared)), None]
        graph.set_config(configs)
        if model.persistent_bytes:
            kept = heap.allocate(model.persistent_bytes, 64)
            graph.set_config([custom(PERSISTENT, Mem(MemType.DDR, kept.size, kept)), None])
        graph.finalize()
        graphs[model.name] = graph
    return backend, graphs
