"""Each check of an ONNX model's counts, names, order and stored data, at its limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from qnnmem.errors import LoadError
from qnnmem.loader.onnx import read_guarded, well_formed
from qnnmem.loader.onnx.passes import guard as guard_pass

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '
TEXT = """g (float[2,4] x, bool c) => (float[2,4] y) <float[4] w = {1,2,3,4}>
{ a = Add(x, w)
  y = If (c) <then_branch = t () => (float[2,4] u) { u = Relu(a) },
              else_branch = f () => (float[2,4] v) <float k = {1}> { v = Mul(a, k) }> }"""

NEWEST = onnx.defs.onnx_opset_version()
Change = Callable[[Any], object]


def model(text: str = TEXT) -> onnx.ModelProto:
    """Return a model."""
    return onnx.parser.parse_model(HEAD + text)


def guarded(folder: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model after the guard pass."""
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return read_guarded(path).proto


def refused(folder: Path, proto: onnx.ModelProto) -> str:
    """Return the reason for which a model is refused."""
    with pytest.raises(LoadError) as caught:
        guarded(folder, proto)
    return caught.value.reason


def body(proto: Any, number: int = 1) -> Any:
    """Return a branch of the model: 0 for `then`, 1 for `else`."""
    return proto.graph.node[1].attribute[number].g


def test_a_sound_model_passes_unchanged(tmp_path: Path) -> None:
    """The guard leaves a valid model unchanged."""
    assert guarded(tmp_path, model()) == model()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.graph.ClearField("output"), "is not an ONNX model, or has no outputs"),
        (lambda m: m.ClearField("opset_import"), "does not state its ONNX operator set"),
        (
            lambda m: setattr(m.opset_import[0], "version", 6),
            "uses ONNX operator set 6; 7 or newer",
        ),
        (lambda m: m.opset_import.add(domain="ai.onnx", version=1), "uses ONNX operator set 1; 7"),
        (
            lambda m: setattr(m.opset_import[0], "version", NEWEST + 1),
            f"uses ONNX operator set {NEWEST + 1}; the newest supported one is {NEWEST}",
        ),
        (
            lambda m: m.opset_import.add(domain="ai.onnx", version=NEWEST),
            f"states several ONNX operator sets: 18 and {NEWEST}; a model must state one",
        ),
        (lambda m: m.graph.node.add(op_type="A", output=["a"]), "tensor 'a' is defined twice"),
        (lambda m: m.graph.node.add(op_type="A", output=["x"]), "tensor 'x' is defined twice"),
        (lambda m: m.graph.node.add(op_type="A", output=["w"]), "tensor 'w' is defined twice"),
        (lambda m: m.graph.input.add(name="x"), "tensor 'x' is defined twice"),
        (lambda m: [m.graph.input.add(name="w") for _ in "12"], "tensor 'w' is defined twice"),
        (lambda m: body(m).node.add(op_type="A", output=["v"]), "tensor 'v' is defined twice"),
        (lambda m: m.graph.input.add(name=""), "a tensor name is empty or longer than 65,536"),
        (lambda m: m.graph.input.add(name="n" * 65537), "a tensor name is empty or longer than"),
        (lambda m: m.graph.sparse_initializer.add(), "contains sparse tensors"),
        (lambda m: body(m).sparse_initializer.add(), "contains sparse tensors"),
        (lambda m: m.graph.output.add(name="z"), "output 'z' is not produced by any node"),
        (lambda m: body(m).output.add(name="z"), "node 'If' reads 'z', which no node produces"),
        (
            lambda m: m.graph.node.add(op_type="Neg", input=["z"], output=["q"]),
            "node 'Neg' reads 'z', which no node produces",
        ),
        (
            lambda m: m.graph.node.add(name="who", op_type="Neg", input=["z"], output=["q"]),
            "node 'who' reads 'z', which no node produces",
        ),
        (
            lambda m: body(m).node.add(op_type="Neg", input=["u"], output=["q"]),
            "node 'If' reads 'u', which no node produces",  # in the other branch
        ),
        (
            lambda m: m.graph.node.add(op_type="Neg", input=["k"], output=["q"]),
            "node 'Neg' reads 'k', which no node produces",  # in a body
        ),
        (
            lambda m: m.graph.node[0].input.append("y"),
            "the graph has a cycle at or before node",
        ),
        (
            lambda m: m.graph.node.add(op_type="Loop", input=["q"], output=["q"]),
            "the graph has a cycle at or before node 'Loop'",
        ),
        (lambda m: m.graph.initializer[0].dims.append(2), "stores 4 values, but its shape needs 8"),
        (
            lambda m: body(m).initializer[0].dims.append(2),
            "tensor 'k' stores 1 values, but its shape needs 2",
        ),
    ],
)
def test_what_does_not_hold_together_is_refused(tmp_path: Path, change: Change, words: str) -> None:
    """An inconsistent model is refused in one sentence that names the fault and its place."""
    proto = model()
    change(proto)
    assert words in refused(tmp_path, proto)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.graph.input.add(name="w"),  # as in IR version 3
        lambda m: m.graph.node.add(op_type="A", output=["", ""]),  # unused outputs
        lambda m: m.graph.node.add(op_type="A", input=["", "x"], output=["q"]),
        lambda m: m.graph.input.add(name="n" * 65536),
        lambda m: setattr(m.opset_import[0], "version", 7),
        lambda m: setattr(m.opset_import[0], "version", NEWEST),
        lambda m: m.opset_import.add(domain="ai.onnx", version=m.opset_import[0].version),
        lambda m: m.opset_import.add(domain="own", version=1),
        lambda m: m.graph.output.add(name="x"),
        lambda m: m.graph.output.add(name="w"),
        lambda m: body(m).output.add(name="a"),
        lambda m: body(m).node.add(op_type="Neg", input=["a"], output=["q"]),
    ],
)
def test_what_is_odd_and_sound_passes(tmp_path: Path, change: Change) -> None:
    """An unusual but valid model passes every check."""
    proto = model()
    change(proto)
    guarded(tmp_path, proto)


