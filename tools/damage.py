"""Damage for the fuzzer's files: bytes of any file, and the structure of texts, JSON and models.

Every damage function takes a random stream, the file and other files of its kind, and returns the
damaged bytes. The same stream gives the same damage.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

from small_files import TFLITE, Flat

NUMBERS = (
    *(0, 1, 2, 3, 4, 7, 8, 12, 16, 63, 64, 127, 128, 255, 256, 4096, 2**16 - 1, 2**16),
    *(2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1, 2**32, 2**40, 2**60, 2**60 + 1, 2**63, 2**64 - 1),
)
TEXTS = ("", "x", "y", "h", "\x00", "\x1b[31m", "\ud800", "é" * 300, "../w", "1e999", "<script>")
ODD: tuple[Any, ...] = (*NUMBERS, *TEXTS, None, True, -1, 1.5, [], {}, [[]] * 9)

Damage = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def stream(seed: int, index: int) -> random.Random:
    """Return the random stream of one case, independent of all other cases."""
    return random.Random(f"{seed}/{index}")  # noqa: S311  repeatable on purpose


# --- Any file ------------------------------------------------------------------------------------


def flip_bits(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Flip one to eight bits."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Set a run of bytes to 0, 255 or a random value."""
    at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 4, 8, 64))
    value = rng.choice((0, 255, rng.randrange(256)))
    return data[:at] + bytes([value]) * len(data[at : at + length]) + data[at + length :]


def truncate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return a prefix of the file, or rarely a suffix."""
    at = rng.randrange(len(data))
    return data[at:] if rng.random() < 0.2 else data[:at]


def delete(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Remove a range of bytes."""
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 40) :]


def duplicate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Repeat a range of bytes in place, sometimes very often."""
    at = rng.randrange(len(data))
    part = data[at : at + rng.randint(1, 60)]
    return data[:at] + part * rng.choice((2, 2, 3, 50, 1000)) + data[at + len(part) :]


def extend(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Append zeros, noise or another file."""
    return data + rng.choice((bytes(rng.randint(1, 512)), rng.randbytes(64), rng.choice(others)))


def splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Join the start of one file with the end of another, at the same offset or a random one."""
    other, at = rng.choice(others), rng.randrange(len(data))
    return data[:at] + other[at if rng.random() < 0.5 else rng.randrange(len(other)) :]


def swap_ranges(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Swap two neighbouring ranges of bytes."""
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def bump_integer(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a little-endian integer by a little."""
    return _change_integer(rng, data, lambda old: old + rng.choice((-64, -4, -1, 1, 2, 4, 64)))


def overwrite_integer(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Set a little-endian integer to an extreme value."""
    return _change_integer(rng, data, lambda _: rng.choice((*NUMBERS, len(data), len(data) - 1)))


def _change_integer(rng: random.Random, data: bytes, change: Callable[[int], int]) -> bytes:
    width = rng.choice((1, 2, 4, 4, 8))
    at = rng.randrange(max(len(data) - width, 1))
    if rng.random() < 0.7:  # most integers of a binary format are aligned
        at = at // width * width
    value = change(int.from_bytes(data[at : at + width], "little")) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


ANY: tuple[Damage, ...] = (
    *(flip_bits, set_bytes, truncate, delete, duplicate, extend, splice, swap_ranges),
    *(bump_integer, bump_integer, overwrite_integer, overwrite_integer),
)


def in_head(kind: Damage, size: int) -> Damage:
    """Return a damage function that usually (90 %) changes only the first bytes, the headers."""

    @wraps(kind)
    def damage(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        if rng.random() < 0.1:
            return kind(rng, data, others)
        return kind(rng, data[:size], others) + data[size:]

    return damage


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container and key or index in nested lists and dictionaries."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def change_value(rng: random.Random, document: Any, odd: Sequence[Any]) -> None:
    """Replace, remove, repeat, move or nudge one value of a JSON document."""
    known = list(places(document))
    if not known:
        return
    holder, key = rng.choice(known)
    source, other = rng.choice(known)
    action, value = rng.randrange(6), holder[key]
    if action == 0:
        holder[key] = rng.choice(odd)
    elif action == 1:
        holder[key] = copy.deepcopy(source[other])
    elif action == 2:
        del holder[key]
    elif action == 3 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif isinstance(value, int):
        holder[key] = value + rng.choice((-256, -64, -1, 1, 64, 256))
    elif isinstance(value, str):  # another text of the same document
        holder[key] = rng.choice([h[k] for h, k in known if isinstance(h[k], str)])


# --- Texts, JSON, models --------------------------------------------------------------------------


def huge_number(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace a number in a text by an invalid or extreme value."""
    spots = list(re.finditer(rb"-?\d+", data))
    if not spots:
        return data + b"9" * 5000
    spot = rng.choice(spots)
    odd = (b"9" * 5000, b"-1", b"1e999", b"NaN", b"0x7f", b"1.5", b"", b"null", b"\xd9\xa3", b"--3")
    number = rng.choice((*odd, *(str(n).encode() for n in NUMBERS)))
    return data[: spot.start()] + number + data[spot.end() :]


def nest(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Insert thousands of brackets into a text."""
    at, depth = rng.randrange(len(data)), rng.choice((10, 1000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b",", b""), (b'"', b'"')))
    return data[:at] + opening * depth + b"1" + closing * depth + data[at:]


def swap_fields(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Swap two fields of a text."""
    parts = re.split(rb"([,\n:{}\[\]])", data)
    if len(parts) > 2:
        a, b = rng.randrange(len(parts)), rng.randrange(len(parts))
        parts[a], parts[b] = parts[b], parts[a]
    return b"".join(parts)


def odd_text(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Insert an unusual word into a text."""
    at = rng.randrange(len(data))
    return data[:at] + rng.choice(TEXTS).encode("utf-8", "surrogatepass") + data[at:]


def change_json(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace, remove, repeat or move one value of a JSON document."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        change_value(rng, document, ODD)
    return json.dumps(document).encode()


def change_graph(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Write a TFLite model with valid flatbuffers and an inconsistent graph."""
    graph = copy.deepcopy(rng.choice(TFLITE))
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder, key = rng.choice([place for place in places(graph) if place[0] is not graph])
        action, value = rng.randrange(3), holder[key]
        if isinstance(value, str):
            holder[key] = rng.choice([text for text in TEXTS if text != "\ud800"])
        elif isinstance(value, int):
            small = (0, 1, 2, 3, 4, 9, 22, 77, 118, 119, 127, -1, -128)
            is_field = holder and isinstance(holder[-1], int) and not isinstance(holder[0], str)
            holder[key] = rng.choice((*small, 2**31 - 1, -(2**31), 2**20) if is_field else small)
        elif action and value:
            value.append(copy.deepcopy(rng.choice(value)))
        elif value:
            value.pop(rng.randrange(len(value)) if isinstance(value[0], int) else -1)
    try:
        return Flat().file(*graph)
    except (TypeError, ValueError):  # a row without a field cannot be written
        return data


def change_proto(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change one to four fields of an ONNX model so that it still parses."""
    import onnx

    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        fields = list(_fields(model))
        message, field = rng.choice(fields)
        _change_field(rng, message, field)
    return bytes(model.SerializeToString())


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for inner in value if _is_list(value) else (value,):
                yield from _fields(inner)


def _is_list(value: Any) -> bool:
    return hasattr(value, "append")


def _change_field(rng: random.Random, message: Any, field: Any) -> None:
    value = getattr(message, field.name)
    if rng.random() < 0.15 or (field.message_type is not None and not _is_list(value)):
        message.ClearField(field.name)
    elif field.enum_type is not None:
        setattr(message, field.name, rng.choice(field.enum_type.values).number)
    elif not _is_list(value):
        setattr(message, field.name, _odd_value(rng, value))
    elif rng.random() < 0.3:
        del value[rng.randrange(len(value))]
    elif field.message_type is not None:
        value.append(rng.choice(value))
    elif rng.random() < 0.5:
        value.append(_odd_value(rng, value[0]))
    else:
        value[rng.randrange(len(value))] = _odd_value(rng, value[0])


def _odd_value(rng: random.Random, like: Any) -> Any:
    if isinstance(like, bytes):
        return like + rng.randbytes(4) if rng.random() < 0.5 else like[:-1]
    if isinstance(like, str):
        return rng.choice([text for text in TEXTS if text != "\ud800"])
    if isinstance(like, float):
        return rng.choice((0.0, -1.0, float("nan"), float("inf")))
    if -(2**31) <= like < 2**31 and rng.random() < 0.5:
        return rng.choice((0, 1, 2, 7, 16, 127, -1))
    return min(rng.choice(NUMBERS), 2**31 - 1)


TEXT: tuple[Damage, ...] = (huge_number, huge_number, nest, swap_fields, swap_fields, odd_text)
BY_FORMAT: dict[str, tuple[Damage, ...]] = {
    "onnx": (*ANY, change_proto, change_proto, change_proto),
    "tflite": (*ANY, change_graph, change_graph, change_graph, change_graph),
    "eaix": (*ANY, *TEXT, change_json, change_json, change_json, change_json, change_json),
    "csv": (*ANY, *TEXT, *TEXT),
}
