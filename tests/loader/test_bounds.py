"""Every reader refuses a model with nothing to run and a tensor with too many dimensions."""

from __future__ import annotations

import json
from pathlib import Path

import onnx.parser
import pytest
from tflite_writer import FLOAT32, INT32, G, O, T, tflite_bytes

import qnnmem
from qnnmem.errors import LoadError, UsageError
from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.loader.dlc.model import as_model
from qnnmem.loader.dlc.program import Composed
from qnnmem.loader.model_checks import check_model
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedOp, ComposedTensor
from qnnmem.units import MAX_BYTES, MAX_RANK
from qnnmem.wire import decode, encode

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '
MANY = (1,) * (MAX_RANK + 1)


def relu(shape: tuple[int, ...], signature: tuple[int, ...] = ()) -> bytes:
    """Return a TFLite model of one operator."""
    tensors = (T("in", shape, FLOAT32, signature=signature), T("out", shape, signature=signature))
    return tflite_bytes(G(tensors, (0,), (1,), (O("RELU", (0,), (1,)),)))


def added(shape: tuple[int, ...]) -> bytes:
    """Return a TFLite model that adds a short constant to an input with an open dimension."""
    signature = (-1, *shape[1:])
    tensors = (
        T("in", shape, INT32, signature=signature),
        T("sizes", shape, INT32, bytes(4)),
        T("out", shape, INT32, signature=signature),
    )
    return tflite_bytes(G(tensors, (0,), (2,), (O("ADD", (0, 1), (2,)),)))


def onnx_bytes(text: str) -> bytes:
    """Return an ONNX model from its text form."""
    content: bytes = onnx.parser.parse_model(HEAD + text).SerializeToString()
    return content


def report(**graph: object) -> bytes:
    """Return an eAI report of one graph."""
    graphs = [{"nodes": [], "inputs": [], "outputs": [], **graph}]
    return json.dumps({"name": "m", "graphs": graphs}).encode()


def refusal(folder: Path, name: str, content: bytes) -> str:
    """Return the sentence with which a file is refused."""
    path = folder / name
    path.write_bytes(content)
    with pytest.raises(LoadError) as caught:
        qnnmem.load(path)
    return str(caught.value).partition(name)[2].lstrip(": ")


ONES = ",".join(map(str, MANY))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.tflite", relu(MANY)),
        ("m.tflite", relu((4,), (-1, *MANY))),
        ("m.tflite", added(MANY)),
        ("m.tflite", added((1,) * 65)),
        ("m.onnx", onnx_bytes(f"g (float[{ONES}] x) => (float[{ONES}] y) {{ y = Relu(x) }}")),
        (
            "m.onnx",
            onnx_bytes(
                f"g (float[1] x) => (float[1] y) <int64[{len(MANY)}] s = {{{ONES}}}>"
                " { z = Reshape(x, s) y = ReduceSum<keepdims = 0>(z) }"
            ),
        ),
    ],
)
def test_too_many_dimensions_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    """A tensor with more than 32 dimensions is refused, wherever the file states its shape."""
    assert f"has more than {MAX_RANK} dimensions" in refusal(tmp_path, name, content)


