"""Proposed sizes are tried in a run first; sizes that do not fit are named."""

from pathlib import Path

import numpy
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from qnnmem.errors import FreeDimensions, LoadError, Setting
from qnnmem.flags import flag
from qnnmem.loader.onnx import read
from qnnmem.loader.onnx.graph import OnnxGraph
from qnnmem.loader.onnx.sizes.free_dimensions import find_open_inputs

HEAD = '<ir_version: 8, opset_import: ["" : 18, "custom" : 1]>'


def save(folder: Path, text: str) -> Path:
    """Write a model given as text and return its path."""
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString())
    return path


def settings(error: LoadError) -> dict[str, dict[str, object]]:
    """Return the settings of an error as arguments of `read`."""
    found: dict[str, dict[str, object]] = {}
    for setting in error.settings:
        name, _, text = setting.value.rpartition("=")
        value: object = int(text) if setting.name != "shapes" else tuple(map(int, text.split("x")))
        found.setdefault(setting.name, {})[name] = value
    return found


def recurrent(folder: Path, *, batch: int | str = "batch", state: int | str = "batch") -> Path:
    """Write an LSTM whose state is an input; shape inference ignores the state's size."""
    weights = {
        "W": numpy.zeros((1, 16, 8), "float32"),
        "R": numpy.zeros((1, 16, 4), "float32"),
        "none": numpy.zeros(0, "int64"),
    }
    node = helper.make_node(
        "LSTM", ["x", "W", "R", "", "", "h", "c"], ["y", "hn", "cn"], hidden_size=4
    )
    real = TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", real, ["time", batch, 8]),
            helper.make_tensor_value_info("h", real, [1, state, 4]),
            helper.make_tensor_value_info("c", real, [1, state, 4]),
        ],
        [helper.make_tensor_value_info(name, real, None) for name in ("y", "hn", "cn")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = folder / "lstm.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


# Two convolutions without padding need at least 5 samples.
LONG = """
    g (float[1,1,N] x) => (float[1,1,M] y) <float[1,1,3] w = {1,2,3}> {
        a = Conv(x, w) y = Conv(a, w)
    }
"""


def test_what_is_recommended_works(tmp_path: Path) -> None:
    """The sizes that the message proposes are enough to read the model."""
    path = recurrent(tmp_path)
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    assert not caught.value.untried
    assert "fix them, e.g. with " in str(caught.value)
    assert read(path, **settings(caught.value)).tensors["y"].shape[3] == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("signature", "nodes", "wanted"),
    [
        # The weight gives the size; an audio window has a least length; a product must match.
        ("float[N,?] x", "y = MatMul(x, w)", "x=1x6"),
        ("float[a,b] x", "y = MatMul(x, w)", "b=6"),
        ("float[1,?] x", "t = Transpose<perm=[1,0]>(x) y = MatMul(t, v)", "x=1x"),
        ("float[?,C,H,W] x", "y = Conv(x, k)", "x=1x5x"),
    ],
)
def test_sizes_that_weights_ask_for_are_found(
    tmp_path: Path, signature: str, nodes: str, wanted: str
) -> None:
    """The proposed sizes satisfy the model's weights and let it be read."""
    path = save(tmp_path, f"g ({signature}) => (float y) {{ {nodes} }}")
    model = onnx.load(path)
    for name, shape in (("w", (6, 2)), ("v", (1, 2)), ("k", (7, 5, 3, 3))):
        array = numpy.zeros(shape, "float32")
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    assert not caught.value.untried
    assert wanted in caught.value.sentence(flag)
    read(path, **settings(caught.value))  # type: ignore[arg-type]


def test_what_cannot_be_tried_is_called_a_guess(tmp_path: Path) -> None:
    """If no tried size works, the message calls its proposal an untested guess."""
    path = save(tmp_path, "g (float[N,2] x) => (float[N,3] y) <float[5,3] w> { y = MatMul(x, w) }")
    model = onnx.load(path)
    array = numpy.zeros((5, 3), "float32")
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(array, "w"))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    said = str(caught.value)
    assert "an untested guess is " in said
    assert said.endswith(": the model did not run with any of the sizes tried")
    assert "e.g. with" not in str(caught.value)


