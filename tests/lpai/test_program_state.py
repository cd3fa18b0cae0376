"""Buffer ops and RNN nodes keep their meaning when their state becomes explicit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import qnnmem
from qnnmem.errors import FreeDimensions, LoadError, OutputError, QnnMemError
from qnnmem.lpai.program.state import Rewritten, rewrite_states
from qnnmem.lpai.program.state_window import BLOCKING, LEFT, MAX_MODEL_BYTES, RIGHT, BufferWindow
from qnnmem.results.inspect import FrameWindow

Array = NDArray[Any]
FLOAT, UINT8, BOOL = 1, 2, 9
OPSET = 17


def buffer(source: str = "x", result: str = "y", reset: str = "", **attributes: Any) -> Any:
    """Return a Buffer node."""
    inputs = [source, reset] if reset else [source]
    name = attributes.pop("name", f"buffer_{result}")
    return helper.make_node("Buffer", inputs, [result], name=name, domain="qti_aisw", **attributes)


def info(name: str, shape: Sequence[int | str] | None, elem: int = FLOAT) -> onnx.ValueInfoProto:
    """Return the type of an input or output."""
    return helper.make_tensor_value_info(name, elem, shape)


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[str] = ("y",),
    weights: Mapping[str, Array] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Return a model that imports the vendor's domain, as exporters do."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs),
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("qti_aisw", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def save(proto: onnx.ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    """Write a model and return its path."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def rewrite(proto: onnx.ModelProto, folder: Path, **options: Any) -> Rewritten:
    """Return the model rewritten into a new folder."""
    out = folder / "out"
    out.mkdir()
    return rewrite_states(save(proto, folder), out, **options)


def refused(proto: onnx.ModelProto, folder: Path, **options: Any) -> str:
    """Return the reason for which a model is refused."""
    with pytest.raises(LoadError) as caught:
        rewrite(proto, folder, **options)
    assert "\n" not in caught.value.reason
    return caught.value.reason


class Stream:
    """Runs a rewritten model in onnxruntime, feeding states back and counting frames."""

    def __init__(self, rewritten: Rewritten) -> None:
        self.windows, self.states = rewritten.windows, rewritten.states
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(rewritten.path), options)
        old = {name for name, _ in self.states}
        kinds = {item.name: item for item in onnx.load(rewritten.path).graph.input}
        self.memory = {name: zeros(kinds[name]) for name in old}
        self.present = {window.kept.name: window.kept.padding for window in self.windows}
        self.names = [item.name for item in self.session.get_outputs()]

    def run(self, **feeds: Array) -> dict[str, Array] | None:
        """Return the outputs of one execution, or None where a runtime returns 6038."""
        values = self.session.run(self.names, {**feeds, **self.memory})
        found = dict(zip(self.names, values, strict=True))
        waiting = self._waiting(feeds)
        for old, new in self.states:
            if new not in waiting:
                self.memory[old] = found.pop(new)
        return None if waiting else found

    def _waiting(self, feeds: Mapping[str, Array]) -> set[str]:
        waiting: set[str] = set()
        for window in self.windows:
            kept = window.kept
            if kept.new in waiting:
                continue  # an earlier window has no result yet
            if kept.reset is not None and feeds[kept.reset].any():
                self.present[kept.name] = kept.padding
            self.present[kept.name], ready = kept.step(self.present[kept.name])
            waiting.update(() if ready else window.gated)
        return waiting


def zeros(item: onnx.ValueInfoProto) -> Array:
    """Return the initial value of a state."""
    kind = item.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))


def plain(proto: onnx.ModelProto, **feeds: Array) -> list[Array]:
    """Return the outputs of a model without state."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, feeds))


class Definition:
    """The Buffer op by its definition: a list of frames."""

    def __init__(self, size: int, stride: int, mode: int, padding: int, axis: int) -> None:
        self.size, self.stride, self.mode = size, stride, mode
        self.padding, self.axis = padding, axis
        self.held: list[Array] | None = None

    def push(self, x: Array, reset: bool = False) -> Array | None:
        """Return the window after new frames, or None while it fills."""
        frames = list(np.moveaxis(x, self.axis, 0))
        blank = np.zeros_like(frames[0])
        if self.held is None or reset:
            self.held = [blank] * self.padding
        self.held = (self.held + frames)[-self.size :]
        full = len(self.held) == self.size
        missing = [blank] * (self.size - len(self.held))
        shown = missing + self.held if self.mode == RIGHT else self.held + missing
        if full:
            self.held = self.held[self.stride :]
        if not full and self.mode == BLOCKING:
            return None
        return np.moveaxis(np.stack(shown), 0, self.axis)


def noise(shape: Sequence[int], count: int, seed: int = 0, elem: int = FLOAT) -> Iterator[Array]:
    """Yield frames of random values."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        values = rng.integers(1, 255, shape)
        yield values.astype(helper.tensor_dtype_to_np_dtype(elem))


