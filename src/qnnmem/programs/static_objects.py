"""Static objects of a program: where each starts and ends, according to the ELF symbols."""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEAD, _SECTION, _SYMBOL = 64, 64, 24  # bytes of the structs of a 64-bit file
_SYMBOL_TABLES = (2, 11)  # of the linker, of the loader
_OBJECT, _FIXED = 1, 2  # types of a symbol, of a file
_MOST_BYTES = 256 << 20  # of symbols


def room_behind(path: str, base: int, address: int) -> int | None:
    """Return the bytes from an address to the end of its static object; None if unknown.

    `base` is the address at which the file is loaded.
    """
    is_fixed, objects = _objects(path)
    offset = address - (0 if is_fixed else base)
    starts, ends = objects[:, 0], objects[:, 0] + objects[:, 1]
    inside = ends[(starts <= offset) & (offset < ends)]
    return int(inside.max()) - offset if inside.size else None


@lru_cache(maxsize=64)
def _objects(path: str) -> tuple[bool, NDArray[Any]]:
    """Return True if a file has fixed addresses, and the start and size of each object in it."""
    import numpy

    try:
        found = _read(Path(path))
    except (OSError, ValueError, struct.error):
        found = None
    return found or (False, numpy.empty((0, 2), numpy.int64))


def _read(path: Path) -> tuple[bool, NDArray[Any]] | None:
    import numpy

    row = numpy.dtype("<u4, u1, u1, <u2, <u8, <u8")
    if not path.is_file():  # the program may have mapped anything
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if head[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
            return None
        (at,) = struct.unpack_from("<Q", head, 40)
        (count,) = struct.unpack_from("<H", head, 60)
        file.seek(at)
        sections = file.read(count * _SECTION)
        found = []
        for start in range(0, count * _SECTION, _SECTION):
            (kind,) = struct.unpack_from("<I", sections, start + 4)
            place, size = struct.unpack_from("<2Q", sections, start + 24)
            if kind in _SYMBOL_TABLES and size <= _MOST_BYTES:
                file.seek(place)
                symbols = numpy.frombuffer(file.read(size // _SYMBOL * _SYMBOL), row)
                chosen = symbols[(symbols["f1"] & 15 == _OBJECT) & (symbols["f5"] > 0)]
                found.append(numpy.stack((chosen["f4"], chosen["f5"]), axis=1).astype(numpy.int64))
    return (head[16] == _FIXED, numpy.concatenate(found)) if found else None