def test_a_model_of_foreign_operators_needs_no_operator_set(tmp_path: Path) -> None:
    """A model with only custom operators needs no ONNX operator set."""
    proto = model("g (float[2] x) => (float[2] y) { y = own.Op(x) }")
    proto.ClearField("opset_import")
    guarded(tmp_path, proto)


def test_nodes_are_sorted_stably(tmp_path: Path) -> None:
    """Nodes are sorted into execution order and otherwise keep their order, in bodies too."""
    text = "g (float[2] x) => (float[2] d) { d = Add(b, c) c = Neg(a) b = Abs(a) a = Relu(x) }"
    kinds = [node.op_type for node in guarded(tmp_path, model(text)).graph.node]
    assert kinds == ["Relu", "Neg", "Abs", "Add"]
    proto = model()
    inner = body(proto)
    inner.node.add(op_type="Neg", input=["later"], output=["q"])
    inner.node.add(op_type="Abs", input=["a"], output=["later"])
    kinds = [node.op_type for node in body(guarded(tmp_path, proto)).node]
    assert kinds == ["Mul", "Abs", "Neg"]


def test_a_node_that_reads_one_twice_is_ready_after_it(tmp_path: Path) -> None:
    """A node that reads one tensor twice is still sorted after its producer."""
    text = "g (float[2] x) => (float[2] d) { d = Add(b, b) b = Neg(x) }"
    assert len(guarded(tmp_path, model(text)).graph.node) == 2


def test_nodes_are_counted_over_all_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in bodies count: a model of four nodes passes a limit of 4 and fails one of 3."""
    monkeypatch.setattr(well_formed, "MAX_NODES", 4)
    guarded(tmp_path, model())
    monkeypatch.setattr(well_formed, "MAX_NODES", 3)
    assert refused(tmp_path, model()) == "the file has more than 3 nodes, the limit for planning"


def test_outputs_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of two outputs passes a limit of 2 and fails one of 1."""
    proto = model()
    proto.graph.output.add(name="a")
    monkeypatch.setattr(guard_pass, "MAX_OUTPUTS", 2)
    guarded(tmp_path, proto)
    monkeypatch.setattr(guard_pass, "MAX_OUTPUTS", 1)
    assert refused(tmp_path, proto) == "the file has more than 1 outputs, the limit for planning"