def same(found: Array | None, wanted: Array | None) -> bool:
    """True if both results have equal bits, or if both are missing."""
    if found is None or wanted is None:
        return found is None and wanted is None
    return found.dtype == wanted.dtype and bool(np.array_equal(found, wanted))


def shown(found: Mapping[str, Array] | None) -> Array | None:
    """Return output y, if the run has outputs."""
    return None if found is None else found["y"]


def negated(found: Mapping[str, Array] | None) -> Array | None:
    """Return output y negated, which undoes the model's last op."""
    return None if found is None else np.negative(found["y"])


CASES = [
    # size, frames, stride, mode, padding
    (4, 1, 1, BLOCKING, 0),
    (4, 1, 1, BLOCKING, 3),
    (4, 1, 1, BLOCKING, 4),
    (4, 1, 3, BLOCKING, 0),
    (4, 1, 4, BLOCKING, 2),
    (6, 2, 2, BLOCKING, 0),
    (6, 2, 4, BLOCKING, 1),
    (6, 2, 6, BLOCKING, 0),
    (4, 1, 1, LEFT, 0),
    (4, 1, 1, LEFT, 2),
    (4, 1, 1, LEFT, 4),
    (6, 2, 2, LEFT, 0),
    (6, 2, 2, LEFT, 3),
    (4, 1, 1, RIGHT, 0),
    (6, 3, 3, RIGHT, 2),
    (3, 3, 3, RIGHT, 0),
    (3, 3, 3, BLOCKING, 0),
]


@pytest.mark.parametrize(
    ("axis", "with_reset"), [(1, False), (2, True)], ids=["axis 1", "axis 2, reset"]
)
@pytest.mark.parametrize(("size", "frames", "stride", "mode", "padding"), CASES)
def test_a_window_shows_what_the_definition_says(
    tmp_path: Path,
    size: int,
    frames: int,
    stride: int,
    mode: int,
    padding: int,
    axis: int,
    with_reset: bool,
) -> None:
    """In every mode, the rewritten Buffer returns the frames that the definition gives."""
    shape = (1, frames, 5) if axis == 1 else (1, 5, frames)
    node = buffer(
        result="b",
        reset="r" if with_reset else "",
        buffer_size=size,
        buffer_dim=axis,
        stride=stride,
        mode=mode,
        buffer_padding=padding,
    )
    inputs = [info("x", shape), *([info("r", [], BOOL)] if with_reset else [])]
    proto = model([node, helper.make_node("Neg", ["b"], ["y"])], inputs)
    stream = Stream(rewrite(proto, tmp_path))
    definition = Definition(size, stride, mode, padding, axis)
    for number, x in enumerate(noise(shape, 14)):
        reset = with_reset and number in (2, 8, 9)
        wanted = definition.push(x, reset)
        found = stream.run(x=x, **({"r": np.array(reset)} if with_reset else {}))
        assert same(negated(found), wanted), number


