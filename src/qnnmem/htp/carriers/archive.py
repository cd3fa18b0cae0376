"""Read apps and bundles (.apk, .aab, .zip): members that are or contain context binaries.

A stored member is read in place. A compressed member is unpacked into a scratch folder, limited in
bytes, compression ratio and free disk space; only the first bytes of irrelevant members are
unpacked.
"""

from __future__ import annotations

import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qnnmem.bounded_file import read_range, regular_size
from qnnmem.errors import Damaged, LoadError, NotCompiled
from qnnmem.htp.binary.pieces import Piece
from qnnmem.htp.carriers.carrier import Gathered
from qnnmem.htp.carriers.folders import add_epcontext, read_genai, read_genie
from qnnmem.htp.carriers.litert import read_litert, read_litertlm
from qnnmem.htp.carriers.pte import read_pte
from qnnmem.loader.file_kind import KINDS, kind_of_bytes
from qnnmem.text import counted, quote
from qnnmem.units import format_size

_MOST_MEMBERS = 50_000
_MOST_DIRECTORY = 16 << 20
_MOST_UNPACKED = 8 << 30  # of all members together
_RATIO, _RATIO_FROM = 100, 64 << 20  # no real model compresses better
_HEAD = 1 << 12
_LONG_HEAD = 1 << 16  # for models, whose kind may only appear later
_CHUNK = 1 << 20
_END = b"PK\x05\x06"
_END_RECORD = struct.Struct("<4s4H2IH")
_END_64 = b"PK\x06\x07"
_LOCATOR = struct.Struct("<4sIQI")
_RECORD_64 = struct.Struct("<40sQQ")  # ends with size and offset of the directory
_LOCAL = struct.Struct("<4s5H3I2H")
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_ENCRYPTED = 1
_GROUP = re.compile(r"#group_([^/]+)/")
_CONFIGS = {"genie": read_genie, "genai": read_genai}
_MODELS = ("pte", "litert", "litertlm", "onnx", "epcontext", "tflite", "dlc", "lpai", "zip", "task")
_WANTED = {*_CONFIGS, *_MODELS, "htp"}
_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(slots=True)
class ArchiveTree:
    """The members of an archive by name."""

    path: Path
    scratch: Path
    members: dict[str, zipfile.ZipInfo]
    _unpacked: dict[str, Piece] = field(default_factory=dict)
    _left: int = _MOST_UNPACKED

    def piece(self, name: str) -> Piece:
        """Return a member: a range of the archive if it is stored, else an unpacked copy."""
        info = self.members.get(name)
        if info is None:
            raise LoadError(name, "the archive has no such member")
        if info.compress_type == _STORED:
            return Piece(self.path, _data_start(self.path, info), info.file_size, name)
        if name not in self._unpacked:
            self._unpacked[name] = self._unpack(info)
        return self._unpacked[name]

    def head(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, count: int) -> bytes:
        """Return the first bytes of a member."""
        if info.compress_type == _STORED:
            start = _data_start(self.path, info)
            return read_range(self.path, start, min(count, info.file_size))
        with archive.open(info) as member:
            return member.read(count)

    def _unpack(self, info: zipfile.ZipInfo) -> Piece:
        size, packed = info.file_size, max(1, info.compress_size)
        if size > _RATIO_FROM and size > _RATIO * packed:
            raise LoadError(
                info.filename,
                f"not unpacked, because {counted(packed, 'byte')} would become {format_size(size)}",
            )
        if size > min(self._left, shutil.disk_usage(self.scratch).free // 2):
            raise LoadError(
                info.filename,
                (
                    f"cannot be unpacked: {format_size(size)} exceeds "
                    "the limit or half of the free disk space"
                ),
            )
        self._left -= size
        target = self.scratch / f"{len(self._unpacked)}"
        written = 0
        with (
            zipfile.ZipFile(self.path) as archive,
            archive.open(info) as member,
            target.open("xb") as file,
        ):
            while chunk := member.read(_CHUNK):
                written += len(chunk)
                if written > size:
                    raise Damaged(f"{quote(info.filename)} is longer than its stated size")
                file.write(chunk)
        return Piece(target, 0, written, info.filename)


def read_archive(path: Path, scratch: Path, gathered: Gathered) -> None:
    """Read all relevant members of an archive and add their contents to `gathered`."""
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            tree = ArchiveTree(path, scratch, _members(path, archive))
            _Archive(tree, archive, gathered).read()
    except OSError as exc:
        raise LoadError(path, f"cannot be read ({exc.strerror or exc})") from exc
    except _FAULTS as exc:
        raise Damaged(str(exc)[:200] or "a member cannot be unpacked") from exc


class _Archive:
    """Reader of one archive."""

    def __init__(self, tree: ArchiveTree, archive: zipfile.ZipFile, gathered: Gathered) -> None:
        self._tree, self._archive, self._gathered = tree, archive, gathered
        self._taken: set[str] = set()  # members that a config or a model names

    def read(self) -> None:
        """Read configs first, because they order the binaries; then models, then bare binaries."""
        kinds = dict(self._kinds())
        for name, kind in sorted(kinds.items(), key=lambda entry: _order(entry[1])):
            if name not in self._taken:
                self._member(name, kind)

    def _kinds(self) -> Iterator[tuple[str, str]]:
        for name, info in self._tree.members.items():
            if info.flag_bits & _ENCRYPTED:
                self._gathered.add_unread(
                    name, "an encrypted member is not supported", info.file_size
                )
                continue
            if info.compress_type not in (_STORED, _DEFLATED):
                self._gathered.add_unread(
                    name, "the compression method of a member is not supported", info.file_size
                )
                continue
            kind = self._kind(info, _HEAD)
            if kind == "json":  # a config, whose identifying key may come late
                kind = self._kind(info, _LONG_HEAD)
            if kind in _WANTED:
                yield name, kind

    def _kind(self, info: zipfile.ZipInfo, count: int) -> str:
        return kind_of_bytes(self._tree.head(self._archive, info, count)).name

    def _member(self, name: str, kind: str) -> None:
        inner, noted = Gathered(), _Noted(self._tree, self._taken)
        try:
            if kind in _CONFIGS:
                _CONFIGS[kind](noted, name, inner)
                self._gathered.merge(inner, name.rpartition("/")[0] or name, _group(name))
                return
            piece = self._tree.piece(name)
            if kind == "htp":
                inner.add(piece, "")
            elif kind == "pte":
                read_pte(piece, inner)
            elif kind == "litertlm":
                read_litertlm(piece, inner)
            elif kind in ("tflite", "litert") and read_litert(piece, inner):
                pass
            elif kind in ("onnx", "epcontext"):
                add_epcontext(noted, piece, "", inner)
            else:
                inner.add_unread("", f"the memory of {KINDS[kind].words} is not known", piece.size)
        except NotCompiled:
            inner.add_unread("", "the memory of an ONNX model is known only after it is compiled")
        except LoadError as exc:
            inner.add_unread("", exc.reason)
        except Damaged as exc:  # the other members are still read
            inner = Gathered()
            inner.add_unread("", f"the binary is damaged: {exc}")
        self._gathered.merge(inner, name, _group(name))


@dataclass(frozen=True, slots=True)
class _Noted:
    """An archive tree that records which members were read."""

    tree: ArchiveTree
    taken: set[str]

    def piece(self, name: str) -> Piece:
        """Return a member and record its name."""
        self.taken.add(name)
        return self.tree.piece(name)


def _order(kind: str) -> int:
    """Sort key: configs first, because they order the binaries; then models, then binaries."""
    return 0 if kind in _CONFIGS else 1 if kind in _MODELS else 2


def _group(name: str) -> str:
    match = _GROUP.search(name)
    return "" if match is None else match[1]


def _check_directory(path: Path) -> None:
    """Raise Damaged if the archive's directory is unreasonably large, before it is loaded."""
    size = regular_size(path)
    tail = read_range(path, max(0, size - (1 << 16) - _END_RECORD.size), 1 << 17)
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < _END_RECORD.size:
        raise Damaged("the archive has no directory at its end")
    directory = _END_RECORD.unpack_from(tail, place)[5]
    if tail[place - _LOCATOR.size : place - _LOCATOR.size + 4] == _END_64:
        offset = _LOCATOR.unpack_from(tail, place - _LOCATOR.size)[2]
        record = read_range(path, offset, _RECORD_64.size) if offset < size else b""
        if len(record) < _RECORD_64.size:
            raise Damaged("the directory of the archive is not where its end record states")
        directory = _RECORD_64.unpack(record)[1]
    if directory > _MOST_DIRECTORY:
        raise Damaged(f"the archive's directory takes {format_size(directory)}, over the limit")


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > _MOST_MEMBERS:
        raise Damaged(f"the archive has {len(infos):,} members, over the limit")
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        if info.filename in members:
            raise Damaged(f"two members have the name {quote(info.filename)}")
        members[info.filename] = info
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise Damaged(f"the member {quote(info.filename)} overlaps another member")
        end = info.header_offset + _LOCAL.size + info.compress_size
        if info.compress_type == _STORED and info.compress_size != info.file_size:
            raise Damaged(f"the member {quote(info.filename)} states two different sizes")
    if end > regular_size(path):
        raise Damaged("a member reaches past the end of the archive")
    return members


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Return where the bytes of a stored member begin, from its local header."""
    head = read_range(path, info.header_offset, _LOCAL.size)
    if len(head) < _LOCAL.size or head[:4] != b"PK\x03\x04":
        raise Damaged(f"the member {quote(info.filename)} has no header")
    *_, name, extra = _LOCAL.unpack(head)
    start: int = info.header_offset + _LOCAL.size + name + extra
    if start + info.file_size > regular_size(path):
        raise Damaged(f"the member {quote(info.filename)} reaches past the end of the archive")
    return start