def test_an_operator_that_nobody_runs_is_shaped_only(tmp_path: Path) -> None:
    """If onnxruntime cannot run the model, the proposed sizes at least pass shape inference."""
    path = save(
        tmp_path, "g (float[N,2] x) => (float[N,2] y) { z = Relu(x) s = custom.Own(z) y = Neg(z) }"
    )
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    read(path, **settings(caught.value))  # type: ignore[arg-type]


def test_a_state_that_onnxruntime_refuses_is_no_plan(tmp_path: Path) -> None:
    """A state size that only onnxruntime rejects is refused, and the proposed size works."""
    path = recurrent(tmp_path)
    with pytest.raises(LoadError, match=r"'h' cannot have shape 1x8x4 .*initial_h") as caught:
        read(path, shapes={"x": (1, 1, 8), "h": (1, 8, 4), "c": (1, 1, 4)})
    assert settings(caught.value)["shapes"]["h"] == (1, 1, 4)
    free = recurrent(tmp_path, state="other")
    with pytest.raises(
        LoadError,
        match=(
            r"other of input 'h' cannot be 8 \(onnxruntime rejects these sizes: LSTM: Input "
            r"initial_h"
        ),
    ) as caught:
        read(free, dims={"time": 2, "batch": 1, "other": 8})
    read(free, **settings(caught.value))  # type: ignore[arg-type]


def test_a_file_with_wrong_states_of_its_own_is_refused_too(tmp_path: Path) -> None:
    """A file whose own fixed sizes onnxruntime rejects is refused."""
    path = recurrent(tmp_path, batch=1, state=2)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    path.write_bytes(model.SerializeToString())
    with pytest.raises(LoadError, match="onnxruntime rejects these sizes: LSTM"):
        read(path)


@pytest.mark.parametrize("given", [1, 2, 4])
def test_a_size_that_is_too_small_is_named_with_the_least_that_fits(
    tmp_path: Path, given: int
) -> None:
    """A size that is too small is refused with the least size that works."""
    path = save(tmp_path, LONG)
    with pytest.raises(LoadError) as caught:
        read(path, dims={"N": given})
    assert f"N of input 'x' is {given} but must be at least 5" in str(caught.value)
    assert caught.value.settings == (Setting("dims", "N=5"),)
    assert read(path, dims={"N": 5}).tensors["y"].shape == (1, 1, 1)


def test_a_size_that_is_too_large_is_named_with_the_most_that_fits(tmp_path: Path) -> None:
    """A size above a table's 512 positions is refused with the largest size that works."""
    path = save(
        tmp_path,
        """g (float[1,N] x) => (float[1,N] y) <int64 zero = {0}, int64 one = {1}> {
            s = Shape<start=1>(x) n = Squeeze(s) r = Range(zero, n, one)
            p = Gather<axis=0>(table, r) y = Add(x, p)
        }""",
    )
    model = onnx.load(path)
    table = numpy.zeros(512, "float32")
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(LoadError, match="N of input 'x' is 600 but must be at most 512"):
        read(path, dims={"N": 600})


SWITCHED = """
    g (float[1,N] x, int64 sr) => (float[1,M] y) <int64 rate = {16000}, int64[2] half = {1, -1}> {
        c = Equal(sr, rate)
        y = If (c) <
            then_branch = t () => (float[1,A] a) { a = Relu(x) },
            else_branch = e () => (float[1,B] b) {
                <int64[2] sizes = {-1, 100}>
                r = Reshape(x, sizes) b = Identity(r)
            }
        >
    }
"""