@settings(max_examples=8)
@given(data=st.data())
def test_any_sound_window_shows_what_the_definition_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The rewritten Buffer follows the definition for any valid size, stride, padding and reset."""
    frames = data.draw(st.integers(1, 3))
    count = data.draw(st.integers(1, 5))
    mode = data.draw(st.sampled_from([BLOCKING, LEFT, RIGHT]))
    steps = data.draw(st.integers(1, count)) if mode == BLOCKING else 1
    padding = data.draw(st.integers(0, frames * count))
    resets = data.draw(st.lists(st.booleans(), min_size=12, max_size=12))
    size, stride = frames * count, frames * steps
    node = buffer(
        reset="r", buffer_size=size, buffer_dim=0, stride=stride, mode=mode, buffer_padding=padding
    )
    proto = model([node], [info("x", (frames, 2)), info("r", [1], BOOL)])
    stream = Stream(rewrite(proto, tmp_path_factory.mktemp("any")))
    definition = Definition(size, stride, mode, padding, 0)
    for x, reset in zip(noise((frames, 2), len(resets)), resets, strict=True):
        found = stream.run(x=x, r=np.array([reset]))
        assert same(shown(found), definition.push(x, reset))


@pytest.mark.parametrize("elem", [UINT8, 3, 5, 7, 10], ids=["u8", "i8", "i16", "i64", "f16"])
def test_windows_hold_any_element_type(tmp_path: Path, elem: int) -> None:
    """Reset and left filling work for integer and float16 elements."""
    node = buffer(reset="r", buffer_size=3, buffer_dim=1, mode=LEFT)
    proto = model([node], [info("x", (1, 1, 2), elem), info("r", [], BOOL)])
    stream = Stream(rewrite(proto, tmp_path))
    definition = Definition(3, 1, LEFT, 0, 1)
    for number, x in enumerate(noise((1, 1, 2), 7, elem=elem)):
        found = stream.run(x=x, r=np.array(number == 4))
        assert same(shown(found), definition.push(x, number == 4))


@pytest.mark.parametrize(
    ("first", "second"),
    [(BLOCKING, BLOCKING), (BLOCKING, RIGHT), (RIGHT, BLOCKING), (LEFT, LEFT), (BLOCKING, LEFT)],
)
def test_windows_in_series_wait_for_each_other(tmp_path: Path, first: int, second: int) -> None:
    """A window after a blocking one advances only when the first one has a result."""
    stride = 2 if first == BLOCKING else 1
    nodes = [
        buffer("x", "a", buffer_size=4, buffer_dim=1, mode=first, stride=stride),
        helper.make_node("ReduceSum", ["a", "axis"], ["s"], keepdims=1),
        buffer("s", "b", buffer_size=3, buffer_dim=1, mode=second),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    proto = model(nodes, [info("x", (1, 1, 2))], weights={"axis": np.array([1])})
    rewritten = rewrite(proto, tmp_path)
    assert [window.kept.name for window in rewritten.windows] == ["buffer_a", "buffer_b"]
    stream = Stream(rewritten)
    one, two = Definition(4, stride, first, 0, 1), Definition(3, 1, second, 0, 1)
    results = 0
    for x in noise((1, 1, 2), 20):
        window = one.push(x)
        wanted = None if window is None else two.push(window.sum(axis=1, keepdims=True))
        found = stream.run(x=x)
        assert same(negated(found), wanted)
        results += wanted is not None
    assert results > 3


def test_windows_side_by_side_are_all_found(tmp_path: Path) -> None:
    """Two Buffers on one input become two windows with their own states and sizes."""
    nodes = [
        buffer("x", "a", buffer_size=2, buffer_dim=1, mode=RIGHT),
        buffer("x", "b", buffer_size=3, buffer_dim=1, mode=RIGHT),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    stream = Stream(rewrite(model(nodes, [info("x", (1, 1, 2))]), tmp_path))
    short, long = Definition(2, 1, RIGHT, 0, 1), Definition(3, 1, RIGHT, 0, 1)
    for x in noise((1, 1, 2), 6):
        parts = [part for part in (short.push(x), long.push(x)) if part is not None]
        found = stream.run(x=x)
        assert same(shown(found), np.concatenate(parts, axis=1))


def test_frame_by_frame_equals_the_whole_sequence(tmp_path: Path) -> None:
    """Frame by frame, a windowed quantized convolution gives the bits of the whole sequence."""
    rng = np.random.default_rng(3)
    sequence = rng.integers(0, 256, (1, 2, 12)).astype(np.uint8)
    weights = {"w": rng.integers(-128, 128, (4, 2, 5)).astype(np.int8)}
    conv = [helper.make_node("ConvInteger", ["b", "w"], ["y"])]
    (whole,) = plain(model(conv, [info("b", (1, 2, 12), UINT8)], weights=weights), b=sequence)
    nodes = [buffer("x", "b", buffer_size=5, buffer_dim=2), *conv]
    stream = Stream(rewrite(model(nodes, [info("x", (1, 2, 1), UINT8)], weights=weights), tmp_path))
    parts = [stream.run(x=sequence[:, :, at : at + 1]) for at in range(12)]
    assert [part is None for part in parts] == [True] * 4 + [False] * 8
    assert same(np.concatenate([part["y"] for part in parts if part], axis=2), whole)


@pytest.mark.parametrize("mode", [BLOCKING, LEFT, RIGHT])
def test_the_rewritten_file_is_planned(tmp_path: Path, mode: int) -> None:
    """The rewritten model is planned with one persistent buffer per window."""
    node = buffer("x", "b", buffer_size=4, buffer_dim=1, mode=mode)
    proto = model([node, helper.make_node("Neg", ["b"], ["y"])], [info("x", (1, 1, 16))])
    rewritten = rewrite(proto, tmp_path)
    plan = qnnmem.plan(
        qnnmem.load(rewritten.path), options=qnnmem.PoolOptions(states=rewritten.states)
    )
    counter = 64 if mode == LEFT else 0  # 8 bytes, rounded up to the alignment
    assert plan.persistent_bytes == 4 * 16 * 4 + counter
    assert {name for name, _ in plan.io_sizes} == {"x", "y"}


def test_the_description_names_what_a_runtime_needs(tmp_path: Path) -> None:
    """A BufferWindow has its state pair, its numbers, the reset input and the waiting outputs."""
    nodes = [
        buffer(
            "x", "b", "r", name="fold", buffer_size=6, buffer_dim=-2, stride=4, buffer_padding=2
        ),
        helper.make_node("Neg", ["b"], ["y"]),
        helper.make_node("Neg", ["x"], ["z"]),
    ]
    proto = model(nodes, [info("x", (1, 2, 3)), info("r", [], BOOL)], ["y", "z"])
    rewritten = rewrite(proto, tmp_path)
    pair = ("fold_window", "b")
    kept = FrameWindow("fold", *pair, 2, 6, 4, True, 2, "r")
    assert rewritten.windows == (BufferWindow(kept, "b", BLOCKING, 1, None, ("y",)),)
    assert rewritten.states == (pair,)


def test_the_left_window_has_a_counter(tmp_path: Path) -> None:
    """A window that fills from the left has a second state, the number of frames."""
    node = buffer(name="fold", buffer_size=3, buffer_dim=1, mode=LEFT)
    rewritten = rewrite(model([node], [info("x", (1, 1, 2))]), tmp_path)
    (window,) = rewritten.windows
    counter = ("fold_count", "fold_count_next")
    assert rewritten.states == (("fold_window", "fold_window_next"), counter)
    assert ((window.kept.old, window.kept.new), window.result) == (rewritten.states[0], "y")


def test_an_output_of_the_application_is_not_taken_for_state(tmp_path: Path) -> None:
    """A Buffer result that is also a model output stays an output beside the state."""
    node = buffer(name="fold", buffer_size=3, buffer_dim=1, mode=RIGHT)
    rewritten = rewrite(model([node], [info("x", (1, 1, 2))]), tmp_path)
    assert rewritten.states == (("fold_window", "fold_window_next"),)
    assert rewritten.windows[0].result == "y"


def test_new_names_never_collide(tmp_path: Path) -> None:
    """New tensor names never collide with the model's own names."""
    taken = ["fold_window", "fold_window_next", "fold_kept", "fold_starts"]
    nodes = [helper.make_node("Neg", ["x"], [taken[0]])]
    nodes += [helper.make_node("Neg", [a], [b]) for a, b in pairwise(taken)]
    nodes.append(buffer(taken[-1], name="fold", buffer_size=3, buffer_dim=1, mode=RIGHT))
    stream = Stream(rewrite(model(nodes, [info("x", (1, 1, 2))]), tmp_path))
    definition = Definition(3, 1, RIGHT, 0, 1)
    for x in noise((1, 1, 2), 5):
        found = stream.run(x=x)
        assert same(shown(found), definition.push(x))


