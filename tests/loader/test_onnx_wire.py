"""The protobuf check of an ONNX file: every count and message end, to the byte."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from qnnmem.errors import LoadError
from qnnmem.loader.onnx import protobuf_wire
from qnnmem.loader.onnx.protobuf_wire import check_wire

CUT = "is truncated or not an ONNX model"


def varint(number: int) -> bytes:
    """Return a number in protobuf's encoding."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    """Return a protobuf field of bytes or of a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def refused(blob: bytes) -> str:
    """Return the sentence with which bytes are refused; empty if accepted."""
    try:
        check_wire(Path("m.onnx"), blob)
    except LoadError as exc:
        return exc.reason.removeprefix("the file ")
    return ""


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x08\x01",  # a number
        b"\x08\x80\x01",  # a number of two bytes
        b"\x09" + bytes(8),
        b"\x0d" + bytes(4),
        b"\x0a\x00",
        b"\x0a\x01x",
        b"\x0a\x81\x00x",  # a length in more bytes than necessary
        varint(300 << 3) + b"\x01",  # a field number of two bytes
        field(300, b"x"),
        field(7, field(1, b"")),
        field(7, b"x" * 0),
        field(99, b"\xff" * 200),  # not a message, so never parsed
        b"\x08" + b"\xff" * 9 + b"\x01",
    ],
)
def test_sound_bytes_pass(blob: bytes) -> None:
    """Every wire type is skipped by its own width."""
    assert refused(blob) == ""


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"\x08", CUT),
        (b"\x08\x80", CUT),
        (b"\x09" + bytes(7), CUT),
        (b"\x0d" + bytes(3), CUT),
        (b"\x0a", CUT),
        (b"\x0a\x01", CUT),
        (b"\x0a\x80", CUT),
        (b"\x80", CUT),
        (b"\x0a" + b"\xff" * 9 + b"\x01", CUT),  # a length beyond the end
        (b"\x8a" + b"\x80" * 9 + b"\x00\x00", CUT),  # eleven bytes are not a number
        (field(7, b"\x0a\x02x"), CUT),  # an inner message longer than its outer one
        (field(7, b"\x09" + bytes(7)) + bytes(9), CUT),  # the same, followed by more bytes
        (field(7, b"\x0d" + bytes(3)) + bytes(9), CUT),
        (field(7, b"\x08\x80") + b"\x01", CUT),
        (field(7, b"\x80") + b"\x01\x01", CUT),
        (field(7, b"\x0a") + b"\x00", CUT),
        (field(7, b"\x0a\x80") + b"\x00", CUT),
        (b"\x0b\x0c", "is not an ONNX model"),  # groups
        (b"\x0e", "is not an ONNX model"),
    ],
)
def test_what_does_not_end_where_it_says_is_refused(blob: bytes, words: str) -> None:
    """A message that extends past its enclosing message is refused."""
    assert refused(blob) == words


def test_ten_bytes_are_the_longest_number() -> None:
    """A key of ten bytes is read; a key of eleven bytes is refused."""
    assert refused(b"\x8a" + b"\x80" * 8 + b"\x00" + b"\x00") == ""
    assert refused(b"\x8a" + b"\x80" * 9 + b"\x00" + b"\x00") == CUT


def test_parts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many messages as allowed pass; one more is refused. Leaf messages count."""
    monkeypatch.setattr(protobuf_wire, "MAX_MESSAGES", 4)
    nodes = field(1, b"")
    assert refused(field(7, nodes * 3)) == ""
    assert refused(field(7, nodes * 4)) == (
        "contains more than 4 protobuf messages, the limit for reading"
    )
    assert refused(field(7, field(1, field(1, b"x") * 2))) == ""
    assert refused(field(7, field(1, field(1, b"x") * 3))).startswith(
        "contains more than 4 protobuf messages"
    )
    assert refused(field(8, b"") * 4) == ""
    assert refused(field(8, b"") * 5).startswith("contains more than 4 protobuf messages")


@pytest.mark.slow
def test_looking_takes_less_memory_than_the_file() -> None:
    """Checking a flood of empty messages takes less than half the file's size in memory."""
    flood = field(7, field(1, b"\x0a\x00" * 20_000) + b"\x0a\x00" * 20_000)
    tracemalloc.start()
    try:
        assert refused(flood) == ""
        assert tracemalloc.get_traced_memory()[1] < len(flood) // 2
    finally:
        tracemalloc.stop()


def bodies(depth: int) -> bytes:
    """Return graphs nested to this depth, each in an attribute of a node."""
    blob = b""
    for _ in range(depth):
        blob = field(1, field(5, field(6, blob)))
    return field(7, blob)


def test_depth_is_bounded() -> None:
    """Thirty nested graphs pass; one more message level is refused."""
    assert refused(bodies(29)) == ""
    assert refused(field(7, field(1, field(5, field(6, b""))))) == ""
    deepest = b""
    for _ in range(29):
        deepest = field(1, field(5, field(6, deepest)))
    assert refused(field(7, deepest)) == ""  # the graph and three messages per body: 88
    assert refused(bodies(30)) == "contains graphs that are nested too deeply"