def test_an_input_that_decides_a_branch_is_given_a_value(tmp_path: Path) -> None:
    """For an input that selects a branch, the constant it is compared with is proposed."""
    path = save(
        tmp_path,
        SWITCHED.replace("<int64[2] sizes = {-1, 100}>", "sizes = Constant<value_ints=[1, 100]>()"),
    )
    switches = find_open_inputs(OnnxGraph.of(onnx.load(path).graph)).switches
    assert [(switch.input, switch.candidates) for switch in switches] == [("sr", (16000, 8000))]
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    assert settings(caught.value)["values"] == {"sr": 16000}
    with pytest.raises(
        LoadError, match=("'sr' decides which branch is taken; the model runs with")
    ) as hard:
        read(path, dims={"N": 64})
    assert settings(hard.value) == {"dims": {"N": 64}, "values": {"sr": 16000}}
    assert read(path, **settings(hard.value)).inputs == ("x",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float[height,width,channel] image", (224, 224, 3)),
        ("float[batch,img_h,img_w,channels] x", (1, 224, 224, 3)),
        ("float[B,C,T] x", (1, 1, 128)),
        ("float[batch,4,past_decoder_sequence_length,36] past", (1, 4, 128, 36)),
        ("float[batch,num_samples] x", (1, 16000)),
        ("float[B,N] waveforms", (1, 16000)),
        ("int64[B,N] waveforms_lens", (1, 128)),
        ("float[B,N] x", (1, 128)),
        ("float[N,M1,M2,3] x", (1, 224, 224, 3)),
    ],
)
def test_what_a_dimension_is_called_weighs_more_than_where_it_stands(
    tmp_path: Path, given: str, expected: tuple[int, ...]
) -> None:
    """A dimension's name decides its proposed size; its position counts less."""
    name = given.split()[-1]
    kind = given.split("[")[0]
    path = save(tmp_path, f"g ({given}) => ({kind}[z] y) {{ y = Identity({name}) }}")
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    assert not caught.value.untried
    model = read(path, **settings(caught.value))  # type: ignore[arg-type]
    assert model.tensors[name].shape == expected


def test_the_largest_result_of_nonzero_is_stated_as_a_number(tmp_path: Path) -> None:
    """The largest shape of a NonZero result is proposed as numbers."""
    text = "g (float[4,6] x) => (int64[a,b] y) { i = NonZero(x) y = Neg(i) }"
    with pytest.raises(LoadError) as caught:
        read(save(tmp_path, text))
    assert caught.value.sentence(flag).endswith("--shape i=2x24")
    assert read(save(tmp_path, text), shapes={"i": (2, 24)}).tensors["y"].shape == (2, 24)


def voice(folder: Path) -> Path:
    """Write an audio model with filters for two sample rates."""
    branches = {
        name: helper.make_graph(
            [helper.make_node("Conv", ["sound", kernel], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, kernel in (("then_branch", "long"), ("else_branch", "short"))
    }
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["c"]),
        helper.make_node("Unsqueeze", ["x", "one"], ["sound"]),
        helper.make_node("If", ["c"], ["h"], **branches),
        helper.make_node("ReduceMean", ["h", "two"], ["y"]),
    ]
    weights = {
        **{"rate": numpy.array(16000), "one": numpy.array([1]), "two": numpy.array([2])},
        **{"long": numpy.ones((1, 1, 160), "f4"), "short": numpy.ones((1, 1, 80), "f4")},
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence"]),
            helper.make_tensor_value_info("sr", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = folder / "voice.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_window_goes_with_its_sample_rate(tmp_path: Path) -> None:
    """The proposal pairs each window length with its sample rate: 512 at 16 kHz, 256 at 8 kHz."""
    path = voice(tmp_path)
    with pytest.raises(FreeDimensions) as caught:
        read(path)
    said = caught.value.sentence(flag)
    assert "--dim sequence=512 --value sr=16000" in said
    assert said.endswith("; these values also worked together: --dim sequence=256 --value sr=8000")
    with pytest.raises(FreeDimensions) as slow:
        read(path, values={"sr": 8000})
    assert settings(slow.value) == {"dims": {"batch": 1, "sequence": 256}, "values": {"sr": 8000}}
