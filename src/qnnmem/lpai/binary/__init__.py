"""Context binaries: reading and writing a compiled context as one file.

The container is qnnmem's own; `docs/reference/lpai-context-binary.md` documents every byte.
Untrusted files are safe to read: reading executes nothing, and no number in the file makes the
reader allocate memory. Sections follow each other in a fixed order, so every offset can be checked.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.atomic_file import write_pieces
from qnnmem.bounded_file import read_bytes, regular_size
from qnnmem.contract.rules import finding
from qnnmem.errors import Damaged, LoadError, QnnError, UsageError, WrongVersion
from qnnmem.loader.file_kind import kind_of_bytes
from qnnmem.lpai.binary.check import HW_VERSION, check
from qnnmem.lpai.binary.meta import MAX_GRAPHS, MAX_META, decode, encode
from qnnmem.lpai.compiled import CompiledContext
from qnnmem.qnn.codes import qnn_error
from qnnmem.text import quote
from qnnmem.units import round_up

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# As in PNG: a byte that no text starts with, then line ends that a text transfer would change.
MAGIC = b"\x89QMEM\r\n\x1a"
MAJOR, MINOR = 1, 0
ALIGN = 256  # of every section in the file, and so of every constant
META, PROGRAM, CONSTANTS = 1, 2, 3
_HEADER = struct.Struct("<8sHHIQII32x")
_SECTION = struct.Struct("<IIQQII")
_LARGEST = 16 << 30  # bytes of a binary that is read as a whole
_CRC_AT = 28  # the header's own checksum is computed with zeros here
_KINDS = {META: "description", PROGRAM: "program", CONSTANTS: "constants"}
HEADER_SIZE, SECTION_SIZE = _HEADER.size, _SECTION.size

BINARY_VERSION = 5004
CREATE_FROM_BINARY = 5005
BINARY_CONFIGURATION = 5008
BINARY_SUBOPTIMAL = 5011
MALFORMED_BINARY = 30010
_CALLS = {MALFORMED_BINARY: "QnnSystemContext_getBinaryInfo"}
_CREATE = "QnnContext_createFromBinary"
_PRODUCER = re.compile(r"qnnmem [0-9]+(?:\.[0-9]+)*[0-9A-Za-z.+-]*", re.ASCII)


class Section(NamedTuple):
    """An entry of the section table."""

    kind: int
    graph: int  # graph index of a program, else 0
    offset: int
    size: int
    crc: int

    @property
    def name(self) -> str:
        """The name of the section in error messages."""
        number = f" {self.graph}" if self.kind == PROGRAM else ""
        return f"{_KINDS[self.kind]} section{number}"


class BinarySections(NamedTuple):
    """The sections of a binary, as views of the file."""

    meta: memoryview
    programs: tuple[memoryview, ...]
    constants: memoryview


# --- Writing -------------------------------------------------------------------------------------


def assemble(
    meta: bytes, programs: Sequence[bytes], constants: memoryview
) -> Iterator[bytes | memoryview]:
    """Yield the content of the binary piece by piece."""
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
    """Return the sections of a binary; raise Damaged if a checksum or the padding is wrong."""
    table = _read_table(file)
    end = HEADER_SIZE + SECTION_SIZE * len(table)
    bodies = []
    for section in table:
        if any(file[end : section.offset]):
            raise Damaged(f"the padding before the {section.name} is not zero")
        end = section.offset + section.size
        body = file[section.offset : end]
        if zlib.crc32(body) != section.crc:
            raise Damaged(f"the {section.name} is damaged: its checksum does not match")
        bodies.append(body)
    return BinarySections(bodies[0], tuple(bodies[1:-1]), bodies[-1])


def _read_table(file: memoryview) -> list[Section]:
    if len(file) < HEADER_SIZE:
        raise Damaged(f"the file ends after {len(file):,} bytes, inside its header")
    _, major, minor, header_size, file_size, count, crc = _HEADER.unpack_from(file)
    if major != MAJOR or minor > MINOR:
        raise WrongVersion(f"has format version {major}.{minor}; this qnnmem reads {MAJOR}.{MINOR}")
    if len(file) < file_size:
        raise Damaged(f"the file ends after {len(file):,} of {file_size:,} bytes")
    if len(file) > file_size:
        raise Damaged(f"the file has {len(file):,} bytes but should have {file_size:,}")
    if not 3 <= count <= MAX_GRAPHS + 2:
        raise Damaged(f"the header states {count:,} sections; allowed: 3 to {MAX_GRAPHS + 2:,}")
    if header_size != HEADER_SIZE + SECTION_SIZE * count or header_size > len(file):
        raise Damaged(
            f"the header states a size of {header_size:,} bytes, which is wrong for {count:,} "
            "sections"
        )
    head = bytearray(file[:header_size])
    struct.pack_into("<I", head, _CRC_AT, 0)
    if zlib.crc32(head) != crc:
        raise Damaged("the header is damaged: its checksum does not match")
    if any(head[_CRC_AT + 4 : HEADER_SIZE]):
        raise Damaged("the header's reserved bytes are not zero")
    rows = _SECTION.iter_unpack(head[HEADER_SIZE:])
    return list(_follow(rows, header_size, file_size, count))


def _follow(
    rows: Iterator[tuple[int, ...]], end: int, file_size: int, count: int
) -> Iterator[Section]:
    """Yield the sections; raise Damaged unless each starts where the previous one ends."""
    for number, (kind, index, offset, size, crc, reserved) in enumerate(rows):
        wanted = META if number == 0 else CONSTANTS if number == count - 1 else PROGRAM
        if (kind, index, reserved) != (wanted, number - 1 if wanted == PROGRAM else 0, 0):
            expected = f"{_KINDS[wanted]} section"
            raise Damaged(f"section {number} of the table is not the expected {expected}")
        section = Section(kind, index, offset, size, crc)
        if offset != round_up(end, ALIGN):
            where = f"{offset:,} instead of {round_up(end, ALIGN):,}"
            raise Damaged(f"the table gives {where} as the offset of the {section.name}")
        if size > file_size - offset:
            raise Damaged(
                f"the table gives {size:,} as the size of the {section.name}, past the end "
                "of the file"
            )
        if kind == META and size > MAX_META:
            raise Damaged(f"the description has {size:,} bytes, over the limit of {MAX_META:,}")
        end = offset + size
        yield section
    if end != file_size:
        raise Damaged(f"the last section ends at byte {end:,}, but the file ends at {file_size:,}")


def pack(context: CompiledContext) -> Iterator[bytes | memoryview]:
    """Return the pieces of a binary; raise UsageError if the binary could not be read back.

    The output is deterministic.
    """
    constants = _flat(context.constants)
    programs = [graph.program for graph in context.graphs]
    try:
        meta = encode(context)
        check(decode(meta, programs), len(constants))
    except (Damaged, ValueError) as exc:
        raise UsageError(f"the context cannot be written as a binary: {exc}") from exc
    if not _PRODUCER.fullmatch(context.producer):
        raise UsageError(
            f"the producer of a binary must be 'qnnmem' and a version, not {context.producer!r}"
        )
    return assemble(meta, programs, constants)


def write(context: CompiledContext, path: Path | str, *, force: bool = True) -> int:
    """Write the binary completely or not at all, and return its size in bytes.

    An ordinary file at `path` is replaced, unless `force` is False.
    """
    return write_pieces(Path(path), pack(context), force=force)


def unpack(buffer: ReadableBuffer, malformed: int = CREATE_FROM_BINARY) -> CompiledContext:
    """Return the context in a binary; its constants are a read-only view of `buffer`.

    `malformed` is the error code for an inconsistent binary: 5005 when a context is created, 30010
    when the system context reads it.
    """
    file = _flat(memoryview(buffer)).toreadonly()
    call = _CALLS.get(malformed, _CREATE)
    if bytes(file[: len(MAGIC)]) != MAGIC:
        sentence, cure = _foreign_file(file)
        raise _refusal(malformed, "B1", sentence, call, cure)
    try:
        sections = take_apart(file)
        programs = tuple(bytes(program) for program in sections.programs)
        description = decode(bytes(sections.meta), programs)
        check(description, len(sections.constants))
    except Damaged as exc:
        sentence = f"in the description of the context binary, {exc}" if exc.path else str(exc)
        raise _refusal(malformed, "B1", sentence, call) from exc
    except WrongVersion as exc:
        raise _refusal(BINARY_VERSION, "R19", f"the context binary {exc}") from exc
    producer = description.producer
    if not _PRODUCER.fullmatch(producer):
        sentence = f"the context binary was made by {quote(producer)}, not by qnnmem"
        raise _refusal(BINARY_VERSION, "R19", sentence)
    return CompiledContext(description.graphs, description.hw_version, producer, sections.constants)


def read_binary(path: Path) -> tuple[CompiledContext, int]:
    """Return the context in a file and the file's size; raise LoadError if it is damaged.

    The file is read, not mapped, so that a file that shrinks meanwhile cannot crash the process.
    """
    data = read_bytes(path, _LARGEST)
    try:
        return unpack(data, MALFORMED_BINARY), len(data)
    except QnnError as exc:  # the code distinguishes faults; on the command line all are bad input
        raise LoadError(path, str(exc)) from exc


def map_file(path: Path | str) -> memoryview:
    """Return the bytes of a mapped file; the mapping lasts as long as any view of it exists.

    The mapping starts on a page boundary, so every section is aligned to 256 bytes in memory too.
    The file must not be shortened while it is mapped: reading a missing page kills the process.
    """
    import mmap

    path = Path(path)
    regular_size(path)
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as exc:  # ValueError: emptied in the meantime
        raise LoadError(path, f"cannot be mapped ({exc})") from exc


def check_device(context: CompiledContext, hw_version: str, *, strict: bool = False) -> None:
    """Raise QnnError if a context is for newer hardware or, if `strict`, for older hardware."""
    target, device = _age(context.hw_version), _age(hw_version)
    if target <= device and not (strict and target < device):
        return
    code = BINARY_CONFIGURATION if target > device else BINARY_SUBOPTIMAL
    versions = f"for LPAI {context.hw_version}, but the device is {hw_version}"
    cure = f"prepare the model for {hw_version}"
    raise _refusal(code, "R19", f"the context binary was made {versions}", cure=cure)


def _age(hw_version: str) -> tuple[int, int]:
    """Return major and minor version as a sort key."""
    match = HW_VERSION.fullmatch(hw_version)
    if match is None:
        raise UsageError(f"{quote(hw_version)} is not an LPAI hardware version such as v6")
    return int(match[1]), int(match[2] or 0)


def _flat(view: memoryview) -> memoryview:
    """Return a view of the same memory as plain bytes."""
    if view.nbytes == 0:  # a view with a zero in its shape cannot be cast
        return memoryview(b"")
    if not view.c_contiguous:
        raise UsageError("a binary must be contiguous in memory, but this buffer has gaps")
    return view.cast("B")


def _refusal(code: int, rule: str, sentence: str, call: str = _CREATE, cure: str = "") -> QnnError:
    return qnn_error(code, finding(rule, sentence, call=call, buffer="context binary", cure=cure))


_HEAD = 4096
# A Qualcomm binary names the SDK build that created it.
_SDK_BUILD = re.compile(rb"v[12]\.[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{6}|qti\.aisw|libQnn")
_CHANGED = "a qnnmem context binary that a text-mode transfer has damaged (line ends changed)"
_CURE = "qnnmem reads only its own format, written by 'qnnmem prepare MODEL -o model.bin'"


def _foreign_file(file: memoryview) -> tuple[str, str]:
    """Return a sentence that names the likely file type, and the cure."""
    head = bytes(file[:_HEAD])
    if not head:
        return "the context binary is empty", _CURE
    kind, cure = kind_of_bytes(head), _CURE
    if kind.name == "binary":
        words = "a context binary of Qualcomm's SDK" if _SDK_BUILD.search(head) else ""
    elif kind.name == "lpai":
        words = _CHANGED
    else:
        words, cure = kind.words, f"{kind.readers}; {_CURE}"
    but = f", but looks like {words}" if words else ""
    return f"the file is not a qnnmem context binary{but}", cure