def test_windows_of_nodes_with_one_name_are_told_apart(tmp_path: Path) -> None:
    """Windows of nodes with equal, very long names get unique, shorter names."""
    nodes = [
        buffer("x", "a", name="n" * 9999, buffer_size=2, buffer_dim=1, mode=RIGHT),
        buffer("a", "y", name="n" * 9999, buffer_size=4, buffer_dim=1, mode=RIGHT),
    ]
    rewritten = rewrite(model(nodes, [info("x", (1, 1, 2))]), tmp_path)
    names = {window.kept.name for window in rewritten.windows}
    assert len(names) == 2
    assert max(map(len, names)) < 300


def test_a_missing_stride_means_the_frames_of_one_execute(tmp_path: Path) -> None:
    """A missing stride defaults to the frames per execution, with a note."""
    node = buffer(buffer_size=4, buffer_dim=1)
    rewritten = rewrite(model([node], [info("x", (1, 2, 2))]), tmp_path)
    assert rewritten.windows[0].kept.stride == 2
    assert "has no stride" in rewritten.notes[0]


def test_quantized_windows_carry_a_note(tmp_path: Path) -> None:
    """A quantized window gets a note, since zero frames mean zero only at zero point 0."""
    node = buffer(buffer_size=4, buffer_dim=1)
    rewritten = rewrite(model([node], [info("x", (1, 1, 2), UINT8)]), tmp_path)
    assert "zero point" in rewritten.notes[0]


def test_an_unknown_attribute_is_noted(tmp_path: Path) -> None:
    """An unknown attribute of a Buffer is ignored with a note."""
    node = buffer(buffer_size=4, buffer_dim=1, strides=2)
    rewritten = rewrite(model([node], [info("x", (1, 1, 2))]), tmp_path)
    assert rewritten.notes == ("Buffer 'buffer_y': unknown attribute 'strides' was ignored",)


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 20])
def test_old_and_new_operator_sets_work(tmp_path: Path, opset: int) -> None:
    """The rewritten ops exist in the model's own operator set, from 7 to 20."""
    node = buffer(buffer_size=3, buffer_dim=1, mode=RIGHT)
    stream = Stream(rewrite(model([node], [info("x", (1, 1, 2))], opset=opset), tmp_path))
    definition = Definition(3, 1, RIGHT, 0, 1)
    for x in noise((1, 1, 2), 5):
        found = stream.run(x=x)
        assert same(shown(found), definition.push(x))


