"""Context binaries of every version read back as written, or are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from context_writer import (
    Inline,
    TableOf,
    VectorOf,
    old_context,
    old_graph,
    pack_2_3,
    pack_context,
    sized,
    u32,
    union,
)
from context_writer import example_context as context
from context_writer import example_graph as graph
from context_writer import example_tensor as tensor
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import LoadError
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.binary.read import MAX_TENSORS, context_from_bytes, read_context
from qnnmem.qnn.enums import DataType, TensorMemType, TensorType
from qnnmem.qnn.tensor import SCALE_OFFSET, Quantization, TensorInfo

pack, sized = pack_context, sized
ENDLESS = Quantization(SCALE_OFFSET, (float("inf"),), (0,))


def read(data: bytes) -> HtpContext:
    """Read a context binary in memory."""
    return context_from_bytes(data, "made.bin")


def refusal(data: bytes) -> str:
    """Return the sentence that refuses a binary."""
    with pytest.raises(LoadError) as caught:
        read(data)
    assert str(caught.value).startswith("made.bin")
    return caught.value.reason


def answer(data: bytes) -> str:
    """Return the build id of a context, or the sentence that refuses the binary."""
    try:
        return repr(read(data).build_id)
    except LoadError as exc:
        return str(exc)


# --- Accepted files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        context(),
        context(graph("a", shared_weights=7), graph("b", shared_weights=7), graph("")),
        context(context_tensors=(tensor("t", 9),)),
        context(HtpGraph("v1 record", (), (tensor("y", 2),), 4 << 20, 3, True, 6, spill_fill=5)),
        old_context(),
        old_context(old_graph("a"), old_graph("b", spill_fill=77)),
        old_context(format_version=(2, 3)),
    ],
    ids=["today", "graphs", "context-tensors", "short-record", "2.2", "2.2-graphs", "2.3-old"],
)
def test_every_version_reads_back(made: HtpContext) -> None:
    """Every format version reads back each field as written."""
    assert read(pack(made)) == made


# Every printable character; a filter on text would reject most examples.
names = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=20)
sizes = st.integers(0, 1 << 60)
tensors = st.builds(
    TensorInfo,
    id=st.integers(0, 2**32 - 1),
    name=names,
    type=st.sampled_from(TensorType),
    data_type=st.sampled_from(DataType),
    dimensions=st.lists(st.integers(0, 99), max_size=5).map(tuple),
    mem_type=st.sampled_from(TensorMemType),
    quantization=st.none()
    | st.builds(
        Quantization,
        st.just(SCALE_OFFSET),
        st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False)),
        st.tuples(st.integers(-(2**31), 0)),
    ),
)
some_tensors = st.lists(tensors, max_size=3).map(tuple)
graphs = st.builds(
    HtpGraph,
    name=names,
    inputs=some_tensors,
    outputs=st.lists(tensors, min_size=1, max_size=3).map(tuple),
    spill_fill=sizes,
    vtcm=st.integers(0, 2**32 - 1),
    optimization_level=st.integers(0, 3),
    dlbc=st.booleans(),
    hvx_threads=st.integers(0, 8),
    native_k=sizes,
    native_v=sizes,
    safe_share_io=st.booleans(),
    io=sizes,
    op_data=sizes,
    const=sizes,
    ddr_tensors=sizes,
    shared_weights=sizes,
)


@given(st.lists(graphs, min_size=1, max_size=3), st.sampled_from([(2, 2), (2, 3)]))
def test_any_context_reads_back(made: list[HtpGraph], version: tuple[int, int]) -> None:
    """Graphs and tensors with any numbers read back as written, in formats 2.2 and 2.3."""
    whole = context(*made, format_version=version)
    assert read(pack(whole)) == whole


def test_bytes_of_a_tensor_come_from_its_shape() -> None:
    """A float tensor has four bytes for each element; a tensor of unknown type has zero bytes."""
    plain = tensor("x", 1, data_type=DataType.FLOAT_32)
    unknown = tensor("x", 1, data_type=DataType.UNDEFINED)
    assert (plain.nbytes, unknown.nbytes) == (32_000, 0)


def test_types_of_later_sdks_are_undefined() -> None:
    """A file with an unknown data type is accepted, and the type reads as UNDEFINED."""
    data = bytearray(pack(context()))
    at = data.index(struct.pack("<I", DataType.UFIXED_POINT_8), 40)
    struct.pack_into("<I", data, at, 0x0777)
    assert read(bytes(data)).graphs[0].inputs[0].data_type is DataType.UNDEFINED


def test_only_the_head_of_a_file_is_read(tmp_path: Path) -> None:
    """A sparse binary of 3 GiB is read from its head alone."""
    made = context()
    data = bytearray(pack(made))
    blob = 3 << 30
    offset, size = struct.unpack_from("<QQ", data, 24)
    struct.pack_into("<Q", data, 32, blob)
    stated = bytes(data).index(struct.pack("<Q", size), 40)
    struct.pack_into("<Q", data, stated, blob)
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.write(data)
        file.truncate(offset + blob)
    assert read_context(path).blob_bytes == blob


# --- Refused files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a QNN context binary"),
        (b"\x08\x09ONNX", "is not a QNN context binary"),
        (bytes(100), "is not a QNN context binary"),
        (
            struct.pack(">II", 2, 4) + bytes(90),
            ("format 2.4, which is not supported; supported: 2.2 and 2.3"),
        ),
        (pack(context())[:30], "the file ends inside the header"),
        (pack(context())[:-5], "5 of "),
        (pack(context()) + b"more", "4 bytes follow the end of the blob"),
        (pack(context(), backend=12), "backend 12 (LPAI), not for HTP"),
        (pack(old_context())[:60], "the file ends "),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    """One sentence names the fault and its place."""
    assert words in refusal(data)


@pytest.mark.parametrize("value", [0, 15, (64 << 20) + 1, 1 << 31, (1 << 64) - 1])
def test_impossible_metadata_sizes_are_refused(value: int) -> None:
    """An impossible metadata size is refused before any byte of the metadata is read."""
    data = bytearray(pack(context()))
    struct.pack_into("<Q", data, 16, value)
    assert "the metadata has" in refusal(bytes(data))


def test_versions_of_blob_and_metadata_must_agree() -> None:
    """A blob whose version differs from the metadata is refused."""
    data = bytearray(pack(context()))
    data[4096] = 9
    assert "the blob has version 9.0.6, but the metadata states 4.0.6" in refusal(bytes(data))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (context(graph(const=(1 << 60) + 1)), "states 1,152,921,504,606,846,977 bytes of const"),
        (context(graph(inputs=(tensor("x", 1, dimensions=(2**32 - 1,) * 3),))), "more than"),
        (context(graph(inputs=(tensor("x", 1, dimensions=(1,) * 33),))), "33 entries"),
        (context(graph(inputs=(), outputs=())), "graph 'graph' has neither inputs nor outputs"),
        (context(graphs=()), "it contains no graphs"),
        (context(graph("n" * 65_537)), "65,537 entries, more than 65,536"),
        (context(info_version=2), "version 2 and type 2; supported: 1, 3"),
        (context(graph(inputs=(tensor("x", 1, quantization=ENDLESS),))), "not a finite number"),
    ],
)
def test_numbers_that_cannot_be_are_refused(made: HtpContext, words: str) -> None:
    """Sizes, ranks, names and scales have bounds, and the error names the broken bound."""
    reason = refusal(pack(made))
    assert reason.startswith("the context binary is damaged: ")
    assert words in reason


def test_the_place_of_the_damage_is_named() -> None:
    """The error gives the path to the damaged tensor."""
    bad = tensor("bad", 2, dimensions=(1,) * 70)
    made = context(graph("a"), graph("b", inputs=(tensor("x", 1), bad)))
    assert "graphs[1].value.graph.graph.graphInputs[1].dimensions" in refusal(pack(made))


def test_the_number_of_tensors_is_bounded() -> None:
    """A list of more than 100,000 tensors is refused by its length."""
    table = TableOf
    many = VectorOf([table({})] * (MAX_TENSORS + 1))
    size = Inline(struct.pack("<Q", 24))
    info = union(3, table({0: u32(6), 8: many, 11: size}))
    data = pack_2_3(info, bytes(24))
    assert "contextTensors has 100,001 entries, more than 100,000" in refusal(data)


def test_files_that_are_not_files_are_refused(tmp_path: Path) -> None:
    """A folder, a missing file and an empty file each get a sentence of their own."""
    (tmp_path / "empty.bin").touch()
    for name, words in (("", "is a folder"), ("no.bin", "no such file"), ("empty.bin", "is empty")):
        with pytest.raises(LoadError, match=words):
            read_context(tmp_path / name)


@given(st.data())
def test_any_change_gives_an_answer_or_a_sentence(data: st.DataObject) -> None:
    """Overwriting any eight bytes of the head gives a context or a LoadError of one line."""
    whole = bytearray(pack(data.draw(st.sampled_from([context(), old_context()]))))
    at = data.draw(st.integers(0, min(len(whole), 900) - 8))
    whole[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    assert answer(bytes(whole)).isprintable()
