"""Windows and states across executions: frame by frame equals the whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qnnmem import lpai
from qnnmem.errors import QnnError
from qnnmem.lpai.program.run import Parts
from qnnmem.lpai.runtime.execution import GivenBuffers, UserBuffer
from qnnmem.planner import Io

Array = NDArray[Any]
Open = Callable[[str], lpai.Session]
KERNEL = np.random.default_rng(0).integers(-3, 4, (2, 4, 5)).astype(np.float32)


def buffer(bench: Any, source: str, result: str, size: int, *, reset: str = "", **more: Any) -> Any:
    """Return a Buffer node over the last axis."""
    inputs = [source, reset] if reset else [source]
    settings = {"buffer_size": size, "buffer_dim": 2, "stride": 1, "mode": 0} | more
    return bench.node("Buffer", inputs, [result], name=result, domain="qti_aisw", **settings)


def convolution(bench: Any) -> Any:
    """Return a window of five frames before a convolution, beside a running sum."""
    nodes = [
        bench.node("Relu", ["x"], ["r"]),
        bench.node("Add", ["h", "x"], ["n"]),
        bench.node("Neg", ["n"], ["level"]),
        buffer(bench, "r", "b", 5),
        bench.node("Conv", ["b", "w"], ["c"]),
        bench.node("Relu", ["c"], ["y"]),
    ]
    frame = [1, 4, 1]
    return bench.model(nodes, {"x": frame, "h": frame}, ["y", "level", "n"], {"w": KERNEL})


def strided(bench: Any, stride: int) -> Any:
    """Return a window of six frames with two frames per execution."""
    nodes = [buffer(bench, "x", "b", 6, stride=stride), bench.node("Neg", ["b"], ["y"])]
    return bench.model(nodes, {"x": [1, 1, 2]}, ["y"])


def answering(bench: Any, mode: int) -> Any:
    """Return a window of four frames that always has a result and can be reset."""
    node = buffer(bench, "x", "y", 4, mode=mode, reset="clear")
    shapes = {"x": [1, 2, 1], "clear": [1]}
    return bench.model([node], shapes, ["y"], kinds={"clear": 9})


def series(bench: Any) -> Any:
    """Return a window over sums of a window, both reset by one input."""
    nodes = [
        buffer(bench, "x", "a", 3, stride=2, reset="clear"),
        bench.node("ReduceSum", ["a", "axis"], ["s"]),
        buffer(bench, "s", "b", 2, reset="clear"),
        bench.node("Add", ["h", "s"], ["n"]),
        bench.node("Neg", ["b"], ["y"]),
        bench.node("Neg", ["n"], ["total"]),
    ]
    shapes = {"x": [1, 1, 1], "clear": [1], "h": [1, 1, 1]}
    weights = {"axis": np.array([2])}
    return bench.model(nodes, shapes, ["y", "total", "n"], weights, {"clear": 9})


def quantized(bench: Any, frames: int, windowed: bool) -> Any:
    """Return an 8-bit convolution over a window, or over all frames at once."""
    source = "b" if windowed else "x"
    names = [source, "s", "z", "w", "s", "v", "o", "z"]
    nodes = [bench.node("QLinearConv", names, ["y"])]
    if windowed:
        nodes.insert(0, buffer(bench, "x", "b", 5))
    weights = {
        "s": np.float32(0.1),
        "o": np.float32(0.7),
        "z": np.uint8(9),
        "v": np.int8(0),
        "w": (KERNEL * 20).astype(np.int8),
    }
    return bench.model(nodes, {"x": [1, 4, frames]}, ["y"], weights, {"x": 2})


def recurrent(bench: Any, frames: int) -> Any:
    """Return an LSTM over this many frames."""
    random = np.random.default_rng(4)
    weights = {
        "w": random.standard_normal((1, 32, 6)).astype(np.float32),
        "r": random.standard_normal((1, 32, 8)).astype(np.float32),
    }
    nodes = [bench.node("LSTM", ["x", "w", "r"], ["y"], hidden_size=8)]
    return bench.model(nodes, {"x": [frames, 1, 6]}, ["y"], weights)


@pytest.fixture(scope="module")
def prepared(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, lpai.Prepared]:
    """Return every model, prepared."""
    models: dict[str, tuple[Any, dict[str, Any]]] = {
        "convolution": (convolution(bench), {"states": (("h", "n"),)}),
        "outside": (convolution(bench), {"states": (("h", "n"),), "io": Io.OUTSIDE}),
        "stride 2": (strided(bench, 2), {}),
        "stride 4": (strided(bench, 4), {}),
        "left": (answering(bench, 1), {}),
        "right": (answering(bench, 2), {}),
        "series": (series(bench), {"states": (("h", "n"),)}),
        "quantized": (quantized(bench, 1, windowed=True), {"allow_float": False}),
        "recurrent": (recurrent(bench, 1), {"rnn_state": True}),
    }
    folder = tmp_path_factory.mktemp("models")
    return {
        name: bench.prepare(proto, folder, **options) for name, (proto, options) in models.items()
    }


@pytest.fixture
def opened(bench: Any, prepared: dict[str, lpai.Prepared], tmp_path: Any) -> Any:
    """Return a function that opens a prepared model by name; all are closed at the end."""
    sessions: list[lpai.Session] = []

    def open_one(name: str) -> lpai.Session:
        sessions.append(bench.open(prepared[name].context, tmp_path))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()
        assert session.findings == ()


def integers(*shape: int) -> Array:
    """Return whole numbers as floats, whose sums are exact."""
    return np.random.default_rng(1).integers(-5, 6, shape).astype(np.float32)


def feed_all(session: lpai.Session, frames: Iterable[dict[str, Array]]) -> list[Any]:
    """Return the outputs of each execution, None while a window fills."""
    return [session.feed(frame) for frame in frames]


@pytest.mark.parametrize("name", ["convolution", "outside"])
def test_frame_by_frame_is_the_whole_sequence(bench: Any, opened: Open, name: str) -> None:
    """Frame by frame, a windowed convolution gives the bits of one over the whole sequence."""
    x = integers(1, 4, 20)
    nodes = [bench.node("Relu", ["x"], ["r"]), bench.node("Conv", ["r", "w"], ["c"])]
    nodes.append(bench.node("Relu", ["c"], ["y"]))
    whole = bench.plain(bench.model(nodes, {"x": [1, 4, 20]}, ["y"], {"w": KERNEL}), {"x": x})
    session = opened(name)
    found = feed_all(session, ({"x": x[:, :, t : t + 1]} for t in range(20)))
    assert [item is None for item in found] == [True] * 4 + [False] * 16
    results = np.concatenate([item["y"] for item in found[4:]], 2)
    assert results.tobytes() == whole["y"].tobytes()
    assert session.counters.early_terminations == 4
    assert session.counters.executions == 20


def test_state_beside_a_window_advances_while_it_fills(opened: Open) -> None:
    """A state beside a window also advances in executions that return 6038."""
    x = integers(1, 4, 9)
    found = feed_all(opened("convolution"), ({"x": x[:, :, t : t + 1]} for t in range(9)))
    sums = -np.cumsum(x, 2)
    for t, item in enumerate(found):
        assert item is None or item["level"].tobytes() == sums[:, :, t : t + 1].tobytes()


@pytest.mark.parametrize("name", ["convolution", "outside"])
def test_waiting_leaves_outputs_untouched(bench: Any, prepared: Any, name: str) -> None:
    """While a window fills, no byte of the application's outputs is written."""
    context = prepared[name].context
    memory = bench.Memory(Parts(context.graphs[0], context.constants))
    for shared in (False, True):
        memory.execution.reset()
        for t in range(6):
            x = bench.raw(integers(1, 4, 1).copy())
            outputs = {word: bench.raw(memory.blank(word)) for word in ("y", "level")}
            for array in outputs.values():
                array[:] = 0xEE
            given = {word: UserBuffer(array, shared) for word, array in outputs.items()}
            outcome = memory.execution.run(GivenBuffers({"x": UserBuffer(x, shared)}, given))
            assert outcome.complete == (t >= 4)
            assert outcome.findings == ()
            for array in outputs.values():
                assert (array == 0xEE).all() == (not outcome.complete)


