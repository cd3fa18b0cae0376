"""Reads FlatBuffers without generated code: tables, vectors and strings, with checked offsets.

The input is not trusted. Each position is compared with the end of the buffer, and a field must lie
inside its table. A budget limits the total number of bytes returned, so a file whose offsets all
lead to one large string cannot take more memory than a few times its size. Offsets to tables are
followed only when the caller asks, so a cycle of offsets causes no endless loop.
"""

from __future__ import annotations

import struct
from typing import Any

from msgspec import Struct

from qnnmem.errors import Damaged
from qnnmem.htp.binary.pieces import PieceBytes

MAX_TEXT = 1 << 16  # bytes of a name
# An intact buffer is read about once; shared texts may be read again.
_BUDGET_FACTOR = 4
_BUDGET_BASE = 1 << 20

_U8, _U16, _U32, _U64, _I32, _F32 = (struct.Struct(f"<{kind}") for kind in "BHIQif")

Octets = bytes | PieceBytes


class FlatBuffer:
    """A FlatBuffer: bytes that start with the offset of the root table."""

    def __init__(self, data: Octets, budget: int | None = None, *, sizes: bool = True) -> None:
        """Wrap a buffer; `budget`, if given, lowers the limit on the total bytes read.

        If `sizes` is false, a field may lie outside its table, as in ExecuTorch files.
        """
        self._data, self._has_sizes = data, sizes
        self._left = _BUDGET_FACTOR * len(data) + _BUDGET_BASE
        if budget is not None:
            self._left = min(self._left, budget)

    def root(self, where: str) -> Table:
        """Return the root table."""
        return self.table(self.target(0, where), where)

    def table(self, position: int, where: str) -> Table:
        """Return the table at a position after checking its vtable."""
        vtable = position - self._number(_I32, position, where)
        vtable_size = self._number(_U16, vtable, where)
        size = self._number(_U16, vtable + 2, where)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > len(self._data):
            raise Damaged(f"{where} has a field list of {vtable_size} bytes, which is impossible")
        if size < 4 or position + size > len(self._data):
            raise Damaged(f"{where} reaches past the end of the metadata")
        self._charge(size, where)
        return Table(self, position, size, vtable, vtable_size, where)

    def vector(self, position: int, width: int, limit: int, where: str) -> tuple[int, int]:
        """Return the start and the number of elements of the vector that `position` refers to.

        Raise Damaged if there are more than `limit` elements, if they lie outside the buffer, or if
        their bytes exceed the budget for all reads.
        """
        start, count = self.extent(position, width, where)
        if count > limit:
            raise Damaged(f"{where} has {count:,} entries, more than {limit:,}")
        self._charge(count * width, where)
        return start, count

    def extent(self, position: int, width: int, where: str) -> tuple[int, int]:
        """Return a vector's start and length; its elements are not read and use no read budget."""
        start = self.target(position, where)
        count = self._number(_U32, start, where)
        if count * width > len(self._data) - start - 4:
            raise Damaged(f"{where} has {count:,} entries, more than the metadata can hold")
        self._charge(4, where)
        return start + 4, count

    def unpack(self, layout: struct.Struct, position: int, where: str) -> tuple[Any, ...]:
        """Return the numbers at a position; raise Damaged if they lie outside the buffer."""
        if position < 0 or position + layout.size > len(self._data):
            raise Damaged(f"{where} lies outside the metadata")
        return layout.unpack(self._data[position : position + layout.size])

    def holds(self, table: Table, offset: int, width: int) -> bool:
        """Return True if a field at an offset of a table lies inside the table."""
        end = table.size if self._has_sizes else len(self._data) - table.position
        return 4 <= offset <= end - width

    def octets(self, start: int, count: int) -> bytes:
        """Return `count` bytes; the caller has checked that they lie inside the buffer."""
        return self._data[start : start + count]

    def _number(self, layout: struct.Struct, position: int, where: str) -> int:
        number: int = self.unpack(layout, position, where)[0]
        return number

    def target(self, position: int, where: str) -> int:
        """Return the position that the offset stored at `position` points to."""
        target = position + self._number(_U32, position, where)
        if target == position:
            raise Damaged(f"{where} has an offset of 0")
        return target

    def _charge(self, cost: int, where: str) -> None:
        self._left -= cost
        if self._left < 0:
            raise Damaged(f"{where} is invalid: several offsets point to the same data")