def test_the_deepest_message_is_the_ninetieth() -> None:
    """The ninetieth level of messages passes; the next is refused."""
    inner = field(1, field(5, b""))  # a node and an attribute: 88 plus two
    for _ in range(29):
        inner = field(1, field(5, field(6, inner)))
    assert refused(field(7, inner)) == ""
    inner = field(1, field(5, field(5, b"")))  # plus a tensor
    for _ in range(29):
        inner = field(1, field(5, field(6, inner)))
    assert refused(field(7, inner)) == "contains graphs that are nested too deeply"


def test_bytes_besides_weights_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw weights are unlimited; every other byte counts toward the limit."""
    monkeypatch.setattr(protobuf_wire, "MAX_STRUCTURE_BYTES", 1 << 20)
    size = 1 << 20
    for plain in (4, 9, 10):
        assert refused(field(7, field(5, field(plain, bytes(2 * size))))) == ""
    for packed in (5, 7, 11):  # integers: one byte in the file, eight in memory
        assert "besides raw weights" in refused(field(7, field(5, field(packed, bytes(2 * size)))))
    assert "more than 1 MiB besides raw weights" in refused(field(7, field(10, bytes(2 * size))))
    overhead = len(field(10, bytes(size))) - size
    assert refused(field(10, bytes(size - overhead))) == ""
    assert "besides raw weights" in refused(field(10, bytes(size - overhead + 1)))
    # Outside a tensor, the same field numbers are not weights.
    assert "besides raw weights" in refused(field(9, bytes(2 * size)))


def test_the_limits_are_those_that_are_promised() -> None:
    """The limits have the values that SECURITY.md promises."""
    assert (protobuf_wire.MAX_MESSAGES, protobuf_wire.MAX_STRUCTURE_BYTES) == (4_000_000, 512 << 20)
    assert protobuf_wire.MAX_DEPTH == 90


# The fields of each message, as the installed onnx describes them.
_NAMES: dict[str, Any] = {
    "Model": onnx.ModelProto,
    "Training": onnx.TrainingInfoProto,
    "Function": onnx.FunctionProto,
    "Graph": onnx.GraphProto,
    "Node": onnx.NodeProto,
    "Attribute": onnx.AttributeProto,
    "Tensor": onnx.TensorProto,
    "Sparse": onnx.SparseTensorProto,
    "Annotation": onnx.TensorAnnotation,
    "Value": onnx.ValueInfoProto,
    "Type": onnx.TypeProto,
    "TensorType": onnx.TypeProto.Tensor,
    "Nested": onnx.TypeProto.Map,
    "Shape": onnx.TensorShapeProto,
}


def _is_repeated(found: Any) -> bool:
    known = getattr(found, "is_repeated", None)  # protobuf 6; `label` in older versions
    return bool(known if known is not None else found.label == found.LABEL_REPEATED)


def test_nested_types_are_one_or_two_fields() -> None:
    """Sequence and optional types have one field, map types two; sparse types match dense ones."""
    for kind in (onnx.TypeProto.Sequence, onnx.TypeProto.Optional):
        assert [found.number for found in kind.DESCRIPTOR.fields] == [1]
    assert set(protobuf_wire._FIELDS["Nested"]) == {1, 2}
    fields = {found.number for found in onnx.TypeProto.SparseTensor.DESCRIPTOR.fields}
    assert fields == {1, *protobuf_wire._FIELDS["TensorType"]}


@pytest.mark.parametrize("kind", _NAMES)
def test_every_message_of_onnx_is_walked_into(kind: str) -> None:
    """Every field that can hold messages is walked into, since it could hold any number."""
    repeated = _NAMES[kind].DESCRIPTOR.fields_by_number
    wanted = {
        number
        for number, found in repeated.items()
        if (found.message_type is not None and found.message_type.fields)
        or (found.cpp_type == found.CPPTYPE_STRING and _is_repeated(found))
    }
    # An opaque type is one message of two strings.
    assert wanted - set(protobuf_wire._FIELDS[kind]) <= ({7} if kind == "Type" else set())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (path, kind)
        for kind, path in {
            "Graph": (7,),
            "Training": (20,),
            "Function": (25,),
            "Node": (7, 1),
            "Tensor": (7, 5),
            "Value": (7, 11),
            "Annotation": (7, 14),
            "Sparse": (7, 15),
            "Attribute": (7, 1, 5),
            "Type": (7, 11, 2),
            "TensorType": (7, 11, 2, 1),
            "Nested": (7, 11, 2, 4),
            "Shape": (7, 11, 2, 1, 2),
        }.items()
    ],
)
def test_damage_is_found_in_every_message(path: tuple[int, ...], kind: str) -> None:
    """Damage is found in each listed field of each message, at any depth."""
    for number, child in protobuf_wire._FIELDS[kind].items():
        # Leaf messages are counted, not parsed.
        blob = field(number, b"\x0a\x05")
        for outer in reversed(path):
            blob = field(outer, blob)
        assert refused(blob) == ("" if child == "Leaf" else CUT), (kind, number, child)


def test_a_real_model_passes() -> None:
    """A model that onnx serialises passes."""
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[2,4] x) => (float[2,4] y)
    <float[4] w = {1,2,3,4}> { y = Add(x, w) }"""
    assert refused(onnx.parser.parse_model(text).SerializeToString()) == ""


def test_a_number_of_one_byte_ends_with_that_byte() -> None:
    """A number of one byte ends with that byte; the next byte starts a new field."""
    version = varint(1 << 3) + b"\x7f"
    assert refused(version + field(7, b"")) == ""
    assert refused(version + field(7, b"")[:1]) == CUT
