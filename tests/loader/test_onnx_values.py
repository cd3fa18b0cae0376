"""Inputs with a given value become constants, which are folded and pruned."""

from pathlib import Path

import numpy
import onnx
import onnx.parser
import pytest

from qnnmem import load
from qnnmem.errors import FreeDimensions, LoadError, QnnMemError, UsageError
from qnnmem.loader.onnx import read
from qnnmem.loader.onnx.inputs import InputValue, constant_input

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
# As in voice detectors: a sample rate selects the branch.
SWITCHED = """
    g (float[1,N] x, int64 sr) => (float[1,M] y) <int64 rate = {16000}> {
        c = Equal(sr, rate)
        y = If (c) <
            then_branch = t () => (float[1,A] a) { a = Relu(x) },
            else_branch = e () => (float[1,B] b) { b = Concat<axis=1>(x, x) }
        >
    }
"""


def save(folder: Path, text: str) -> Path:
    """Write a model given as text and return its path."""
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString())
    return path


def given(kind: str, value: InputValue) -> numpy.ndarray:
    """Return the constant that an input of a type such as `int64[2]` becomes."""
    model = onnx.parser.parse_model(f"{HEAD} g ({kind} v) => ({kind} w) {{ w = Identity(v) }}")
    tensor = constant_input(model.graph.input[0], value)
    assert tensor.name == "v"
    return onnx.numpy_helper.to_array(tensor)


def test_a_value_takes_away_the_branch_that_is_not_taken(tmp_path: Path) -> None:
    """A given value removes its input and the branch that it does not select."""
    path = save(tmp_path, SWITCHED)
    taken = read(path, dims={"N": 4}, values={"sr": 16000})
    assert taken.inputs == ("x",)
    assert [op.type for op in taken.ops] == ["Relu"]
    other = load(path, dims={"N": 4}, values={"sr": 8000})
    assert [op.type for op in other.ops] == ["Concat"]
    assert other.tensors["y"].shape == (1, 8)


@pytest.mark.parametrize(
    "chain",
    [
        "k = Not(c) n = Not(k) on = And(n, c)",
        "k = Cast<to=6>(c) n = Cast<to=9>(k) on = Identity(n)",
        "s = Shape(x) f = Gather<axis=0>(s, one) e = Equal(f, four) on = And(c, e)",
    ],
)
def test_conditions_follow_values_and_shapes(tmp_path: Path, chain: str) -> None:
    """A branch is selected by any chain of ops on given values and shapes."""
    path = save(
        tmp_path,
        f"""g (float[1,4] x, bool[1] c) => (float[1,M] y) <int64 one = {{1}}, int64 four = {{4}}> {{
            {chain}
            y = If (on) <
                then_branch = t () => (float[1,A] a) {{ a = Relu(x) }},
                else_branch = e () => (float[1,B] b) {{
                    b = If (on) <
                        then_branch = tt () => (float[1,C] p) {{ p = Neg(x) }},
                        else_branch = ee () => (float[1,D] q) {{ q = Exp(x) }}
                    >
                }}
            >
        }}""",
    )
    assert [op.type for op in read(path, values={"c": True}).ops] == ["Relu"]
    assert [op.type for op in read(path, values={"c": False}).ops] == ["Exp"]


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("int64", 7, numpy.array(7, "int64")),
        ("int64[1]", 7, numpy.array([7], "int64")),
        ("int32[2,2]", 7, numpy.full((2, 2), 7, "int32")),
        ("int64[N]", 7, numpy.array([7], "int64")),
        ("int64[N]", (1, 2, 3), numpy.array([1, 2, 3], "int64")),
        ("int64[2,N]", (1, 2, 3, 4), numpy.array([[1, 2], [3, 4]], "int64")),
        ("bool", True, numpy.array(True)),
        ("bool[2]", (False, True), numpy.array([False, True])),
        ("bool", 1, numpy.array(True)),
        ("float", 0.5, numpy.array(0.5, "float32")),
        ("float16[2]", (1, 2.5), numpy.array([1, 2.5], "float16")),
        ("uint8[2]", numpy.array([3, 4]), numpy.array([3, 4], "uint8")),
        ("float[N,2]", [[1, 2], [3, 4]], numpy.array([[1, 2], [3, 4]], "float32")),
    ],
)
def test_a_value_takes_type_and_shape_of_the_input(
    kind: str, value: InputValue, wanted: numpy.ndarray
) -> None:
    """One number fills a known shape, several are the elements, an array keeps its shape."""
    found = given(kind, value)
    assert found.dtype == wanted.dtype
    numpy.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("int64", 1.5, "needs whole numbers (int64), not 1.5"),
        ("uint8", 300, "needs whole numbers (uint8), not 300"),
        ("uint8", -1, "needs whole numbers (uint8), not -1"),
        ("bool", 2, "needs true or false, not 2"),
        ("int64", True, "has type int64, but its value is true or false"),
        ("float16", 1e9, "too large for float16"),
        ("int64", float("nan"), "needs whole numbers (int64)"),
        ("int64[2]", (1, 2, 3), "has 3 elements, but the input's shape is 2"),
        ("int64", (1, 2), "has 2 elements, but the input's shape is scalar"),
        ("int64[2,2]", [[1, 2, 3]], "has shape 1x3, but the input's shape is 2x2"),
        ("int64", 1 << 70, "which is not a number of a known type"),
        ("int64", "seven", "is 'seven', which is not a number of a known type"),
        ("int64[N]", [[1], [2, 3]], "which is not a number of a known type"),
    ],
)
def test_a_value_that_the_input_cannot_hold_is_refused(
    kind: str, value: InputValue, words: str
) -> None:
    """A value that the input cannot hold raises UsageError with the input's name."""
    with pytest.raises(UsageError) as caught:
        given(kind, value)
    assert words in str(caught.value)
    assert "'v'" in str(caught.value)