def test_a_model_of_a_buffer_alone_gets_an_operator_set(tmp_path: Path) -> None:
    """A model without any operator set import still gets one and runs."""
    proto = model([buffer(buffer_size=3, buffer_dim=1)], [info("x", (1, 1, 2))])
    del proto.opset_import[:]
    rewritten = rewrite(proto, tmp_path)
    assert Stream(rewritten).run(x=np.ones((1, 1, 2), np.float32)) is None


def test_free_dimensions_are_fixed_by_the_caller(tmp_path: Path) -> None:
    """Open dimensions take the caller's sizes, for the rewrite and for loading."""
    node = buffer("x", "b", buffer_size=4, buffer_dim=1)
    nodes = [node, helper.make_node("Neg", ["b"], ["y"])]
    proto = model(nodes, [info("x", ("batch", 1, 8))])
    rewritten = rewrite(proto, tmp_path, dims={"batch": 3})
    loaded = qnnmem.load(rewritten.path, dims={"batch": 3})
    assert loaded.tensors[rewritten.states[0][0]].shape == (3, 4, 8)


def test_free_dimensions_are_named(tmp_path: Path) -> None:
    """Without sizes, an open dimension is refused by name."""
    node = buffer(buffer_size=4, buffer_dim=1)
    with pytest.raises(FreeDimensions, match="batch"):
        rewrite(model([node], [info("x", ("batch", 1, 8))]), tmp_path)


def test_shapes_behind_control_flow_are_found(tmp_path: Path) -> None:
    """Shapes after an If are measured in a trial run."""
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [info(op, None)])
        for op in ("Neg", "Abs")
    ]
    choose = helper.make_node("If", ["c"], ["a"], then_branch=branches[0], else_branch=branches[1])
    nodes = [choose, buffer("a", buffer_size=2, buffer_dim=1, mode=RIGHT)]
    stream = Stream(rewrite(model(nodes, [info("x", (1, 1, 2)), info("c", [], BOOL)]), tmp_path))
    found = stream.run(x=np.ones((1, 1, 2), np.float32), c=np.array(True))
    assert found is not None
    assert found["y"].tolist() == [[[0, 0], [-1, -1]]]


def test_external_weights_come_along(tmp_path: Path) -> None:
    """The rewritten file contains its external weights."""
    weight = np.arange(2048, dtype=np.float32).reshape(2, 1024)
    nodes = [
        buffer("x", "b", buffer_size=2, buffer_dim=0),
        helper.make_node("Add", ["b", "w"], ["y"]),
    ]
    proto = model(nodes, [info("x", (1, 1024))], weights={"w": weight})
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "out").mkdir()
    rewritten = rewrite_states(path, tmp_path / "out")
    (tmp_path / "w.bin").unlink()
    stream = Stream(rewritten)
    assert stream.run(x=np.ones((1, 1024), np.float32)) is None
    found = stream.run(x=np.ones((1, 1024), np.float32))
    assert same(shown(found), weight + 1)


def test_too_much_external_data_is_refused(tmp_path: Path) -> None:
    """External weights over 1.50 GiB are refused with that limit."""
    rows = MAX_MODEL_BYTES // 4096 + 1
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 4096)  # sparse: takes no disk space
    nodes = [
        buffer("x", "b", buffer_size=2, buffer_dim=0),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    proto = model(nodes, [info("x", (1, rows))])
    tensor = proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[rows, 1024])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    assert "1.50 GiB" in refused(proto, tmp_path)


