"""Stored tensors are read with the values that onnxruntime reads, anywhere in a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import exit_code, run
from onnx import helper, numpy_helper

from qnnmem.errors import LoadError
from qnnmem.loader.onnx import read_guarded
from qnnmem.loader.onnx.tensor import check_stored, embed, tensors
from qnnmem.quiet_onnxruntime import import_onnxruntime

OUTSIDE = np.arange(1, 5, dtype="float32")
RAW = np.arange(11, 15, dtype="float32")
TYPED = np.arange(21, 25, dtype="float32")
W = ("location", "w.bin")

# The external_data entries and the stored data of each case.
SAME: dict[str, Mapping[str, Any]] = {
    "raw": {"raw": RAW},
    "typed": {"typed": TYPED},
    "external": {"external": [W]},
    "offset": {"external": [W, ("offset", "16")]},
    "length": {"external": [W, ("length", "16")]},
    "offset with a zero in front": {"external": [W, ("offset", "016")]},
    "offset between elements": {"external": [W, ("offset", "3")]},
    "checksum": {"external": [W, ("checksum", "00")]},
    "stale entries beside raw data": {"entries": [W], "raw": RAW},
    "stale entries beside typed data": {"entries": [W], "typed": TYPED},
    "stale entries that lead nowhere": {"entries": [("location", "/no/file")], "raw": RAW},
    "by a dot": {"external": [("location", "./w.bin")]},
    "in a folder": {"external": [("location", "sub/w.bin")]},
    "there and back": {"external": [("location", "sub/../w.bin")]},
    "hard link": {"external": [("location", "hard.bin")]},
    "link inside": {"external": [("location", "link.bin")]},
}
REFUSED: dict[str, Mapping[str, Any]] = {
    "no entries": {"external": []},
    "no entries but raw data": {"external": [], "raw": RAW},
    "no entries but typed data": {"external": [], "typed": TYPED},
    "external and raw": {"external": [W], "raw": RAW},
    "external and typed": {"external": [W], "typed": TYPED},
    "raw and typed": {"raw": RAW, "typed": TYPED},
    "empty raw and typed": {"raw": RAW[:0], "typed": TYPED},
    "only stale entries": {"entries": [W]},
    "short": {"external": [W, ("length", "12")]},
    "long": {"external": [W, ("length", "20")]},
    "length zero": {"external": [W, ("length", "0")]},
    "beyond the end": {"external": [W, ("offset", "20")]},
    "negative": {"external": [W, ("offset", "-1")]},
    "signed": {"external": [W, ("offset", "+16")]},
    "spaced": {"external": [W, ("offset", " 16")]},
    "hexadecimal": {"external": [W, ("offset", "0x10")]},
    "no number": {"external": [W, ("offset", "")]},
    "other digits": {"external": [W, ("offset", "\u0661\u0666")]},
    "two locations": {"external": [W, ("location", "sub/w.bin")]},
    "two offsets": {"external": [W, ("offset", "0"), ("offset", "16")]},
    "an unknown entry": {"external": [W, ("mood", "good")]},
    "another key": {"external": [("Location", "w.bin")]},
    "an empty name": {"external": [("location", "")]},
    "an address": {"external": [("location", "*/_ORT_MEM_ADDR_/*"), ("offset", "16")]},
    "a link out": {"external": [("location", "out.bin")]},
    "a folder that is a link out": {"external": [("location", "away/secret.bin")]},
    "above": {"external": [("location", "../secret.bin")]},
    "absolute": {"external": [("location", "/etc/passwd")]},
    "a folder": {"external": [("location", "sub")]},
    "a pipe": {"external": [("location", "pipe")]},
}
PLACES = ("initializer", "constant", "body", "body constant", "function", "function body")
# In bodies, onnxruntime's checker rejects every link; qnnmem follows links everywhere.
LINKED = ("hard link", "link inside")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model's folder with weights, links, and a secret file beside the folder."""
    top = tmp_path_factory.mktemp("stored")
    folder = top / "model"
    (folder / "sub").mkdir(parents=True)
    (top / "secret.bin").write_bytes(OUTSIDE.tobytes())
    (folder / "w.bin").write_bytes(OUTSIDE.tobytes() + RAW.tobytes())
    (folder / "sub" / "w.bin").write_bytes(TYPED.tobytes())
    (folder / "first.bin").write_bytes(OUTSIDE.tobytes())
    os.link(folder / "first.bin", folder / "hard.bin")
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "out.bin").symlink_to("../secret.bin")
    (folder / "away").symlink_to("..")
    os.mkfifo(folder / "pipe")
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(64))
    return folder