def test_the_code_of_waiting_is_6038(opened: Open) -> None:
    """While a window fills, `execute` returns 6038, and `run` raises it after the last frame."""
    session = opened("convolution")
    session.graph.view("x").array[:] = 1
    assert [session.graph.execute() for _ in range(6)] == [6038] * 4 + [0, 0]
    session.reset()
    frame = {"x": integers(1, 4, 1)}
    with pytest.raises(QnnError) as caught:
        session.run([frame] * 4)
    assert caught.value.code == 6038
    assert session.run(iter([frame]))["y"].shape == (1, 2, 1)
    session.reset()
    assert session.feed(frame) is None


def test_a_snapshot_holds_the_windows(opened: Open) -> None:
    """A snapshot includes the frames of its windows."""
    x = integers(1, 4, 12)
    session = opened("convolution")
    feed_all(session, ({"x": x[:, :, t : t + 1]} for t in range(3)))
    saved = session.snapshot()
    rest = [{"x": x[:, :, t : t + 1]} for t in range(3, 12)]
    first = feed_all(session, rest)
    session.restore(saved)
    again = feed_all(session, rest)
    assert [item is None for item in first] == [True] + [False] * 8
    for one, other in zip(first, again, strict=True):
        assert one is other is None or one["y"].tobytes() == other["y"].tobytes()