class Table(Struct, frozen=True):
    """A table; reading an absent field gives the field's default."""

    flat: FlatBuffer
    position: int
    size: int
    vtable: int
    vtable_size: int
    where: str

    def u8(self, slot: int, name: str, default: int = 0) -> int:
        """Return a field as an unsigned byte."""
        number: int = self._scalar(_U8, slot, name, default)
        return number

    def u32(self, slot: int, name: str, default: int = 0) -> int:
        """Return a field as an unsigned 32-bit number."""
        number: int = self._scalar(_U32, slot, name, default)
        return number

    def i32(self, slot: int, name: str, default: int = 0) -> int:
        """Return a field as a signed 32-bit number."""
        number: int = self._scalar(_I32, slot, name, default)
        return number

    def u64(self, slot: int, name: str, default: int = 0) -> int:
        """Return a field as an unsigned 64-bit number."""
        number: int = self._scalar(_U64, slot, name, default)
        return number

    def f32(self, slot: int, name: str, default: float = 0.0) -> float:
        """Return a field as a single-precision number."""
        number: float = self._scalar(_F32, slot, name, default)
        return number

    def record(self, layout: struct.Struct, slot: int, name: str) -> tuple[Any, ...] | None:
        """Return a struct of fixed size stored inside the table; None if the field is absent."""
        position = self.field(slot, layout.size, name)
        return None if position is None else self.flat.unpack(layout, position, self._at(name))

    def table(self, slot: int, name: str) -> Table | None:
        """Return the table that a field refers to; None if the field is absent."""
        position = self.field(slot, 4, name)
        if position is None:
            return None
        return self._entry(position, self._at(name))

    def tables(self, slot: int, name: str, limit: int) -> tuple[Table, ...]:
        """Return a vector of at most `limit` tables."""
        position = self.field(slot, 4, name)
        if position is None:
            return ()
        where = self._at(name)
        start, count = self.flat.vector(position, 4, limit, where)
        return tuple(self._entry(start + 4 * n, f"{where}[{n}]") for n in range(count))

    def text(self, slot: int, name: str) -> str:
        """Return a string field; bytes that are not UTF-8 are escaped."""
        octets = self.octets(slot, name, MAX_TEXT) or b""
        return octets.decode("utf-8", "backslashreplace")

    def octets(self, slot: int, name: str, limit: int) -> bytes | None:
        """Return a vector of at most `limit` bytes."""
        position = self.field(slot, 4, name)
        if position is None:
            return None
        start, count = self.flat.vector(position, 1, limit, self._at(name))
        return self.flat.octets(start, count)

    def extent(self, slot: int, name: str) -> tuple[int, int] | None:
        """Return offset and length of a vector of bytes; None if the field is absent."""
        position = self.field(slot, 4, name)
        return None if position is None else self.flat.extent(position, 1, self._at(name))

    def numbers(self, slot: int, name: str, limit: int, kind: str = "I") -> tuple[int, ...]:
        """Return a vector of at most `limit` numbers, by default unsigned 32-bit."""
        position = self.field(slot, 4, name)
        if position is None:
            return ()
        start, count = self.flat.vector(
            position, struct.calcsize(f"<{kind}"), limit, self._at(name)
        )
        return self.flat.unpack(struct.Struct(f"<{count}{kind}"), start, self._at(name))

    def field(self, slot: int, width: int, name: str) -> int | None:
        """Return the position of a field of `width` bytes; None if the field is absent."""
        entry = 4 + 2 * slot
        if entry + 2 > self.vtable_size:
            return None
        offset: int = self.flat.unpack(_U16, self.vtable + entry, self._at(name))[0]
        if offset == 0:
            return None
        if not self.flat.holds(self, offset, width):
            raise Damaged(f"{self._at(name)} lies outside its table")
        return self.position + offset

    def _scalar(self, layout: struct.Struct, slot: int, name: str, default: float) -> Any:
        values = self.record(layout, slot, name)
        return default if values is None else values[0]

    def _entry(self, position: int, where: str) -> Table:
        return self.flat.table(self.flat.target(position, where), where)

    def _at(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name