def stored(
    external: Sequence[tuple[str, str]] | None = None,
    entries: Sequence[tuple[str, str]] = (),
    raw: Any = None,
    typed: Any = None,
) -> onnx.TensorProto:
    """Return a tensor of four floats; `entries` are stale external entries."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4])
    if external is not None:
        tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (*(external or ()), *entries):
        tensor.external_data.add(key=key, value=value)
    if raw is not None:
        tensor.raw_data = raw.tobytes()
    if typed is not None:
        tensor.float_data.extend(typed.tolist())
    return tensor


def constant(tensor: onnx.TensorProto, output: str = "w") -> onnx.NodeProto:
    """Return a Constant node; the onnx helper would check the tensor."""
    node = onnx.NodeProto(op_type="Constant", output=[output])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    return node


def branch(tensor: onnx.TensorProto, *, in_node: bool) -> onnx.NodeProto:
    """Return an If whose two branches both return the tensor."""
    graphs = {}
    for name in ("then_branch", "else_branch"):
        out = helper.make_tensor_value_info("v", 1, [4])
        same = helper.make_node("Identity", ["w"], ["v"])
        nodes = [constant(tensor), same] if in_node else [same]
        graphs[name] = helper.make_graph(nodes, name, [], [out], [] if in_node else [tensor])
    return helper.make_node("If", ["c"], ["b"], **graphs)


def model_with(tensor: onnx.TensorProto, place: str) -> onnx.ModelProto:
    """Return a model that adds the tensor to its input."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    true = numpy_helper.from_array(np.array(True), "c")
    x, y = (helper.make_tensor_value_info(name, 1, [4]) for name in "xy")
    initializers, nodes, functions, term = [true], [], [], "w"
    if place == "initializer":
        initializers.append(tensor)
    elif place == "constant":
        nodes.append(constant(tensor))
    elif place in ("body", "body constant"):
        nodes.append(branch(tensor, in_node=place == "body constant"))
        term = "b"
    else:
        inner = [constant(tensor)] if place == "function" else [branch(tensor, in_node=True)]
        out = "w" if place == "function" else "b"
        functions = [helper.make_function("own", "Own", ["c"], [out], inner, opsets[:1])]
        nodes.append(helper.make_node("Own", ["c"], ["w"], domain="own"))
    nodes.append(helper.make_node("Add", ["x", term], ["y"]))
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def run_by_onnxruntime(source: str | bytes) -> Any:
    """Return the values of the tensor; None if onnxruntime rejects the model."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": np.zeros(4, "float32")})[0].tolist()
    except Exception:  # onnxruntime's errors have no common base class
        return None


def read_by_us(path: Path) -> Any:
    """Return the values of the tensor after qnnmem has read and embedded it."""
    proto = read_guarded(path).proto
    for tensor in tensors(proto):
        embed(path, tensor)
        assert not tensor.external_data
        assert not tensor.HasField("data_location")
    return run_by_onnxruntime(proto.SerializeToString())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", SAME)
def test_values_are_those_of_onnxruntime(folder: Path, case: str, place: str) -> None:
    """Stored values equal those of onnxruntime bit for bit, wherever the tensor is."""
    path = folder / "model.onnx"
    path.write_bytes(model_with(stored(**SAME[case]), place).SerializeToString())
    expected = run_by_onnxruntime(str(path))
    if expected is None and case in LINKED:
        expected = OUTSIDE.tolist()
    assert expected is not None
    assert read_by_us(path) == expected


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused(folder: Path, case: str, place: str) -> None:
    """A tensor whose stored data is ambiguous is refused, wherever it is."""
    path = folder / "model.onnx"
    path.write_bytes(model_with(stored(**REFUSED[case]), place).SerializeToString())
    with pytest.raises(LoadError):
        read_guarded(path)


@pytest.mark.parametrize("case", ["stale entries beside raw data", "hard link", "offset"])
def test_a_prepared_binary_holds_the_same_values(folder: Path, case: str, tmp_path: Path) -> None:
    """A binary prepared on the command line contains the tensor's bytes."""
    path, target = folder / "model.onnx", tmp_path / "m.bin"
    model = model_with(stored(**SAME[case]), "initializer")
    path.write_bytes(model.SerializeToString())
    expected = np.array(run_by_onnxruntime(str(path)), "float32")
    assert exit_code(run("prepare", path, "--float", "-o", target)) == 0
    assert expected.tobytes() in target.read_bytes()


