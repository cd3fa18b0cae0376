"""The FlatBuffer reader returns the written values and never reads outside the buffer."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from context_writer import FlatWriter
from context_writer import Inline as inline
from context_writer import Octets as octets
from context_writer import TableOf as table
from context_writer import VectorOf as vector
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import Damaged
from qnnmem.htp.binary import flatbuffer
from qnnmem.htp.binary.flatbuffer import MAX_TEXT, FlatBuffer, Table


def written(root: table) -> bytes:
    """Write a buffer with this root table."""
    writer = FlatWriter()
    writer.finish(root)
    return bytes(writer.data)


def root_of(root: table) -> Table:
    """Write a buffer and open its root table."""
    return FlatBuffer(written(root)).root("root")


def test_absent_fields_have_their_defaults() -> None:
    """An absent field has its default value."""
    empty = root_of(table({}))
    assert (empty.u8(0, "a"), empty.u32(9, "b", 7), empty.i32(1, "c"), empty.u64(2, "d")) == (
        *(0, 7),
        *(0, 0),
    )
    assert (empty.f32(0, "e"), empty.text(0, "f"), empty.octets(0, "g", 9)) == (0.0, "", None)
    assert (empty.table(0, "h"), empty.tables(0, "i", 9), empty.numbers(0, "j", 9)) == (
        None,
        (),
        (),
    )


def test_a_gap_between_slots_is_absent() -> None:
    """A slot whose field list entry is 0 is absent."""
    found = root_of(table({3: inline(b"\x05\0\0\0")}))
    assert (found.u32(1, "gap", 9), found.u32(3, "there")) == (9, 5)


@given(
    st.integers(0, 255),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**64 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=50),
    st.lists(st.integers(0, 2**32 - 1), max_size=9),
)
def test_what_is_written_is_found(
    byte: int, signed: int, large: int, real: float, text: str, numbers: list[int]
) -> None:
    """Every kind of field reads back as written, also from a table inside a vector."""
    inner = table(
        {
            0: inline(bytes([byte])),
            1: inline(struct.pack("<i", signed)),
            2: inline(struct.pack("<Q", large)),
            4: inline(struct.pack("<f", real)),
            5: octets(text.encode()),
            6: octets(struct.pack(f"<{len(numbers)}I", *numbers), 4),
        }
    )
    found = root_of(table({1: vector([table({}), inner])})).tables(1, "list", 2)[1]
    assert (found.u8(0, "a"), found.i32(1, "b"), found.u64(2, "c")) == (byte, signed, large)
    assert (found.f32(4, "d"), found.text(5, "e")) == (real, text)
    assert found.numbers(6, "f", 9) == tuple(numbers)


def test_text_that_is_no_text_is_escaped() -> None:
    """Bytes that are not UTF-8 are escaped, not dropped."""
    assert root_of(table({0: octets(b"a\xffb")})).text(0, "name") == "a\\xffb"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({0: 0}, "offset of 0"),
        ({0: 1 << 31}, "outside the metadata"),
        ({4: 0x0008_0003}, "field list of 3 bytes"),
        ({4: 0x0008_FFFE}, "field list of 65534 bytes"),
        ({4: 0x0002_0006}, "past the end"),
        ({4: 0xFFFF_0006}, "past the end"),
        ({8: 0x0007}, "lies outside its table"),
        ({8: 0x0002}, "lies outside its table"),
        ({12: 1 << 30}, "outside the metadata"),
        ({12: 0x8000_0000}, "outside the metadata"),
        ({16: 0}, "offset of 0"),
        ({16: 0x7FFF_FFFF}, "outside the metadata"),
        ({20: 0x7FFF_FFFF}, "entries, more than the metadata can hold"),
    ],
)
def test_each_broken_reference_is_named(change: dict[int, int], words: str) -> None:
    """Root, field list, table, field, offset and length are each checked before use."""
    data = bytearray(written(table({0: octets(b"abcd")})))
    for at, value in change.items():
        struct.pack_into("<I", data, at, value)
    with pytest.raises(Damaged, match=words):
        FlatBuffer(bytes(data)).root("root").text(0, "name")


def test_limits_are_kept() -> None:
    """A list or text beyond the caller's limit is refused."""
    found = root_of(
        table({0: octets(bytes(9)), 1: vector([table({})] * 3), 2: octets(bytes(40), 4)})
    )
    for ask in (
        lambda: found.octets(0, "bytes", 8),
        lambda: found.tables(1, "tables", 2),
        lambda: found.numbers(2, "numbers", 9),
    ):
        with pytest.raises(Damaged, match="more than"):
            ask()


def test_a_text_read_again_and_again_is_refused() -> None:
    """Many offsets to one large text are refused, so they cannot multiply memory."""
    found = root_of(table({0: octets(b"x" * MAX_TEXT)}))
    with pytest.raises(Damaged, match="offsets point to the same data"):
        list(map(found.text, [0] * 100, ["name"] * 100))