def test_a_model_without_state_is_left_alone(tmp_path: Path) -> None:
    """A model without state is returned unread and unchanged."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model at all")
    assert rewrite_states(path, tmp_path / "missing", keep_rnn_state=True) == Rewritten(path)


def test_a_mention_of_the_domain_is_no_state(tmp_path: Path) -> None:
    """A model that imports the vendor's domain without a Buffer is returned unchanged."""
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (1,))])
    assert rewrite(proto, tmp_path).path == tmp_path / "m.onnx"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Rewriting into the model's own folder is refused, and the model is kept."""
    path = save(model([buffer(buffer_size=2, buffer_dim=0)], [info("x", (1, 2))]), tmp_path)
    before = path.read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        rewrite_states(path, tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_a_folder_that_is_not_there_is_an_answer(tmp_path: Path) -> None:
    """A missing output folder raises OutputError."""
    path = save(model([buffer(buffer_size=2, buffer_dim=0)], [info("x", (1, 2))]), tmp_path)
    with pytest.raises(OutputError, match="cannot be written"):
        rewrite_states(path, tmp_path / "missing")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"buffer_size": 7}, "not a multiple of the 2 frames"),
        ({"buffer_size": 0}, "allowed: 1 to"),
        ({"buffer_size": -4}, "allowed: 1 to"),
        ({"buffer_size": 2**62}, "allowed: 1 to"),
        ({"buffer_size": 2**20}, "over the limit of 256"),
        ({"buffer_size": 4.0}, "buffer_size that is not an integer"),
        ({"buffer_size": "4"}, "buffer_size that is not an integer"),
        ({"buffer_size": [4, 4]}, "buffer_size that is not an integer"),
        ({"buffer_size": None}, "lacks buffer_size"),
        ({"buffer_dim": None}, "lacks buffer_dim"),
        ({"buffer_dim": 3}, "has only 3 dimensions"),
        ({"buffer_dim": -4}, "has only 3 dimensions"),
        ({"stride": 1}, "stride 1"),
        ({"stride": 3}, "stride 3"),
        ({"stride": 6}, "stride 6"),
        ({"stride": -(2**63)}, "stride -9223372036854775808"),
        ({"mode": 3}, "has mode 3"),
        ({"mode": -1}, "has mode -1"),
        ({"mode": LEFT, "stride": 4}, "its stride must be 2, not 4"),
        ({"mode": RIGHT, "stride": 4}, "its stride must be 2, not 4"),
        ({"buffer_padding": -1}, "buffer_padding -1"),
        ({"buffer_padding": 5}, "buffer_padding 5"),
    ],
)
def test_bad_attributes_are_refused(tmp_path: Path, attributes: dict[str, Any], words: str) -> None:
    """A Buffer attribute outside its range is refused with the op's name and the number."""
    given = {"buffer_size": 4, "buffer_dim": 1, **attributes}
    node = buffer(**{name: value for name, value in given.items() if value is not None})
    reason = refused(model([node], [info("x", (1, 2, 300))]), tmp_path)
    assert reason.startswith("Buffer 'buffer_y' ")
    assert words in reason


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [([], ["y"]), ([""], ["y"]), (["x", "", "x"], ["y"]), (["x"], ["y", "z"])],
)
def test_a_buffer_of_a_wrong_form_is_refused(
    tmp_path: Path, inputs: list[str], outputs: list[str]
) -> None:
    """A Buffer with missing inputs or extra outputs is refused."""
    node = helper.make_node(
        "Buffer", inputs, outputs, domain="qti_aisw", buffer_size=2, buffer_dim=0
    )
    assert "needs" in refused(model([node], [info("x", (1, 2))]), tmp_path)


def test_an_empty_input_is_refused(tmp_path: Path) -> None:
    """A Buffer on an empty input is refused, since it adds no frames."""
    node = buffer(buffer_size=2, buffer_dim=0)
    assert "adds no frames" in refused(model([node], [info("x", (0, 2))]), tmp_path)


@pytest.mark.parametrize(
    "reset", [info("r", [], FLOAT), info("r", [2], BOOL)], ids=["float", "two values"]
)
def test_reset_must_be_one_bool(tmp_path: Path, reset: onnx.ValueInfoProto) -> None:
    """A reset input that is not a single bool is refused."""
    node = buffer(reset="r", buffer_size=2, buffer_dim=0)
    assert "names 'r' as its reset input" in refused(
        model([node], [info("x", (1, 2)), reset]), tmp_path
    )


def test_reset_must_come_from_outside(tmp_path: Path) -> None:
    """A reset that the model computes is refused, since the runtime needs it before the run."""
    nodes = [
        helper.make_node("Not", ["q"], ["r"]),
        buffer(reset="r", buffer_size=2, buffer_dim=0),
    ]
    proto = model(nodes, [info("x", (1, 2)), info("q", [], BOOL)])
    assert "must be a model input" in refused(proto, tmp_path)


@pytest.mark.parametrize(("mode", "opset", "need"), [(LEFT, 11, 12), (RIGHT, 8, 9)])
def test_a_too_old_operator_set_is_named(tmp_path: Path, mode: int, opset: int, need: int) -> None:
    """An operator set without a needed op is refused with the first set that has it."""
    node = buffer(reset="r", buffer_size=2, buffer_dim=0, mode=mode)
    proto = model([node], [info("x", (1, 2)), info("r", [], BOOL)], opset=opset)
    assert f"needs ONNX operator set {need}" in refused(proto, tmp_path)


def test_a_buffer_in_a_branch_is_refused(tmp_path: Path) -> None:
    """A Buffer in a branch is refused, since its state would advance only sometimes."""
    node = buffer("x", "t", buffer_size=2, buffer_dim=0)
    then = helper.make_graph([node], "then", [], [info("t", None)])
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "else", [], [info("e", None)]
    )
    choose = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    proto = model([choose], [info("x", (1, 2)), info("c", [], BOOL)])
    assert "is in a branch" in refused(proto, tmp_path)


