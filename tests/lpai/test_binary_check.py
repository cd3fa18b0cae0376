"""Damaged and hostile context binaries are refused with a code and one sentence."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import msgspec
import pytest

from qnnmem.errors import QnnError, UsageError
from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.binary import MALFORMED_BINARY, assemble, check_device, pack, take_apart, unpack
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.planner import PlacedBuffer, PoolOptions, plan_model
from qnnmem.results.inspect import FrameWindow
from qnnmem.units import Bytes, Offset

Change = Callable[[Any], object]


def context() -> CompiledContext:
    """Return a context with a state, a window, a body and a constant."""
    tensors = {name: Tensor(name, DType.INT8, (8, 4)) for name in ("x", "y", "w", "h", "n", "v")}
    inner = {"b": Tensor("b", DType.INT8, (8, 4))}
    body = Model("body", "onnx", inner, (Op("in", "Neg", ("x",), ("b",)),), (), ("b",))
    ops = (
        Op("add", "Add", ("x", "w"), ("v",), sources=(0,)),
        Op("if", "If", ("v",), ("y",), sources=(1,), bodies=(body,)),
        Op("next", "Add", ("h", "w"), ("n",), sources=(2, 3)),
    )
    model = Model("m", "onnx", tensors, ops, ("x", "h"), ("y", "n"), ("w",))
    states = (("h", "n"),)
    plan = plan_model(model, PoolOptions(states=states))
    graph = CompiledGraph(
        "g",
        model,
        plan.buffers,
        plan.scratch_bytes,
        plan.persistent_bytes,
        plan.align,
        states=states,
        windows=(FrameWindow("win", "h", "n", 2, 8, 4, True, 0, "x"),),
        quants={"x": Quant(0.5, 1)},
        constants=(Constant("w", 3, (8, 4), Offset(0), Bytes(32), False),),
        program=b"program",
    )
    return CompiledContext((graph,), "v6", "qnnmem 0.1.0", memoryview(bytes(range(32))))


SOUND = b"".join(pack(context()))


def with_meta(meta: bytes) -> bytes:
    """Return the valid binary with another description and correct checksums."""
    parts = take_apart(memoryview(SOUND))
    return b"".join(assemble(meta, [bytes(p) for p in parts.programs], parts.constants))


def with_change(change: Change) -> bytes:
    """Return the valid binary with its description changed as JSON."""
    document = json.loads(bytes(take_apart(memoryview(SOUND)).meta))
    change(document)
    return with_meta(json.dumps(document).encode())


def with_head(at: int, form: str, value: int) -> bytes:
    """Return the valid binary with one header field changed and a correct checksum."""
    (end,) = struct.unpack_from("<I", SOUND, 12)
    head = bytearray(SOUND[:end])
    struct.pack_into(form, head, at, value)
    struct.pack_into("<I", head, 28, 0)
    struct.pack_into("<I", head, 28, zlib.crc32(head))
    return bytes(head) + SOUND[end:]


def refusal(data: bytes, malformed: int = 5005) -> QnnError:
    """Return the error with which a binary is refused."""
    with pytest.raises(QnnError) as caught:
        unpack(data, malformed)
    assert str(caught.value).isprintable()
    return caught.value


def graph(document: Any) -> Any:
    """Return the first graph of a description."""
    return document["graphs"][0]


def buffer(document: Any, name: str) -> Any:
    """Return a buffer of the first graph by name."""
    return next(row for row in graph(document)["buffers"] if row["name"] == name)


def tensor(document: Any, name: str) -> Any:
    """Return a tensor of the first graph by name."""
    return next(row for row in graph(document)["model"]["tensors"] if row["name"] == name)


def put(find: Callable[[Any], Any], key: Any, value: Any) -> Change:
    """Return a change that sets one value of a description."""
    return lambda document: find(document).__setitem__(key, value)


def test_the_sound_binary_loads() -> None:
    """The unchanged binary, from which the other tests start, loads."""
    assert unpack(SOUND) == context()
    assert unpack(with_change(lambda document: None)) == context()


@pytest.mark.parametrize(
    ("kind", "find", "elsewhere"),
    [
        (CompiledContext, lambda document: document, {"constants"}),
        (CompiledGraph, lambda document: graph(document), {"program"}),
        # Assumptions are stored in the notes, and encodings in the graph's `quants`.
        (Model, lambda document: model(document), {"assumed", "encodings", "holds_for"}),
        (Op, lambda document: op(document), set()),
        (Tensor, lambda document: tensor(document, "x"), set()),
        (PlacedBuffer, lambda document: buffer(document, "x"), set()),
        (FrameWindow, lambda document: rows("windows")(document), set()),
        (Constant, lambda document: rows("constants")(document), set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_field_is_forgotten(kind: Any, find: Callable[[Any], Any], elsewhere: set[str]) -> None:
    """Every field of a stored type is in the description or stored elsewhere."""
    document = json.loads(bytes(take_apart(memoryview(SOUND)).meta))
    named = fields(kind) if is_dataclass(kind) else msgspec.structs.fields(kind)
    assert set(find(document)) | elsewhere == {field.name for field in named}


@pytest.mark.parametrize("malformed", [5005, 30010])
def test_the_caller_chooses_the_code(malformed: int) -> None:
    """The caller selects the error code, which also selects the call in the finding."""
    error = refusal(SOUND[:-1], malformed)
    call = {5005: "QnnContext_createFromBinary", 30010: "QnnSystemContext_getBinaryInfo"}
    assert (error.code, error.finding.rule) == (malformed, "B1")
    assert error.finding.call == call[malformed]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 63, 64, 100, 160, 500, len(SOUND) - 1])
def test_a_file_that_was_cut_off_is_refused(length: int) -> None:
    """A binary that ends early is refused, wherever it was cut."""
    assert refusal(SOUND[:length]).code == 5005


def test_a_buffer_with_gaps_is_the_callers_mistake() -> None:
    """A memory with gaps between its bytes raises UsageError."""
    with pytest.raises(UsageError, match="has gaps"):
        unpack(memoryview(SOUND + SOUND)[::2])


def test_every_single_bit_counts() -> None:
    """A binary with any single flipped bit is refused."""
    for at in range(len(SOUND)):
        data = bytearray(SOUND)
        data[at] ^= 1 << at % 8
        assert refusal(bytes(data)).code in (5004, 5005), at


@pytest.mark.parametrize(("at", "value"), [(8, 2), (8, 0), (10, 1)], ids=["next", "zero", "minor"])
def test_another_format_version_is_refused(at: int, value: int) -> None:
    """A binary of another format version is refused with code 5004 and rule R19."""
    error = refusal(with_head(at, "<H", value))
    assert (error.code, error.finding.rule) == (5004, "R19")
    assert "format version" in str(error)


def test_another_producer_is_refused() -> None:
    """A binary from another producer is refused with code 5004 and rule R19."""
    error = refusal(with_change(put(lambda document: document, "producer", "other 1.0")))
    assert (error.code, error.finding.rule) == (5004, "R19")


@pytest.mark.parametrize(
    ("at", "form", "value", "words"),
    [
        (12, "<I", 2**32 - 1, "header states a size of"),
        (16, "<Q", 2**63, "ends after"),
        (16, "<Q", 64, "should have 64"),
        (24, "<I", 2**32 - 1, "states 4,294,967,295 sections"),
        (24, "<I", 2, "states 2 sections"),
        (24, "<I", 4, "header states a size of"),
        (40, "<I", 1, "reserved bytes"),
        (64, "<I", 9, "section 0 of the table"),
        (68, "<I", 1, "section 0 of the table"),
        (72, "<Q", 0, "gives 0 instead of 256 as the offset of the description"),
        (72, "<Q", 512, "gives 512 instead of 256 as the offset of the description"),
        (80, "<Q", 2**64 - 1, "past the end"),
        (80, "<Q", 1, "as the offset of the program section 0"),
        (92, "<I", 1, "section 0 of the table"),
        (96 + 8, "<Q", 256, "gives 256 instead of 2,304 as the offset of the program section 0"),
        (128 + 16, "<Q", 31, "last section ends at"),
    ],
)
def test_a_header_that_lies_is_refused(at: int, form: str, value: int, words: str) -> None:
    """Wrong sizes, counts and offsets are refused, even with a correct checksum."""
    assert words in str(refusal(with_head(at, form, value)))


def test_padding_is_zero() -> None:
    """Padding bytes that are not zero are refused."""
    data = bytearray(SOUND)
    data[255] = 1
    assert "padding before the description" in str(refusal(bytes(data)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x08\x08\x12\x04test" + bytes(99), "an ONNX model"),
        (b"PK\x03\x04" + bytes(99), "a zip archive"),
        (b"\x1c\0\0\0TFL3" + bytes(99), "a TFLite model"),
        (b"\0\0\0\2\0\0\0\3" + bytes(99), "a QNN context binary"),
        (bytes(40) + b"v2.36.0.250627" + bytes(99), "of Qualcomm's SDK"),
        (b"\x7fELF" + bytes(99), "a shared library"),
        (b' {"graphs": []}', "JSON"),
        (SOUND.replace(b"\r\n", b"\n"), "a text-mode transfer"),
        (b"anything else" + bytes(99), "the file is not a qnnmem context binary;"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_file_is_told_apart(data: bytes, words: str) -> None:
    """The message names the type of a wrong file and points to `qnnmem prepare`."""
    error = refusal(data)
    assert words in str(error)
    assert "qnnmem prepare" in error.finding.cure


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (b"", "not JSON at character 0"),
        (b"[]", "instead of an object"),
        (b"\xff", "not UTF-8 at byte 0"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"producer":1,"producer":1}', "same key twice"),
        (b'{"producer":NaN}', "NaN"),
        (b'{"producer":' + b"9" * 10_000 + b"}", "too long"),
        (b"[" + b"[]," * 1_000_000 + b"0]", "more than 2,000,000 values"),
        (b" " * (64 << 20) + b"{}", "over the limit of 67,108,864"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_description_that_is_no_description_is_refused(meta: bytes, words: str) -> None:
    """A description that is not valid JSON, or too large, is refused with the reason."""
    assert words in str(refusal(with_meta(meta)))


def model(document: Any) -> Any:
    """Return the model of the first graph."""
    return graph(document)["model"]


def rows(key: str) -> Callable[[Any], Any]:
    """Return a getter for the first row of the first graph under this key."""
    return lambda document: graph(document)[key][0]


def op(document: Any) -> Any:
    """Return the first op."""
    return model(document)["ops"][0]


def body(document: Any) -> Any:
    """Return the body of the second op."""
    return model(document)["ops"][1]["bodies"][0]


def nest_bodies(document: Any) -> None:
    """Nest the body of the second op in 20 more bodies."""
    inner = body(document)
    for _ in range(20):
        shell = json.loads(json.dumps(inner)) | {"ops": [dict(inner["ops"][0], bodies=[inner])]}
        inner = shell
    model(document)["ops"][1]["bodies"] = [inner]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(lambda d: d, "hw_version", "6"), "hw_version is '6'"),
        (put(lambda d: d, "graphs", []), "graphs has 0 entries for 1 programs"),
        (put(lambda d: d, "extra", 1), "has an unknown key 'extra'"),
        (lambda d: d.pop("graphs"), "lacks 'graphs'"),
        (put(graph, "name", 3), "graphs[0].name is 3 instead of a string"),
        (put(graph, "name", "n" * 70_000), "has 70,000 characters"),
        (put(graph, "align", 0), "graphs[0].align is 0"),
        (put(graph, "align", True), "graphs[0].align is true"),
        (put(graph, "in_order", 1), "in_order is 1 instead of true or false"),
        (put(graph, "io", "beside"), "it must be one of inside, outside"),
        (put(graph, "scratch_bytes", -1), "scratch_bytes is -1"),
        (put(graph, "scratch_bytes", 10**30), "scratch_bytes is 2^64 or more"),
        (put(graph, "scratch_bytes", 64.0), "scratch_bytes is 64.0 instead of a whole number"),
        (put(graph, "scratch_bytes", 64), "of scratch, which has only 64 bytes"),
        (put(graph, "persistent_bytes", 0), "of persistent, which has only 0 bytes"),
        (put(graph, "buffers", []), "buffers do not include 'x'"),
        (put(lambda d: buffer(d, "x"), "pool", "io"), "pool io, which this graph does not have"),
        (put(lambda d: buffer(d, "x"), "pool", "constants"), "does not have"),
        (put(lambda d: buffer(d, "x"), "size", 31), "31 bytes for 'x', which needs 32"),
        (put(lambda d: buffer(d, "x"), "offset", 1), "('x') starts at byte 1"),
        (put(lambda d: buffer(d, "x"), "aliases", ["v"]), "places 'v' a second time"),
        (put(lambda d: buffer(d, "x"), "live", [3, 3]), "ends at step 3 but begins at 3"),
        (put(lambda d: buffer(d, "x"), "live", [3]), "must have two entries"),
        (
            put(lambda d: buffer(d, "x"), "live", [0, 99]),
            ("is in use until step 99 of a graph with 3 steps"),
        ),
        (put(lambda d: tensor(d, "x"), "dtype", "int7"), "dtype is 'int7'"),
        (put(lambda d: tensor(d, "x"), "shape", [-1]), "shape[0] is -1"),
        (put(lambda d: tensor(d, "x"), "shape", [2**20, 2**21]), "more than 1,099,511,627,776"),
        (put(lambda d: tensor(d, "x"), "shape", [1] * 33), "has 33 entries"),
        (put(model, "outputs", []), "model.outputs is empty"),
        (put(model, "ops", []), "model.ops is empty"),
        (put(lambda d: tensor(d, "x"), "shape", [8, 9]), "64 bytes for 'x', which needs 72"),
        (put(lambda d: tensor(d, "x"), "name", "y"), "tensors name the same tensor twice"),
        (put(model, "inputs", ["x", "h", "x"]), "model.inputs names 'x' twice"),
        (put(model, "outputs", ["y", "zz"]), "model.outputs names 'zz'"),
        (put(model, "states", ["w"]), "do not include 'w'"),
        (put(op, "inputs", ["zz"]), "ops[0].inputs names 'zz', which is not a tensor"),
        (put(op, "outputs", ["zz"]), "ops[0].outputs names 'zz'"),
        (lambda d: op(d)["outputs"].append(op(d)["outputs"][0]), "model.ops names"),
        (lambda d: put(op, "outputs", model(d)["ops"][2]["outputs"])(d), "model.ops names"),
        (put(op, "sources", [-1]), "ops[0].sources[0] is -1"),
        (put(op, "sources", [2**31]), "ops[0].sources[0] is 2147483648"),
        (put(op, "effect", "magic"), "effect is 'magic'"),
        (put(body, "outputs", ["zz"]), "ops[1].bodies[0].outputs names 'zz'"),
        (nest_bodies, "nested in more than 16 ops"),
        (put(graph, "states", [["x", "y"], ["x", "n"]]), "states names 'x' twice"),
        (put(graph, "states", [["y", "x"]]), "is not a pair of an input and an output"),
        (put(lambda d: tensor(d, "n"), "dtype", "uint8"), "another type or shape"),
        (put(rows("windows"), "frames", 3), "not a multiple of the 3 that each execution adds"),
        (put(rows("windows"), "frames", 0), "frames is 0"),
        (put(rows("windows"), "stride", 9), "moves by 9 frames"),
        (put(rows("windows"), "stride", 1), "moves by 1 frames"),
        (put(rows("windows"), "padding", 9), "has 9 frames of padding"),
        (put(rows("windows"), "reset", "y"), "reset 'y', which is not an input"),
        (put(rows("windows"), "old", "x"), "not a state pair"),
        (put(rows("quants"), "name", "zz"), "quants names 'zz'"),
        (put(rows("quants"), "scale", 0.0), "scale is 0.0, not a positive number"),
        (put(rows("quants"), "scale", 1), "scale is 1, not a positive number"),
        (put(rows("quants"), "zero_point", 2**31), "zero_point is 2147483648"),
        (put(rows("constants"), "offset", 256), "ends at byte 288, but there are 32 bytes"),
        (put(rows("constants"), "offset", 128), "starts at byte 128"),
        (put(rows("constants"), "size", 31), "has 31 bytes, but its type and shape need 32"),
        (put(rows("constants"), "element", 8), "element is 8, not an ONNX element type"),
        (put(rows("constants"), "shape", [33]), "need 33"),
        (lambda d: graph(d)["constants"].append(rows("constants")(d)), "names 'w' twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_description_that_contradicts_itself_is_refused(change: Change, words: str) -> None:
    """Each value is checked for its range and consistency, and named by its path."""
    error = refusal(with_change(change), MALFORMED_BINARY)
    assert error.code == 30010
    assert words in str(error)


def test_an_empty_tensor_needs_no_place() -> None:
    """A tensor without elements needs no buffer."""

    def change(document: Any) -> None:
        tensor(document, "x")["shape"] = [0, 4]
        graph(document)["buffers"].remove(buffer(document, "x"))

    assert "x" not in unpack(with_change(change)).graphs[0].buffer_of


def test_too_many_tensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of 100,000 tensors counts all models and bodies together."""
    check = import_module("qnnmem.lpai.binary.check")  # the package exports a function of this name
    assert check.MAX_TENSORS == 100_000
    monkeypatch.setattr(check, "MAX_TENSORS", 1000)

    def fill(document: Any) -> None:
        many = [{"name": f"t{n}", "dtype": "int8", "shape": []} for n in range(500)]
        model(document)["tensors"] += many
        body(document)["tensors"] += many

    error = refusal(with_change(fill))
    assert "graphs have 1,007 tensors, over the limit of 1,000" in str(error)