def sparse(**outside: str) -> onnx.SparseTensorProto:
    """Return a sparse tensor of four floats, whose values may be in another file."""
    values = stored([*outside.items()] or None, raw=None if outside else RAW)
    indices = numpy_helper.from_array(np.arange(4), "i")
    return helper.make_sparse_tensor(values, indices, [4])


@pytest.mark.parametrize("place", ["graph", "constant", "list", "body", "function"])
@pytest.mark.parametrize("outside", [{}, {"location": "w.bin"}])
def test_sparse_tensors_are_refused_anywhere(
    folder: Path, place: str, outside: dict[str, str]
) -> None:
    """A sparse tensor is refused in every place, since no check covers its parts."""
    found = sparse(**outside)
    model = model_with(stored(raw=RAW), "initializer")
    node = onnx.NodeProto(op_type="Constant", output=["extra"])
    node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    node.attribute[0].sparse_tensor.CopyFrom(found)
    if place == "graph":
        model.graph.sparse_initializer.append(found)
    elif place == "constant":
        model.graph.node.insert(0, node)
    elif place == "list":
        held = model.graph.node[0].attribute.add(name="held")
        held.type = onnx.AttributeProto.SPARSE_TENSORS
        held.sparse_tensors.append(found)
    elif place == "body":
        model = model_with(stored(raw=RAW), "body")
        model.graph.node[0].attribute[1].g.sparse_initializer.append(found)
    else:
        model = model_with(stored(raw=RAW), "function body")
        model.functions[0].node[0].attribute[0].g.node.append(node)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    done = run("plan", path)
    assert exit_code(done) == 2
    with pytest.raises(LoadError, match="sparse"):
        read_guarded(path)


@pytest.mark.parametrize("kind", [10, 16, 17])
def test_bit_patterns_that_do_not_fit_are_refused(tmp_path: Path, kind: int) -> None:
    """A stored number too large for its 16-bit type is refused."""
    tensor = onnx.TensorProto(name="w", data_type=kind, dims=[1], int32_data=[70_000])
    path = tmp_path / "model.onnx"
    path.write_bytes(model_with(tensor, "initializer").SerializeToString())
    with pytest.raises(LoadError, match="too large"):
        read_guarded(path)


@pytest.mark.parametrize(("bits", "right"), [(0, True), (65535, True), (65536, False), (-1, False)])
def test_bit_patterns_at_their_bounds(bits: int, right: bool) -> None:
    """A 16-bit value may be 0 to 65,535; 65,536 and -1 are refused."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT16, dims=[2])
    tensor.int32_data.extend([0, bits])
    if right:
        check_stored(Path("m.onnx"), tensor)
    else:
        with pytest.raises(LoadError, match="contains numbers too large for float16"):
            check_stored(Path("m.onnx"), tensor)


def test_data_that_are_gone_since_they_were_checked(folder: Path) -> None:
    """External data that shrinks or disappears after its check is refused by name."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="late.bin")
    late = folder / "late.bin"
    late.write_bytes(bytes(16))
    check_stored(folder / "m.onnx", tensor)
    late.write_bytes(bytes(15))
    with pytest.raises(LoadError, match="external data of tensor 'w' is truncated"):
        embed(folder / "m.onnx", tensor)
    late.unlink()
    with pytest.raises(LoadError, match="external data of tensor 'w' cannot be read; "):
        embed(folder / "m.onnx", tensor)