def test_the_limits_are_those_that_are_promised() -> None:
    """The limits have the values that SECURITY.md promises."""
    assert (well_formed.MAX_NODES, well_formed.MAX_NAME) == (200_000, 65_536)
    assert (guard_pass.MAX_OUTPUTS, guard_pass.MIN_OPSET) == (20_000, 7)


@pytest.mark.parametrize(
    "old",
    [b"\x0a\x01x", b"Relu", b"\x0a\x01w", b"then_branch", b"\x0a\x01a"],
)
def test_names_that_are_no_text_are_refused(tmp_path: Path, old: bytes) -> None:
    """A name that is not valid UTF-8 is refused, wherever it occurs."""
    data = model().SerializeToString()
    assert old in data
    (tmp_path / "m.onnx").write_bytes(data.replace(old, old[:-1] + b"\xff"))
    with pytest.raises(LoadError, match=r"contains names that are not text"):
        read_guarded(tmp_path / "m.onnx")


def test_bytes_that_protobuf_refuses_are_cut_short(tmp_path: Path) -> None:
    """Bytes that only protobuf rejects, such as field number 0, are refused as truncated."""
    (tmp_path / "m.onnx").write_bytes(b"\x02\x00")
    with pytest.raises(LoadError, match="is truncated or not an ONNX model"):
        read_guarded(tmp_path / "m.onnx")


def test_bytes_in_place_of_a_text_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoding error that protobuf raises late is also refused."""

    def stumble(path: Path, proto: object) -> None:
        b"\xff".decode()

    monkeypatch.setattr(guard_pass, "_check_model", stumble)
    assert refused(tmp_path, model()).startswith("the file contains names that are not text")


@pytest.mark.parametrize("blob", [b"\x08\x08", b"\x3a\x02\x08\x01", b"\x08\x08\x3a\x00"])
def test_messages_of_something_else_are_refused(tmp_path: Path, blob: bytes) -> None:
    """Valid protobuf that is not a model is refused as such."""
    (tmp_path / "m.onnx").write_bytes(blob)
    with pytest.raises(LoadError, match="is not an ONNX model"):
        read_guarded(tmp_path / "m.onnx")


def test_stored_data_is_checked_wherever_it_stands(tmp_path: Path) -> None:
    """The size of stored data is checked in initializers, attributes, bodies and functions."""

    def short(tensor: Any) -> None:
        tensor.name, tensor.data_type = "t", onnx.TensorProto.INT8
        tensor.dims.append(4)
        tensor.raw_data = b"123"

    places: list[Change] = [
        lambda m: short(m.graph.initializer.add()),
        lambda m: short(body(m).initializer.add()),
        lambda m: short(m.graph.node[0].attribute.add(name="value", type=4).t),
        lambda m: short(m.graph.node[0].attribute.add(name="value", type=9).tensors.add()),
        lambda m: short(body(m).node[0].attribute.add(name="value", type=4).t),
        lambda m: short(
            m.functions.add(name="F").node.add(op_type="C").attribute.add(name="value", type=4).t
        ),
    ]
    for change in places:
        proto = model()
        change(proto)
        assert "tensor 't' stores 3 bytes, but its shape needs 4" in refused(tmp_path, proto)


def test_training_is_left_out(tmp_path: Path) -> None:
    """Training information is dropped."""
    proto = model()
    proto.training_info.add().algorithm.name = "train"
    assert not guarded(tmp_path, proto).training_info


def test_with_functions_names_are_checked_later(tmp_path: Path) -> None:
    """With functions, names are checked only after inlining, which creates new names."""
    proto = model()
    proto.functions.add(name="F", domain="own")
    proto.graph.output.add(name="z")
    guarded(tmp_path, proto)


def test_running_out_of_memory_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that exceeds the memory is refused with LoadError."""

    class Greedy:
        def ParseFromString(self, blob: bytes) -> None:
            raise MemoryError

    monkeypatch.setattr(onnx, "ModelProto", Greedy)
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(LoadError, match="needs more memory to read than this machine has"):
        read_guarded(tmp_path / "m.onnx")