def test_an_infinite_scale_is_refused() -> None:
    """A scale that overflows to infinity is refused."""
    meta = bytes(take_apart(memoryview(SOUND)).meta)
    assert b'"scale":0.5' in meta
    data = with_meta(meta.replace(b'"scale":0.5', b'"scale":1e999'))
    assert "scale is inf" in str(refusal(data))


def test_a_hostile_count_takes_no_memory() -> None:
    """Counts that claim terabytes are refused with less than 1 MiB allocated."""
    mutants = [
        with_change(put(lambda d: tensor(d, "x"), "shape", [2**40])),
        with_change(put(rows("constants"), "size", 2**40)),
        with_head(16, "<Q", 2**60),
        with_head(24, "<I", 2**32 - 1),
    ]
    tracemalloc.start()
    try:
        for data in mutants:
            refusal(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_name_cannot_reach_the_terminal() -> None:
    """Control characters in a name are escaped, and long names are cut."""
    change = put(op, "inputs", ["\x1b[31m\n" + "a" * 60_000])
    sentence = str(refusal(with_change(change)))
    assert "\\x1b" in sentence
    assert len(sentence) < 400


@pytest.mark.parametrize(
    ("made", "device", "strict", "code"),
    [
        ("v6", "v6", True, None),
        ("v5", "v5_1", False, None),
        ("v4", "v7", False, None),
        ("v5_1", "v5", False, 5008),
        ("v7", "v6", False, 5008),
        ("v10", "v7", True, 5008),
        ("v5", "v6", True, 5011),
    ],
)
def test_the_device_must_not_be_older(
    made: str, device: str, strict: bool, code: int | None
) -> None:
    """A binary for newer hardware is refused; in strict mode, one for older hardware too."""
    found = replace(context(), hw_version=made)
    if code is None:
        check_device(found, device, strict=strict)
        return
    with pytest.raises(
        QnnError, match=(f"made for LPAI {made}, but the device is {device}")
    ) as error:
        check_device(found, device, strict=strict)
    assert (error.value.code, error.value.finding.rule) == (code, "R19")


def test_a_device_has_a_hardware_version() -> None:
    """A device that is not a hardware version raises UsageError."""
    with pytest.raises(UsageError, match="'six'"):
        check_device(context(), "six")
