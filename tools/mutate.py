"""Feeds damaged files to the readers and the planner.

Run it as `python tools/mutate.py --count 20000 --seed 0`. Every mutant goes through `qnnmem.load`
and, when it loads, through `qnnmem.plan`, the verifier and the renderers. The only good ends are an
answer and a QnnMemError whose text is one plain line. The same seed makes the same mutants,
whatever the machine. Exit code 1 when one of them failed.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation_seeds import SEEDS, TFLITE, Flat
from mutation_trial import HANG_S, Hang, with_alarm

import qnnmem
from qnnmem.report.plan import PlanReport, render_json, render_text
from qnnmem.units import Align

# Of 20 mutants. An ONNX file that parses costs a child process, some hundred times a CSV's time.
WEIGHTS = {"onnx": 4, "tflite": 5, "eaix": 6, "csv": 5}
PLAN_S = 0.05
NUMBERS = (0, 1, 2, 3, 7, 127, 128, 255, 4096, 65535, 2**31 - 1, 2**31, 2**32, 2**40, 2**60, 2**63)
TEXTS = ("", "x", "y", "h", "\x00", "\x1b[31m", "\ud800", "é" * 300, "../w", "1e999", "<script>")

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Mutant:
    """A damaged file and how it came about."""

    reader: str
    index: int
    kind: str
    content: bytes


@dataclass(frozen=True)
class Ending:
    """What became of a mutant: planned, refused or failed, and why it failed."""

    outcome: str
    seconds: float
    why: str = ""


# --- Ways to damage any file ---------------------------------------------------------------------


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
    """Keep a beginning, or rarely an end."""
    at = rng.randrange(len(data))
    return data[at:] if rng.random() < 0.2 else data[:at]


def delete(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Remove a stretch."""
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 40) :]


