"""The sanitizer reports every wrong memory access, by the plan or by another writer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnmem.contract.regions import GUARD_BYTES
from qnnmem.errors import ProgramError
from qnnmem.lpai.program.run import Parts, Stage
from qnnmem.lpai.runtime.heap import POISON, HeapBuffer
from qnnmem.lpai.runtime.sanitizer import MAX_FINDINGS, collisions, describe
from qnnmem.planner import PlacedBuffer, Pool
from qnnmem.units import Bytes, Offset


def diamond(bench: Any, **options: Any) -> Parts:
    """Return four compiled ops; the last one reads the first one's result again."""
    nodes = [
        bench.node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        bench.node("Softmax", ["a"], ["b"]),
        bench.node("Softmax", ["b"], ["c"]),
        bench.node("Add", ["a", "c"], ["y"]),
    ]
    weight = np.random.default_rng(1).standard_normal((2, 2, 3, 3)).astype(np.float32)
    proto = bench.model(nodes, {"x": [1, 2, 9, 9]}, ["y"], {"w": weight})
    parts: Parts = bench.compile(proto, **options)
    return parts


def counter(bench: Any) -> Parts:
    """Return a running sum with three floats of state and a gap after them."""
    nodes = [bench.node("Add", ["h", "x"], ["n"]), bench.node("Neg", ["n"], ["y"])]
    proto = bench.model(nodes, {"x": [3], "h": [3]}, ["n", "y"])
    parts: Parts = bench.compile(proto, states=(("h", "n"),))
    return parts


def rules(memory: Any, bench: Any) -> list[str]:
    """Return the rules that one execution breaks."""
    _, outcome = memory.run(bench.noise(memory.graph))
    return [found.rule for found in outcome.findings]


def interfere(monkeypatch: pytest.MonkeyPatch, when: str, work: Callable[[], None]) -> None:
    """Call `work` right after the op that writes `when`."""
    original = Stage.run

    def run(stage: Stage) -> None:
        original(stage)
        if when in stage.writes:
            work()

    monkeypatch.setattr(Stage, "run", run)


def test_all_but_the_outputs_is_poison_after_a_watched_run(bench: Any) -> None:
    """After a watched run, all scratch except the outputs holds the poison value."""
    memory = bench.Memory(diamond(bench))
    assert rules(memory, bench) == []
    left = memory.scratch.copy()
    place = memory.graph.buffer_of["y"]
    size = memory.graph.model.tensors["y"].nbytes
    assert (left[place.offset : place.offset + size] != POISON).any()
    left[place.offset : place.offset + size] = POISON
    assert (left == POISON).all()


def test_only_the_first_run_in_new_memory_is_watched(bench: Any) -> None:
    """Only the first run in new scratch is watched op by op; replaced scratch is watched again."""
    memory = bench.Memory(diamond(bench))
    seen = []
    for _ in range(3):
        rules(memory, bench)
        seen.append(len(memory.execution._strays))
    memory.replace_scratch()
    watch = memory.execution._watch()
    assert seen == [4, 5, 5]  # four single ops, then all ops at once
    assert watch is not None


@pytest.mark.parametrize("victim", ["b", "c"])
def test_a_tensor_laid_over_a_live_one_is_found(bench: Any, victim: str) -> None:
    """A tensor placed over a live one gives X1 with the writing op and the damaged tensor."""
    parts = diamond(bench)
    broken = bench.moved(parts, **{victim: parts.graph.buffer_of["a"].offset})
    _, outcome = bench.Memory(broken).run(bench.noise(parts.graph))
    sentences = [found.sentence for found in outcome.findings if found.rule == "X1"]
    writer = {"b": "n1", "c": "n2"}[victim]
    assert f"op {writer!r} writes {victim!r} over 648 bytes of 'a'" in sentences[0]
    assert any("'a' changed before op 'n3' read it" in sentence for sentence in sentences)