def test_many_buffers_are_refused(tmp_path: Path) -> None:
    """A model with 300 Buffer ops is refused."""
    nodes = [buffer(f"t{i}", f"t{i + 1}", buffer_size=2, buffer_dim=0) for i in range(300)]
    assert "300 Buffer ops" in refused(model(nodes, [info("t0", (1, 2))], ["t300"]), tmp_path)


def complaint(path: Path, out: Path) -> str:
    """Return the error about a file; empty if the file is accepted."""
    try:
        rewrite_states(path, out, keep_rnn_state=True)
    except QnnMemError as exc:
        return str(exc)
    return ""


def test_damaged_files_give_a_sentence(tmp_path: Path) -> None:
    """A damaged file is rewritten or refused with a one-line QnnMemError."""
    node = buffer("x", "b", "r", buffer_size=4, buffer_dim=1, mode=LEFT)
    nodes = [node, helper.make_node("Neg", ["b"], ["y"])]
    blob = model(nodes, [info("x", (1, 1, 2)), info("r", [], BOOL)]).SerializeToString()
    rng = np.random.default_rng(5)
    refusals = 0
    for number in range(40):
        damaged = bytearray(blob)
        for at in rng.integers(0, len(blob), 2):
            damaged[at] = int(rng.integers(0, 256))
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(damaged if number % 4 else damaged[: int(rng.integers(1, len(blob)))])
        out = tmp_path / f"out{number}"
        out.mkdir()
        lines = complaint(path, out).splitlines()
        assert len(lines) <= 1
        refusals += len(lines)
    assert refusals > 5


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, WIDTH = 6, 5
SEQUENCE = np.random.default_rng(7).standard_normal((10, 1, WIDTH)).astype(np.float32)


def cell(op: str, inputs: Sequence[str] = (), outputs: Sequence[str] = ("y",), **more: Any) -> Any:
    """Return a recurrent node on x."""
    names = ["x", "w", "r", "b", *inputs]
    return helper.make_node(op, names, list(outputs), name="cell", hidden_size=HIDDEN, **more)


def recurrent(
    nodes: Sequence[onnx.NodeProto],
    length: int = 1,
    outputs: Sequence[str] = ("y",),
    inputs: Sequence[str] = (),
    stored: Mapping[str, Array] | None = None,
    directions: int = 1,
) -> onnx.ModelProto:
    """Return a recurrent model with seeded weights."""
    rng = np.random.default_rng(8)
    rows = HIDDEN * max(GATES.get(node.op_type, 0) for node in nodes)
    shapes = {"w": (directions, rows, WIDTH), "r": (directions, rows, HIDDEN)}
    shapes["b"] = (directions, 2 * rows)  # type: ignore[assignment]  # rank differs
    weights = {n: rng.standard_normal(s).astype(np.float32) / 2 for n, s in shapes.items()}
    extra = [info(name, (1, 1, HIDDEN)) for name in inputs]
    given = [info("x", (length, 1, WIDTH)), *extra]
    return model(nodes, given, outputs, {**weights, **(stored or {})})


def frame_by_frame(stream: Stream) -> Array:
    """Return the concatenated outputs of single-frame runs."""
    parts = [stream.run(x=SEQUENCE[at : at + 1]) for at in range(len(SEQUENCE))]
    return np.concatenate([part["y"] for part in parts if part is not None])


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_kept_state_continues_the_sequence(tmp_path: Path, op: str) -> None:
    """With kept state, ten single frames give the bits of one run over ten frames."""
    (whole,) = plain(recurrent([cell(op)], 10), x=SEQUENCE)
    stream = Stream(rewrite(recurrent([cell(op)]), tmp_path, keep_rnn_state=True))
    assert same(frame_by_frame(stream), whole)


def test_kept_state_of_a_plain_rnn_continues_the_sequence(tmp_path: Path) -> None:
    """With kept state, a plain RNN matches within rounding, since its kernel sums differently."""
    (whole,) = plain(recurrent([cell("RNN")], 10), x=SEQUENCE)
    stream = Stream(rewrite(recurrent([cell("RNN")]), tmp_path, keep_rnn_state=True))
    np.testing.assert_allclose(frame_by_frame(stream), whole, rtol=0, atol=1e-5)


def test_state_is_only_kept_if_asked_for(tmp_path: Path) -> None:
    """Without `keep_rnn_state`, an RNN starts anew in each execution, as ONNX defines."""
    assert rewrite(recurrent([cell("LSTM")]), tmp_path) == Rewritten(tmp_path / "m.onnx")


def test_the_state_of_an_lstm_is_two_pairs(tmp_path: Path) -> None:
    """An LSTM has two states, named after its node, in the persistent pool."""
    rewritten = rewrite(recurrent([cell("LSTM")]), tmp_path, keep_rnn_state=True)
    assert rewritten.states == (("cell_h", "cell_h_next"), ("cell_c", "cell_c_next"))
    plan = qnnmem.plan(
        qnnmem.load(rewritten.path), options=qnnmem.PoolOptions(states=rewritten.states)
    )
    assert plan.persistent_bytes == 2 * 64