def test_the_bound_itself_passes(tmp_path: Path) -> None:
    """A tensor with exactly 32 dimensions is accepted, with or without an open dimension."""
    shape = MANY[1:]
    for number, content in enumerate((relu(shape), added(shape))):
        path = tmp_path / f"{number}.tflite"
        path.write_bytes(content)
        assert qnnmem.load(path).tensors["in"].shape == shape


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("m.tflite", tflite_bytes(G((), (), (), ())), "outputs"),
        (
            "m.tflite",
            tflite_bytes(G((T("a"), T("b")), (0,), (), (O("RELU", (0,), (1,)),))),
            "outputs",
        ),
        ("m.tflite", tflite_bytes(G((T("a"),), (0,), (0,), ())), "operators"),
        ("m.onnx", onnx_bytes("g (float[4] x) => (float[4] x) {}"), "operators"),
        ("m.eaix", report(), "outputs"),
    ],
)
def test_a_model_with_nothing_to_run_is_refused(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    """A file whose graph has no outputs or no operators is refused as damaged or empty."""
    assert refusal(tmp_path, name, content) == f"is damaged or empty: the graph has no {what}"


def test_a_list_without_buffers_is_refused(tmp_path: Path) -> None:
    """A buffer list with only a header line is refused, since it has no buffers."""
    for tail in (b"", b"\n", b"\r\n\n"):
        said = refusal(tmp_path, "b.csv", b"id,lower,upper,size" + tail)
        assert said.endswith("no buffers")


# --- Ops that change the number of elements -------------------------------------------------------


def test_a_reshape_keeps_the_number_of_elements(tmp_path: Path) -> None:
    """A Reshape to another number of elements is refused, inside a branch too."""
    plain = "g (float[1,12] x) => (float[1,7] y) <int64[2] s = {1,7}> { y = Reshape(x, s) }"
    said = refusal(tmp_path, "m.onnx", onnx_bytes(plain))
    assert said == "Reshape 'y' has 12 input elements but 7 output elements"
    branch = """g (float[1,12] x, bool c) => (float[1,7] y) <int64[2] s = {1,7}>
    { y = If (c) <then_branch = t () => (float[1,7] u) { u = Reshape(x, s) },
                  else_branch = f () => (float[1,7] v) { v = Reshape(x, s) }> }"""
    assert "has 12 input elements but 7" in refusal(tmp_path, "m.onnx", onnx_bytes(branch))


def test_a_reshape_to_a_stated_bound_is_accepted(tmp_path: Path) -> None:
    """With a shape given for NonZero, a Reshape may change the number of elements.

    The given shape is only an upper bound.
    """
    path = tmp_path / "m.onnx"
    path.write_bytes(
        onnx_bytes(
            "g (float[12] x) => (float[1,n] y) { i = NonZero(x) y = Reshape(i, s) }".replace(
                "=> (float[1,n] y)", "=> (int64[1,n] y) <int64[2] s = {1,-1}>"
            )
        )
    )
    assert qnnmem.load(path, shapes={"i": (1, 10)}).tensors["y"].shape == (1, 10)


def test_a_reshape_of_a_dlc_keeps_the_number_of_elements() -> None:
    """A DLC whose Reshape changes the number of elements is refused."""
    kinds = (TensorType.APP_WRITE, TensorType.APP_READ)
    tensors = tuple(
        ComposedTensor(at, f"t{at}", kind, DataType.FLOAT_32, (4 + at,))
        for at, kind in enumerate(kinds)
    )
    op = ComposedOp("r", "qti.aisw", "Reshape", (0,), (1,), {}, {})
    with pytest.raises(LoadError, match="operator 'r' has 4 input elements but 5 output elements"):
        as_model(Path("g.dlc"), ComposedGraph("g", tensors, (op,)))


def test_a_child_cannot_name_too_many_dimensions() -> None:
    """The result of a reader process is refused if a tensor has more than 32 dimensions."""
    tensor = ComposedTensor(1, "t", TensorType.APP_WRITE, DataType.FLOAT_32, MANY)
    with pytest.raises(ValueError, match=f"length <= {MAX_RANK}"):
        decode(encode(Composed([ComposedGraph("g", (), ())], [tensor])), Composed)


def test_a_dimension_and_a_shape_that_disagree_are_refused(tmp_path: Path) -> None:
    """A value for a dimension that contradicts the given shape raises UsageError."""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx_bytes("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"))
    assert qnnmem.load(path, dims={"N": 3}, shapes={"x": (3, 4)}).tensors["x"].shape == (3, 4)
    with pytest.raises(UsageError, match="dimension 'N' is 1, but the shape of 'x' gives 3"):
        qnnmem.load(path, dims={"N": 1}, shapes={"x": (3, 4)})


def test_the_bytes_of_a_model_are_bounded() -> None:
    """Tensors of exactly 2**60 bytes in total pass; one byte more is refused."""
    ops = (Op("a", "A", ("x",), ("y",)),)

    def model(size: int) -> Model:
        tensors = {"x": Tensor("x", DType.INT8, (size,)), "y": Tensor("y", DType.INT8, (8,))}
        return Model("m", "onnx", tensors, ops, ("x",), ("y",))

    check_model(Path("m.onnx"), model(MAX_BYTES - 8))
    with pytest.raises(LoadError, match="add up to more than"):
        check_model(Path("m.onnx"), model(MAX_BYTES - 7))