def test_bytes_alone_betray_an_overlap(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlap is also found by checksums alone, without comparing addresses."""
    parts = diamond(bench)
    broken = bench.moved(parts, c=parts.graph.buffer_of["a"].offset + 64)
    monkeypatch.setattr("qnnmem.lpai.runtime.sanitizer.Sanitizer._check_owners", lambda *_: None)
    _, outcome = bench.Memory(broken).run(bench.noise(parts.graph))
    assert "'a' changed before op 'n3' read it" in outcome.findings[0].sentence


def test_an_early_output_must_survive(bench: Any) -> None:
    """A model output that a later op damages in part gives X1."""
    nodes = [bench.node("Softmax", ["x"], ["b"]), bench.node("Softmax", ["b"], ["y"])]
    proto = bench.model(nodes, {"x": [1, 50]}, ["b", "y"])
    parts = bench.compile(proto)
    broken = bench.moved(parts, b=1024, y=1024 + 192)
    assert "X1" in rules(bench.Memory(broken), bench)


def test_outputs_of_one_op_must_not_share(bench: Any) -> None:
    """Two overlapping results of one op give X1."""
    nodes = [
        bench.node("Split", ["x"], ["a", "b"]),
        bench.node("Sub", ["a", "b"], ["y"]),
    ]
    parts = bench.compile(bench.model(nodes, {"x": [8]}, ["y"]))
    broken = bench.moved(parts, a=int(parts.graph.buffer_of["b"].offset))
    assert rules(bench.Memory(broken), bench)[0] == "X1"


def test_an_op_must_not_write_over_what_it_reads(bench: Any) -> None:
    """A result that overlaps the op's own input gives X1, even if the input dies there."""
    parts = diamond(bench)
    broken = bench.moved(parts, c=int(parts.graph.buffer_of["b"].offset))
    assert rules(bench.Memory(broken), bench)[0] == "X1"


def test_findings_are_bounded(bench: Any) -> None:
    """The findings of one execution stop at a limit."""
    nodes = [bench.node("Softmax", [f"t{i}"], [f"t{i + 1}"]) for i in range(60)]
    parts = bench.compile(bench.model(nodes, {"t0": [1, 64]}, ["t60"]))
    offsets = {buffer.name: 0 for buffer in parts.graph.buffers}
    assert len(rules(bench.Memory(bench.moved(parts, **offsets)), bench)) == MAX_FINDINGS


# --- Stray writes --------------------------------------------------------------------------------


def test_a_write_into_dead_scratch_is_found(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write into the bytes of a dead tensor gives X3 with its offset."""
    memory = bench.Memory(diamond(bench))
    alive = {memory.graph.buffer_of[name].offset // 704 for name in ("a", "b")}
    offset = 704 * next(slot for slot in range(3) if slot not in alive) + 7
    assert memory.graph.scratch_bytes == 3 * 704

    def scribble() -> None:
        memory.scratch[offset] = 1

    interfere(monkeypatch, "b", scribble)
    _, outcome = memory.run(bench.noise(memory.graph))
    assert [found.rule for found in outcome.findings] == ["X3"]
    assert f"the first at offset {offset:,}" in outcome.findings[0].sentence
    assert outcome.findings[0].address == memory.scratch.__array_interface__["data"][0] + offset


@pytest.mark.parametrize("step", ["a", "b", "c", "y"])
def test_a_write_into_padding_is_found(
    bench: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A write into the padding after a tensor gives X3."""
    memory = bench.Memory(diamond(bench))
    place = memory.graph.buffer_of["y"]

    def scribble() -> None:
        memory.scratch[place.offset + 650] = 0

    interfere(monkeypatch, step, scribble)
    assert rules(memory, bench) == ["X3"]


def test_a_write_into_a_live_tensor_is_found(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write into a live tensor gives X1 when an op reads the tensor."""
    memory = bench.Memory(diamond(bench))

    def scribble() -> None:
        memory.execution.view("a")[5] ^= 1

    interfere(monkeypatch, "b", scribble)
    assert rules(memory, bench) == ["X1"]


@pytest.mark.parametrize("watched", [True, False])
def test_a_write_between_states_is_found(
    bench: Any, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """A write into a gap between states gives one X6."""
    memory = bench.Memory(counter(bench))
    if not watched:
        assert rules(memory, bench) == []

    def scribble() -> None:
        memory.persistent[20] = 0

    interfere(monkeypatch, "y", scribble)
    assert rules(memory, bench) == ["X6"]
    monkeypatch.undo()
    assert rules(memory, bench) == []


def test_scratch_between_executions_is_nobodys(bench: Any) -> None:
    """A write into scratch between executions gives no finding and does not change results."""
    memory = bench.Memory(diamond(bench))
    feeds = bench.noise(memory.graph)
    expected, _ = memory.run(feeds)
    for value in (0, 77):
        memory.scratch[:] = value
        found, outcome = memory.run(feeds)
        assert outcome.findings == ()
        assert found["y"].tobytes() == expected["y"].tobytes()


@pytest.fixture
def session(bench: Any, tmp_path: Path) -> Any:
    """Yield a session of the running sum whose pools have guard zones."""
    with bench.open(bench.context(counter(bench)), tmp_path) as opened:
        yield opened


def spill(buffer: HeapBuffer, where: int) -> None:
    """Write one byte at an offset, possibly outside the buffer."""
    assert -GUARD_BYTES <= where < buffer.size + GUARD_BYTES
    buffer._storage[buffer._start + where] = 1


@pytest.mark.parametrize(("pool", "side"), [(0, "before"), (0, "behind"), (1, "before")])
@pytest.mark.parametrize("inside", [True, False])
def test_a_write_beside_a_pool_is_found(
    session: Any, monkeypatch: pytest.MonkeyPatch, pool: int, side: str, inside: bool
) -> None:
    """A write beside a pool gives X2 with its side, during or between executions."""
    buffer = session._buffers[pool]
    feeds = {"x": np.ones(3, np.float32)}
    session.run(feeds)
    where = -1 if side == "before" else buffer.size
    if inside:
        interfere(monkeypatch, "y", lambda: spill(buffer, where))
    else:
        spill(buffer, where)
    session.run(feeds)
    found = session.findings[0]
    assert found.rule == "X2"
    assert side in found.sentence
    assert ("scratch", "persistent")[pool] == found.buffer


def test_state_changed_between_executions_is_found(session: Any) -> None:
    """A write into the persistent pool between executions gives X6."""
    feeds = {"x": np.ones(3, np.float32)}
    for offset in (0, 20):
        session.run(feeds)
        session._buffers[1].array[offset] ^= 1
        before = len(session.findings)
        session.run(feeds)
        assert {found.rule for found in session.findings[before:]} == {"X6"}


def test_reset_and_restore_are_not_strangers(session: Any) -> None:
    """`reset` and `restore` change the state without a finding."""
    feeds = {"x": np.ones(3, np.float32)}
    session.run(feeds)
    saved = session.snapshot()
    session.reset()
    session.run(feeds)
    session.restore(saved)
    session.run(feeds)
    assert session.findings == ()


# --- Broken plans --------------------------------------------------------------------------------


def broken_places(parts: Parts) -> list[tuple[PlacedBuffer, PlacedBuffer]]:
    """Return every move of one scratch buffer by one step onto another live buffer."""
    tensors = parts.graph.model.tensors
    inside = [b for b in parts.graph.buffers if b.pool is Pool.SCRATCH]
    found = []
    for buffer in inside:
        for step in (-parts.graph.align, parts.graph.align):
            start = buffer.offset + step
            end = start + tensors[buffer.name].nbytes
            hit = any(
                other is not buffer
                and other.live.overlaps(buffer.live)
                and start < other.offset + tensors[other.name].nbytes
                and other.offset < end
                for other in inside
            )
            if start >= 0 and hit:
                found.append((buffer, replace(buffer, offset=Offset(start))))
    return found


def random_parts(bench: Any, rng: random.Random) -> Parts:
    """Return a small compiled network of convolutions, sums and splits."""
    known, nodes = ["x"], []
    for k in range(8):
        kind = rng.choice(["Conv", "Add", "Split", "Relu"])
        names = [rng.choice(known)]
        if kind == "Conv":
            nodes.append(bench.node("Conv", [*names, "w"], [f"t{k}"], pads=[1, 1]))
        elif kind == "Add":
            nodes.append(bench.node("Add", [*names, rng.choice(known)], [f"t{k}"]))
        elif kind == "Split":
            halves = [f"a{k}", f"b{k}"]
            nodes.append(bench.node("Split", names, halves, axis=1))
            nodes.append(bench.node("Concat", halves[::-1], [f"t{k}"], axis=1))
        else:
            nodes.append(bench.node("Relu", names, [f"t{k}"]))
        known.append(f"t{k}")
    used = {name for node in nodes for name in node.input}
    outputs = [name for name in known[1:] if name not in used]
    weight = np.random.default_rng(k).standard_normal((4, 4, 3)).astype(np.float32)
    proto = bench.model(nodes, {"x": [1, 4, 30]}, outputs, {"w": weight})
    parts: Parts = bench.compile(proto)
    return parts


@pytest.mark.slow
def test_broken_plans_are_noticed_while_they_run(bench: Any) -> None:
    """Even without the check before the run, the sanitizer reports each wrong plan."""
    rng = random.Random(3)  # noqa: S311 - reproducible, not secret
    noticed = trials = 0
    for _ in range(6):
        parts = random_parts(bench, rng)
        ways = broken_places(parts)
        for buffer, moved in rng.choices(ways, k=10) if ways else []:
            buffers = tuple(moved if b is buffer else b for b in parts.graph.buffers)
            size = Bytes(max(parts.graph.scratch_bytes, moved.offset + moved.size))
            graph = replace(parts.graph, buffers=buffers, scratch_bytes=size)
            trials += 1
            assert list(collisions(graph))
            try:
                found = rules(bench.Memory(Parts(graph, parts.constants)), bench)
            except ProgramError:
                found = ["X1"]
            noticed += "X1" in found
    assert trials == noticed
    assert trials >= 40


def test_a_collision_is_described(bench: Any) -> None:
    """The finding about a wrong plan names op, tensors, bytes and pool."""
    parts = diamond(bench)
    broken = bench.moved(parts, c=int(parts.graph.buffer_of["a"].offset))
    found = describe(next(iter(collisions(broken.graph))))
    assert found.rule == "X1"
    assert "op 'n2' writes 'c' over 648 bytes of 'a', which is still in use" in found.sentence
    assert found.buffer == "scratch"