def test_a_last_state_that_is_read_stays_readable(tmp_path: Path) -> None:
    """A last state that is also a model output keeps its name; the state gets a copy."""
    proto = recurrent([cell("GRU", outputs=["y", "last"])], outputs=["y", "last"])
    rewritten = rewrite(proto, tmp_path, keep_rnn_state=True)
    assert rewritten.states == (("cell_h", "cell_h_next"),)
    found = Stream(rewritten).run(x=SEQUENCE[:1])
    assert found is not None
    assert sorted(found) == ["last", "y"]


def test_zeros_by_any_road_are_a_start_from_zero(tmp_path: Path) -> None:
    """A start from stored or computed zeros is replaced by the kept state."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["blank"]),
        helper.make_node("Identity", ["blank"], ["c0"]),
        cell("LSTM", ["", "h0", "c0"]),
    ]
    stored = {"h0": np.zeros((1, 1, HIDDEN), np.float32), "shape": np.array([1, 1, HIDDEN])}
    rewritten = rewrite(recurrent(nodes, stored=stored), tmp_path, keep_rnn_state=True)
    (whole,) = plain(recurrent([cell("LSTM")], 10), x=SEQUENCE)
    assert same(frame_by_frame(Stream(rewritten)), whole)


def test_state_that_is_explicit_already_is_left_alone(tmp_path: Path) -> None:
    """A node whose state comes from a model input is left unchanged, with a note."""
    proto = recurrent([cell("GRU", ["", "h"], ["y", "hn"])], outputs=["y", "hn"], inputs=["h"])
    rewritten = rewrite(proto, tmp_path, keep_rnn_state=True)
    assert (rewritten.path, rewritten.states) == (tmp_path / "m.onnx", ())
    assert "starts from tensor 'h'" in rewritten.notes[0]


def test_a_start_from_other_numbers_is_left_alone(tmp_path: Path) -> None:
    """A node that starts from nonzero values is left unchanged, with a note."""
    stored = {"h0": np.ones((1, 1, HIDDEN), np.float32)}
    proto = recurrent([cell("GRU", ["", "h0"])], stored=stored)
    rewritten = rewrite(proto, tmp_path, keep_rnn_state=True)
    assert rewritten.path == tmp_path / "m.onnx"
    assert "not a constant zero" in rewritten.notes[0]


@pytest.mark.parametrize(("way", "directions"), [("bidirectional", 2), ("reverse", 1)])
def test_state_from_the_future_is_refused(tmp_path: Path, way: str, directions: int) -> None:
    """A node that reads the sequence backwards is refused."""
    proto = recurrent([cell("LSTM", direction=way)], directions=directions)
    assert "runs backwards" in refused(proto, tmp_path, keep_rnn_state=True)


def test_an_rnn_in_a_branch_is_noted(tmp_path: Path) -> None:
    """An RNN in a branch keeps no state, and a note says so."""
    then = helper.make_graph([cell("GRU", outputs=["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([cell("GRU", outputs=["e"])], "else", [], [info("e", None)])
    choose = helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other)
    proto = recurrent([cell("GRU"), choose], outputs=["y", "z"])
    proto.graph.input.append(info("c", [], BOOL))
    rewritten = rewrite(proto, tmp_path, keep_rnn_state=True)
    assert rewritten.states == (("cell_h", "cell_h_next"),)
    assert rewritten.notes == (
        ("the state of 2 RNN nodes in branches, loops or functions is not kept"),
    )


def test_a_window_before_an_rnn_gates_its_state(tmp_path: Path) -> None:
    """Behind a window, the hidden state advances once per full window."""
    nodes = [buffer("f", "x", buffer_size=2, buffer_dim=0, stride=2), cell("GRU")]
    proto = recurrent(nodes)
    proto.graph.input[0].CopyFrom(info("f", (1, 1, WIDTH)))
    rewritten = rewrite(proto, tmp_path, keep_rnn_state=True)
    assert rewritten.windows[0].gated == ("y", "cell_h_next")
    stream = Stream(rewritten)
    parts = [stream.run(f=SEQUENCE[at : at + 1]) for at in range(10)]
    (whole,) = plain(recurrent([cell("GRU")], 10), x=SEQUENCE)
    assert same(np.concatenate([part["y"] for part in parts if part is not None]), whole)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("hidden", [0, -1, 1 << 40])
def test_a_hostile_hidden_size_is_refused(tmp_path: Path, op: str, hidden: int) -> None:
    """A hidden size of 0, -1 or 2**40 is refused."""
    node = cell(op)
    next(found for found in node.attribute if found.name == "hidden_size").i = hidden
    assert refused(recurrent([node]), tmp_path, keep_rnn_state=True)