def test_a_cycle_is_as_deep_as_the_caller_asks() -> None:
    """A table that refers to itself is damaged, because its offset leaves the buffer."""
    data = bytearray(written(table({0: table({})})))
    position = struct.unpack_from("<I", data)[0]
    struct.pack_into("<H", data, position - struct.unpack_from("<i", data, position)[0] + 4, 4)
    # FlatBuffers offsets only go forward, so the cycle wraps around 2^32.
    struct.pack_into("<I", data, position + 4, (1 << 32) - 4)
    found = FlatBuffer(bytes(data)).root("root")
    with pytest.raises(Damaged, match="outside the metadata"):
        found.table(0, "self")


def sentence(action: Callable[[], object]) -> str:
    """Run an action and return the sentence of the damage it finds; empty if it finds none."""
    try:
        action()
    except Damaged as exc:
        return str(exc)
    return ""


@given(st.binary(max_size=200), st.integers(0, 20))
def test_noise_never_leads_out_of_the_buffer(data: bytes, slot: int) -> None:
    """Random bytes give a value or Damaged, for any field."""

    def walk() -> None:
        found = FlatBuffer(data).root("root")
        found.u8(slot, "a")
        found.u64(slot, "b")
        found.text(slot, "c")
        found.numbers(slot, "d", 99)
        inner = found.table(slot, "e")
        for entry in (inner or found).tables(slot, "f", 99):
            entry.f32(slot, "g")

    assert sentence(walk).isprintable()


@given(st.data())
def test_a_damaged_buffer_never_leads_out_either(data: st.DataObject) -> None:
    """A valid buffer with changed words gives a value or Damaged, for any field."""
    changed = bytearray(
        written(table({0: octets(b"name"), 1: vector([table({2: octets(b"inner")})] * 3)}))
    )
    extreme = st.sampled_from((0, 1, 4, 8, 2**16, 2**31, 2**32 - 4))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) // 4 - 1)) * 4
        struct.pack_into("<I", changed, at, data.draw(extreme | st.integers(0, 99)))

    def walk() -> None:
        found = FlatBuffer(bytes(changed)).root("root")
        found.text(0, "name")
        for entry in found.tables(1, "list", 9):
            entry.text(2, "inner")

    assert sentence(walk).isprintable()


def test_reading_has_a_budget_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read budget is four times the buffer plus 1 MiB; one byte more is refused."""
    assert (flatbuffer._BUDGET_FACTOR, flatbuffer._BUDGET_BASE) == (4, 1 << 20)
    monkeypatch.setattr(flatbuffer, "_BUDGET_BASE", 0)
    flat = FlatBuffer(bytes(100))
    flat._charge(400, "x")  # exactly the budget
    with pytest.raises(Damaged, match="x is invalid: several offsets point to the same data"):
        flat._charge(1, "x")
    monkeypatch.setattr(flatbuffer, "_BUDGET_BASE", 7)
    flat = FlatBuffer(bytes(10))
    flat._charge(47, "x")
    with pytest.raises(Damaged):
        flat._charge(1, "x")


def test_a_field_list_may_end_where_the_buffer_ends() -> None:
    """A field list may follow its table and end with the buffer; a truncated list is refused."""
    table = struct.pack("<iI", -8, 7)  # its field list follows
    data = struct.pack("<I", 4) + table + struct.pack("<HHH", 6, 8, 4)
    assert FlatBuffer(data).root("").u32(0, "a") == 7
    with pytest.raises(Damaged):
        FlatBuffer(data[:-1]).root("")


def test_small_fields_and_records_are_read_by_their_width() -> None:
    """A byte may end its table, a record must fit its table, and errors give the field path."""
    vtable = struct.pack("<HHHH", 8, 13, 12, 4)
    data = struct.pack("<I", 12) + vtable + struct.pack("<iIIB", 8, 5, 6, 9)
    root = FlatBuffer(data).root("")
    assert root.u8(0, "byte") == 9
    assert root.record(struct.Struct("<II"), 1, "pair") == (5, 6)
    assert root.record(struct.Struct("<II"), 2, "absent") is None
    with pytest.raises(Damaged, match=r"^big lies outside its table"):
        root.record(struct.Struct("<QQ"), 1, "big")
    inner = FlatBuffer(data).root("outer")
    with pytest.raises(Damaged, match=r"^outer\.big lies outside its table"):
        inner.record(struct.Struct("<QQ"), 1, "big")


def test_the_budget_counts_the_bytes_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget charges bytes, not entries: ten numbers of four bytes cost 40."""
    data = written(table({0: octets(bytes(40), 4)}))
    charged: list[int] = []
    monkeypatch.setattr(FlatBuffer, "_charge", lambda _self, size, _where: charged.append(size))
    FlatBuffer(data).root("root").numbers(0, "numbers", 10)
    assert 40 in charged