def test_values_come_from_files(tmp_path: Path) -> None:
    """A .npy file supplies its shape; any other file supplies the raw elements."""
    kind = "int32[N,2]"
    numpy.save(tmp_path / "v.npy", numpy.array([[1, 2], [3, 4]], "int64"))
    numpy.array([1, 2, 3, 4], "int32").tofile(tmp_path / "v.raw")
    for name in ("v.npy", "v.raw"):
        assert given(kind, tmp_path / name).tolist() == [[1, 2], [3, 4]]
    numpy.array([1, 2, 3], "int32").tofile(tmp_path / "v.raw")
    numpy.save(tmp_path / "v.npy", numpy.array([1, 2, 3]))
    (tmp_path / "bad.npy").write_bytes(b"no array")
    numpy.save(tmp_path / "text.npy", numpy.array(["a"]))
    for name in ("v.npy", "v.raw", "bad.npy", "text.npy", "absent.npy", "absent.raw"):
        with pytest.raises(QnnMemError) as caught:
            given(kind, tmp_path / name)
        assert "\n" not in str(caught.value)
    (tmp_path / "v.raw").write_bytes(b"123")
    with pytest.raises(UsageError, match=r"3 bytes is not a multiple of the int32"):
        given(kind, tmp_path / "v.raw")


def test_an_unknown_input_is_named_with_the_one_that_is_meant(tmp_path: Path) -> None:
    """An unknown input name gets a suggestion and the list of inputs."""
    path = save(tmp_path, SWITCHED)
    with pytest.raises(UsageError, match=r"no input 'SR'; did you mean 'sr'\?"):
        read(path, dims={"N": 4}, values={"SR": 1})
    with pytest.raises(UsageError, match=r"no input 'rate'; .*the inputs are 'x', 'sr'"):
        read(path, dims={"N": 4}, values={"rate": 1})
    with pytest.raises(UsageError, match=r"no dimension 'n'; did you mean 'N'\?"):
        read(path, dims={"n": 4})


def test_the_shape_of_a_value_or_an_input_tells_named_dimensions(tmp_path: Path) -> None:
    """A shape or a value given for one input also fixes its named dimensions elsewhere."""
    path = save(tmp_path, "g (float[N,2] x, int64[N] v) => (float[N,2] y, int64[N] w) "
                "{ y = Relu(x) w = Identity(v) }")  # fmt: skip
    assert read(path, values={"v": (1, 2, 3)}).tensors["y"].shape == (3, 2)
    assert read(path, shapes={"x": (5, 2)}).tensors["w"].shape == (5,)
    with pytest.raises(FreeDimensions):
        read(path)


def test_a_shape_and_a_value_go_together(tmp_path: Path) -> None:
    """A given shape and a given value combine for the same input."""
    path = save(
        tmp_path, "g (float[3] x, float[N] v) => (float[3] y) { a = Add(x, v) y = Relu(a) }"
    )
    model = read(path, values={"v": 2}, shapes={"v": (3,)})
    assert model.constants == ("v",)
    assert model.tensors["v"].shape == (3,)


def test_values_are_for_onnx_models(tmp_path: Path) -> None:
    """A value for a model that is not ONNX raises UsageError."""
    path = tmp_path / "a.csv"
    path.write_text("id,lower,upper,size\na,0,1,8\n")
    with pytest.raises(UsageError, match="not an ONNX model; values needs one"):
        load(path, values={"a": 1})


def test_inputs_without_numbers_take_no_value(tmp_path: Path) -> None:
    """An input of strings is refused before its value is used."""
    path = save(tmp_path, "g (string s, float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(LoadError, match="holds strings"):
        read(path, values={"s": 1})


def test_an_input_that_says_a_shape_can_be_given_a_value(tmp_path: Path) -> None:
    """The error names the input that decides a shape; giving its value fixes the shape."""
    path = save(tmp_path, "g (float[1,2] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }")
    cure = r"set 's' to a value with values=\{'s': VALUE\}, or set its largest shape with shapes="
    with pytest.raises(LoadError, match=cure):
        read(path)
    assert read(path, values={"s": (3, 2)}).tensors["y"].shape == (3, 2)