@pytest.mark.parametrize(
    ("stride", "complete"),
    [(2, [0, 0, 1, 1, 1, 1, 1, 1]), (4, [0, 0, 1, 0, 1, 0, 1, 0])],
)
def test_a_stride_empties_part_of_the_window(
    opened: Open, stride: int, complete: list[int]
) -> None:
    """A full window gives a result and then drops as many frames as its stride."""
    x = integers(1, 1, 16)
    found = feed_all(
        opened(f"stride {stride}"), ({"x": x[:, :, 2 * t : 2 * t + 2]} for t in range(8))
    )
    assert [item is not None for item in found] == [bool(c) for c in complete]
    for t, item in enumerate(found):
        if item is not None:
            assert np.array_equal(item["y"], -x[:, :, 2 * t - 4 : 2 * t + 2])


@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_that_answer_every_time(opened: Open, side: str) -> None:
    """A non-blocking window fills missing frames with zeros, also after a reset."""
    x = integers(1, 2, 12)
    clear = [t == 7 for t in range(12)]
    session, seen = opened(side), np.zeros((1, 2, 0), np.float32)
    for t in range(12):
        frame = x[:, :, t : t + 1]
        seen = np.concatenate([seen[:, :, :0] if clear[t] else seen, frame], 2)[:, :, -4:]
        missing = np.zeros((1, 2, 4 - seen.shape[2]), np.float32)
        parts = [seen, missing] if side == "left" else [missing, seen]
        found = session.feed({"x": frame, "clear": np.array([clear[t]])})
        assert found is not None
        assert np.array_equal(found["y"], np.concatenate(parts, 2))


class Series:
    """The expected behaviour of two windows in series."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.second: list[float] = []
        self.total = 0.0

    def feed(self, value: float, clear: bool) -> tuple[list[float], float] | None:
        """Return the expected result of one execution."""
        if clear:
            self.first, self.second = [], []
        self.first.append(value)
        if len(self.first) < 3:
            return None
        found = sum(self.first)
        self.total += found
        self.first = self.first[2:]
        self.second = [*self.second, found][-2:]
        return ([-v for v in self.second], -self.total) if len(self.second) == 2 else None


@pytest.mark.parametrize("clears", [(), (6,), (7,), (3, 8, 9)])
def test_two_windows_in_series(opened: Open, clears: tuple[int, ...]) -> None:
    """The second of two windows counts only the first one's results, and a reset clears both."""
    session, model = opened("series"), Series()
    for t, value in enumerate(integers(24)):
        expected = model.feed(float(value), t in clears)
        frame = np.full((1, 1, 1), value, np.float32)
        found = session.feed({"x": frame, "clear": np.array([t in clears])})
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found["y"].ravel().tolist() == expected[0]


def test_state_behind_a_window_waits_for_it(opened: Open) -> None:
    """A state behind a window advances only when the window has a result."""
    session, model = opened("series"), Series()
    for value in integers(20):
        expected = model.feed(float(value), False)
        feeds = {"x": np.full((1, 1, 1), value, np.float32), "clear": np.array([False])}
        found = session.feed(feeds)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert float(found["total"].item()) == expected[1]


def test_a_quantized_stream_is_the_whole_sequence(bench: Any, opened: Open) -> None:
    """Frame by frame, an 8-bit convolution gives the bits of one over the whole sequence."""
    x = np.random.default_rng(3).integers(0, 256, (1, 4, 30)).astype(np.uint8)
    whole = bench.plain(quantized(bench, 30, windowed=False), {"x": x})["y"]
    found = feed_all(opened("quantized"), ({"x": x[:, :, t : t + 1]} for t in range(30)))
    results = np.concatenate([item["y"] for item in found[4:]], 2)
    assert results.tobytes() == whole.tobytes()
    assert len(np.unique(whole)) > 10


def test_the_state_of_an_lstm_is_kept(bench: Any, opened: Open) -> None:
    """Frame by frame, an LSTM with kept state gives the bits of the whole sequence."""
    x = np.random.default_rng(5).standard_normal((25, 1, 6)).astype(np.float32)
    whole = bench.plain(recurrent(bench, 25), {"x": x})["y"]
    session = opened("recurrent")
    assert len(session.compiled.states) == 2
    for _ in range(2):
        results = [session.run({"x": x[t : t + 1]})["y"] for t in range(25)]
        assert np.concatenate(results).tobytes() == whole.tobytes()
        session.reset()
