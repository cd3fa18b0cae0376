"""The bytes of a context binary: header, section table, sections.

`docs/context-binary.md` has the layout byte for byte. A reader needs no trust: sections follow each
other without choice, so an offset can only be right or wrong, and nothing is allocated because a
number in the file asks for it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qnnmem.errors import Damaged, WrongVersion
from qnnmem.lpai.binary.meta import MAX_GRAPHS, MAX_META
from qnnmem.units import round_up

# Like PNG's: a byte no text begins with, then line ends that a transfer as text would change.
MAGIC = b"\x89QMEM\r\n\x1a"
MAJOR, MINOR = 1, 0
ALIGN = 256  # of every section in the file, and so of every constant
META, PROGRAM, CONSTANTS = 1, 2, 3

_HEADER = struct.Struct("<8sHHIQII32x")
_SECTION = struct.Struct("<IIQQII")
_CRC_AT = 28  # the header's own checksum is computed with zeros here
_KINDS = {META: "description", PROGRAM: "program", CONSTANTS: "constants"}

HEADER_SIZE, SECTION_SIZE = _HEADER.size, _SECTION.size


class Section(NamedTuple):
    """One entry of the table."""

    kind: int
    graph: int  # the number of a program's graph, else 0
    offset: int
    size: int
    crc: int

    @property
    def name(self) -> str:
        """What a reader of an error message calls it."""
        return f"program {self.graph}" if self.kind == PROGRAM else _KINDS[self.kind]


class BinarySections(NamedTuple):
    """The content of a binary, as views of it."""

    meta: memoryview
    programs: tuple[memoryview, ...]
    constants: memoryview


# --- Writing -------------------------------------------------------------------------------------


def assemble(
    meta: bytes, programs: Sequence[bytes], constants: memoryview
) -> Iterator[bytes | memoryview]:
    """The file piece by piece; joined they are the whole binary."""
    kinds = [(META, 0), *((PROGRAM, index) for index in range(len(programs))), (CONSTANTS, 0)]
    bodies: list[bytes | memoryview] = [meta, *programs, constants]
    header_size = HEADER_SIZE + SECTION_SIZE * len(bodies)
    table, end = [], header_size
    for (kind, index), body in zip(kinds, bodies, strict=True):
        offset = round_up(end, ALIGN)
        table.append(Section(kind, index, offset, len(body), zlib.crc32(body)))
        end = offset + len(body)
    yield _head(table, header_size, end)
    end = header_size
    for section, body in zip(table, bodies, strict=True):
        yield bytes(section.offset - end)
        yield body
        end = section.offset + section.size


def _head(table: Sequence[Section], header_size: int, file_size: int) -> bytes:
    head = bytearray(_HEADER.pack(MAGIC, MAJOR, MINOR, header_size, file_size, len(table), 0))
    for section in table:
        head += _SECTION.pack(*section, 0)
    struct.pack_into("<I", head, _CRC_AT, zlib.crc32(head))
    return bytes(head)


# --- Reading -------------------------------------------------------------------------------------


def take_apart(file: memoryview) -> BinarySections:
    """The sections of a binary, checksums and padding verified; raises `Damaged`."""
    table = _read_table(file)
    end = HEADER_SIZE + SECTION_SIZE * len(table)
    bodies = []
    for section in table:
        _check_padding(file, end, section)
        end = section.offset + section.size
        body = file[section.offset : end]
        if zlib.crc32(body) != section.crc:
            raise Damaged(f"the {section.name} is damaged: it does not match its checksum")
        bodies.append(body)
    return BinarySections(bodies[0], tuple(bodies[1:-1]), bodies[-1])


def _read_table(file: memoryview) -> list[Section]:
    if len(file) < HEADER_SIZE:
        raise Damaged(f"the file was cut off after {len(file):,} bytes, inside of its header")
    _, major, minor, header_size, file_size, count, crc = _HEADER.unpack_from(file)
    if major != MAJOR or minor > MINOR:
        raise WrongVersion(
            f"has format version {major}.{minor}, and this qnnmem reads {MAJOR}.{MINOR}"
        )
    if len(file) < file_size:
        raise Damaged(f"the file was cut off after {len(file):,} of {file_size:,} bytes")
    if len(file) > file_size:
        raise Damaged(f"the file goes on to byte {len(file):,} and should end at {file_size:,}")
    if not 3 <= count <= MAX_GRAPHS + 2:
        raise Damaged(f"the header counts {count:,} sections, not 3 to {MAX_GRAPHS + 2:,}")
    if header_size != HEADER_SIZE + SECTION_SIZE * count or header_size > len(file):
        raise Damaged(f"the header says it has {header_size:,} bytes with {count:,} sections")
    head = bytearray(file[:header_size])
    struct.pack_into("<I", head, _CRC_AT, 0)
    if zlib.crc32(head) != crc:
        raise Damaged("the header is damaged: it does not match its checksum")
    if any(head[_CRC_AT + 4 : HEADER_SIZE]):
        raise Damaged("the header's reserved bytes are not zero")
    rows = _SECTION.iter_unpack(head[HEADER_SIZE:])
    return list(_follow(rows, header_size, file_size, count))


def _follow(
    rows: Iterator[tuple[int, ...]], end: int, file_size: int, count: int
) -> Iterator[Section]:
    """The sections, each where the one before it makes it begin."""
    for number, (kind, index, offset, size, crc, reserved) in enumerate(rows):
        wanted = META if number == 0 else CONSTANTS if number == count - 1 else PROGRAM
        if (kind, index, reserved) != (wanted, number - 1 if wanted == PROGRAM else 0, 0):
            raise Damaged(f"section {number} of the table is not the {_KINDS[wanted]} it should be")
        section = Section(kind, index, offset, size, crc)
        if offset != round_up(end, ALIGN):
            where = f"{offset:,} instead of {round_up(end, ALIGN):,}"
            raise Damaged(f"the {section.name} is said to start at byte {where}")
        if size > file_size - offset:
            raise Damaged(
                f"the {section.name} is said to have {size:,} bytes, past the end of the file"
            )
        if kind == META and size > MAX_META:
            raise Damaged(f"the description has {size:,} bytes, more than {MAX_META:,}")
        end = offset + size
        yield section
    if end != file_size:
        raise Damaged(f"the last section ends at byte {end:,}, the file at {file_size:,}")


def _check_padding(file: memoryview, start: int, section: Section) -> None:
    if any(file[start : section.offset]):
        raise Damaged(f"the padding before the {section.name} is not zero")