def duplicate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Repeat a stretch in place, now and then very often."""
    at = rng.randrange(len(data))
    part = data[at : at + rng.randint(1, 60)]
    return data[:at] + part * rng.choice((2, 2, 3, 50, 1000)) + data[at + len(part) :]


def splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Join the beginning of one file with the end of another."""
    other = rng.choice(others)
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def bump_integer(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a little-endian integer by a little or to something extreme."""
    width = rng.choice((1, 1, 2, 4, 4, 8))
    at = rng.randrange(0, max(len(data) - width, 1))
    value = int.from_bytes(data[at : at + width], "little")
    value = value + rng.choice((-4, -1, 1, 4, 64)) if rng.random() < 0.7 else rng.choice(NUMBERS)
    changed = (value % (1 << 8 * width)).to_bytes(width, "little")
    return data[:at] + changed + data[at + width :]


ANY: tuple[Mutation, ...] = (
    flip_bits,
    set_bytes,
    truncate,
    delete,
    duplicate,
    splice,
    bump_integer,
    bump_integer,
)

# --- Ways to damage what a format means ----------------------------------------------------------


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
        places = list(_places(document))
        if not places:
            break
        holder, key = rng.choice(places)
        source, other = rng.choice(places)
        action = rng.randrange(4)
        if action == 0:
            holder[key] = rng.choice((*NUMBERS, *TEXTS, None, True, -1, 1.5, [], {}, [[]] * 9))
        elif action == 1:
            holder[key] = copy.deepcopy(source[other])
        elif action == 2:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
    return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def change_graph(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Write a TFLite model of sound flatbuffers whose graph makes less sense."""
    graph = copy.deepcopy(rng.choice(TFLITE))
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder, key = rng.choice([place for place in _places(graph) if place[0] is not graph])
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

# --- The run -------------------------------------------------------------------------------------


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """Make the mutants of a seed, readers interleaved by their weights."""
    seeds = {reader: make() for reader, make in SEEDS.items()}
    everything = [data for files in seeds.values() for data in files]
    turns = [reader for reader, weight in WEIGHTS.items() for _ in range(weight)]
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")  # noqa: S311  wanted: the same again
        reader = turns[index % len(turns)]
        data = rng.choice(seeds[reader])
        others = seeds[reader] if rng.random() < 0.7 else everything
        mutate = rng.choice(MUTATIONS[reader])
        content = mutate(rng, data, others)
        if content and rng.random() < 0.15:
            content = rng.choice(ANY)(rng, content, others)
        yield Mutant(reader, index, mutate.__name__, content)


def try_mutant(mutant: Mutant, folder: Path) -> Ending:
    """Load and plan a mutant and say how that ended."""
    path = folder / f"mutant.{mutant.reader}"
    path.write_bytes(mutant.content)
    started = time.perf_counter()
    outcome, why = "planned", ""
    try:
        with_alarm(lambda: _load_and_plan(path, mutant.index))
    except qnnmem.QnnMemError as exc:
        outcome, why = "refused", _fault_of(str(exc))
    except Hang:
        why = f"hang: no answer within {HANG_S} s"
    except Exception as exc:  # the very thing this program looks for
        why = f"{type(exc).__name__}: {exc}"[:300]
    outcome = "FAILED" if why else outcome
    return Ending(outcome, time.perf_counter() - started, why)


def _load_and_plan(path: Path, index: int) -> None:
    model = qnnmem.load(path)
    choices = random.Random(index)  # noqa: S311  wanted: the same again
    result = qnnmem.plan(model, PLAN_S, options=_options(choices, model))
    wrong = qnnmem.verify(result.scratch)
    if wrong is not None:
        raise AssertionError(f"a plan that does not hold: {wrong}")
    report = PlanReport(result, None, str(path), "mutate", 0.0)
    shown = render_text(report)
    if not shown.replace("\n", "").isprintable():
        raise AssertionError("a control character in the text report")
    json.loads(render_json(report))


def _options(rng: random.Random, model: qnnmem.Model) -> qnnmem.PoolOptions:
    if model.format == "csv":  # everything else is for models, and refused
        return qnnmem.PoolOptions(align=rng.choice((None, Align(1), Align(64))))
    return qnnmem.PoolOptions(
        io=rng.choice((qnnmem.Io.INSIDE, qnnmem.Io.OUTSIDE)),
        bits=rng.choice((None, 8, 16)),
        inplace=rng.random() < 0.3,
        reorder=rng.random() < 0.3,
    )


def _fault_of(sentence: str) -> str:
    """Say what is wrong with an error's text; empty when nothing is."""
    if not sentence.isprintable():
        return f"error text with control characters: {sentence[:200]!r}"
    return f"error text of {len(sentence)} characters" if len(sentence) > 2000 else ""


def run(count: int, seed: int, keep: Path | None) -> int:
    """Try all mutants, print failures and a summary; give the number of failures."""
    counts: Counter[tuple[str, str]] = Counter()
    slowest = (0.0, "none")
    with tempfile.TemporaryDirectory() as folder:
        for mutant in mutants(count, seed):
            # Code that never returns to Python cannot be rung; this ends the program with a trace.
            faulthandler.dump_traceback_later(6 * HANG_S, exit=True)
            ending = try_mutant(mutant, Path(folder))
            faulthandler.cancel_dump_traceback_later()
            name = f"{mutant.reader} mutant {seed}/{mutant.index} ({mutant.kind})"
            counts[mutant.reader, ending.outcome] += 1
            slowest = max(slowest, (ending.seconds, name))
            if ending.outcome == "FAILED":
                print(f"{name}: {ending.why}", flush=True)
                _keep(mutant, seed, keep)
    _summarise(counts, slowest)
    return sum(number for (_, outcome), number in counts.items() if outcome == "FAILED")


def _keep(mutant: Mutant, seed: int, keep: Path | None) -> None:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{seed}-{mutant.index}.{mutant.reader}").write_bytes(mutant.content)


def _summarise(counts: Counter[tuple[str, str]], slowest: tuple[float, str]) -> None:
    for reader in WEIGHTS:
        shares = ", ".join(f"{counts[reader, o]} {o}" for o in ("planned", "refused", "FAILED"))
        print(f"{reader}: {sum(n for (r, _), n in counts.items() if r == reader)} ({shares})")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    failed = sum(number for (_, outcome), number in counts.items() if outcome == "FAILED")
    print(
        f"{counts.total()} mutants, {failed} failed; slowest {slowest[0]:.2f} s: {slowest[1]}; "
        f"largest memory {peak} MiB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000, help="mutants over all readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the mutants that failed")
    given = parser.parse_args(arguments)
    return 1 if run(given.count, given.seed, given.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
