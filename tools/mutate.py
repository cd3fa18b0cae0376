"""Feeds damaged files to the readers and the planner.

Run it as `python tools/mutate.py --count 20000 --seed 0`. Every mutant goes through `qnnmem.load`
and, when it loads, through `qnnmem.plan`, the verifier and the renderers. The only good ends are an
answer and a QnnMemError whose text is one plain line. The same seed makes the same mutants,
whatever the machine. Exit code 1 when one of them failed.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mutation import (
    ANY,
    NUMBERS,
    TEXTS,
    Answer,
    Mutant,
    Mutation,
    change_value,
    options,
    places,
    refusal,
    stream,
    try_all,
)
from mutation_seeds import SEEDS, TFLITE, Flat

import qnnmem
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.report.plan import render_text
from qnnmem.results.schema import encode
from qnnmem.units import Align

# Of 20 mutants. An ONNX file that parses costs a child process, some hundred times a CSV's time.
WEIGHTS = {"onnx": 4, "tflite": 5, "eaix": 6, "csv": 5}
PLAN_S = 0.05
ODD: tuple[Any, ...] = (*NUMBERS, *TEXTS, None, True, -1, 1.5, [], {}, [[]] * 9)


def huge_number(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace a number of a text by something odd."""
    spots = list(re.finditer(rb"-?\d+", data))
    if not spots:
        return data + b"9" * 5000
    spot = rng.choice(spots)
    odd = (b"9" * 5000, b"-1", b"1e999", b"NaN", b"0x7f", b"1.5", b"", b"null", b"\xd9\xa3", b"--3")
    number = rng.choice((*odd, *(str(n).encode() for n in NUMBERS)))
    return data[: spot.start()] + number + data[spot.end() :]


def nest(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Put thousands of brackets somewhere into a text."""
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
    """Put a strange word somewhere into a text."""
    at = rng.randrange(len(data))
    return data[:at] + rng.choice(TEXTS).encode("utf-8", "surrogatepass") + data[at:]


def change_json(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace, remove, repeat or move one value of a JSON document."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        change_value(rng, document, ODD)
    return json.dumps(document).encode()


def change_graph(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Write a TFLite model of sound flatbuffers whose graph makes less sense."""
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
    except (TypeError, ValueError):  # a row that lost a field cannot be written
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


TEXT: tuple[Mutation, ...] = (huge_number, huge_number, nest, swap_fields, swap_fields, odd_text)
MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "onnx": (*ANY, change_proto, change_proto, change_proto),
    "tflite": (*ANY, change_graph, change_graph, change_graph, change_graph),
    "eaix": (*ANY, *TEXT, change_json, change_json, change_json, change_json, change_json),
    "csv": (*ANY, *TEXT, *TEXT),
}


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """Make the mutants of a seed, readers interleaved by their weights."""
    seeds = {reader: make() for reader, make in SEEDS.items()}
    everything = [data for files in seeds.values() for data in files]
    turns = [reader for reader, weight in WEIGHTS.items() for _ in range(weight)]
    for index in range(count):
        rng = stream(seed, index)
        reader = turns[index % len(turns)]
        data = rng.choice(seeds[reader])
        others = seeds[reader] if rng.random() < 0.7 else everything
        mutate = rng.choice(MUTATIONS[reader])
        content = mutate(rng, data, others)
        if content and rng.random() < 0.15:
            content = rng.choice(ANY)(rng, content, others)
        yield Mutant(reader, index, mutate.__name__, content)


def read_mutant(mutant: Mutant, folder: Path) -> Answer:
    """Load and plan a mutant and say how that ended."""
    path = folder / f"mutant.{mutant.reader}"
    path.write_bytes(mutant.content)
    try:
        _load_and_plan(path, mutant.index)
    except qnnmem.QnnMemError as exc:
        return refusal(exc)
    return "planned", ""


def _load_and_plan(path: Path, index: int) -> None:
    model = qnnmem.load(path)
    choices = random.Random(index)  # noqa: S311  wanted: the same again
    result = qnnmem.plan(model, PLAN_S, options=_options(choices, model))
    wrong = qnnmem.verify(result.scratch)
    if wrong is not None:
        raise AssertionError(f"a plan that does not hold: {wrong}")
    report = PlannedFile(result, str(path))
    shown = render_text(report)
    if not shown.replace("\n", "").isprintable():
        raise AssertionError("a control character in the text report")
    json.loads(encode(report.result))


def _options(rng: random.Random, model: qnnmem.Model) -> qnnmem.PoolOptions:
    if model.format == "csv":  # everything else is for models, and refused
        return qnnmem.PoolOptions(align=rng.choice((None, Align(1), Align(64))))
    return qnnmem.PoolOptions(
        io=rng.choice((qnnmem.Io.INSIDE, qnnmem.Io.OUTSIDE)),
        bits=rng.choice((None, 8, 16)),
        inplace=rng.random() < 0.3,
        reorder=rng.random() < 0.3,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    given = options(__doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        read = partial(read_mutant, folder=Path(folder))
        return 1 if try_all(given.seed, mutants(given.count, given.seed), read, given.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
