"""Feeds damaged context binaries to their reader.

Run it as `python tools/mutate_binaries.py --count 20000 --seed 0`, with `--binary FILE` for a
binary of your own. Half of the mutants have their checksums made right again, so that they reach
the checks behind them. Every mutant goes through `unpack`; when it loads, through `check_device`,
`binary_info`, the renderer and back through `pack`. The only good ends are an answer and a QnnError
whose text is one plain line. The same seed makes the same mutants. Exit code 1 when one failed.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation_trial import try_all

from qnnmem.errors import QnnError
from qnnmem.ir import DType, Effect, Model, Op, Tensor
from qnnmem.lpai.binary import check_device, pack, unpack
from qnnmem.lpai.binary.layout import (
    HEADER_SIZE,
    SECTION_SIZE,
    BinarySections,
    assemble,
    take_apart,
)
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, FrameWindow, Quant
from qnnmem.lpai.inspect import binary_info
from qnnmem.lpai.tcm import judge_binary
from qnnmem.plan import Io, PoolOptions, plan_model
from qnnmem.report.inspect import render_text
from qnnmem.units import Bytes, Offset

CODES = {5004, 5005, 5008, 5011, 30010}
NUMBERS = (0, 1, 2, 63, 64, 255, 256, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(-1, -256, 2**64, 10**30, 0.5, -1.0, 1e308, None, True, False, [], {}, [[]] * 9),
    *("", "x", "y", "h", "\x00", "\x1b[31m", "\ud800", "é" * 300, "a" * 70_000, "v99", "float32"),
)

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Mutant:
    """A damaged binary and how it came about."""

    index: int
    kind: str
    content: bytes


# --- Binaries to damage --------------------------------------------------------------------------


def random_context(rng: random.Random) -> CompiledContext:
    """Make a sound context of one to three small graphs, planned, with state and constants."""
    stored = bytearray()
    graphs = tuple(_graph(rng, f"graph {n}", stored) for n in range(rng.randint(1, 3)))
    version = rng.choice(("v4", "v5", "v5_1", "v6", "v7"))
    return CompiledContext(graphs, version, "qnnmem 0.1.0", memoryview(bytes(stored)))


def _graph(rng: random.Random, name: str, stored: bytearray) -> CompiledGraph:
    states = (("h", "h next"),) if rng.random() < 0.6 else ()
    model = _model(rng, bool(states))
    io = rng.choice((Io.INSIDE, Io.OUTSIDE))
    plan = plan_model(model, PoolOptions(io=io, states=states), time_limit=0.01)
    window = FrameWindow("w", "h", "h next", 2, 8, 4, True, 2, rng.choice((None, "x")))
    return CompiledGraph(
        name,
        plan.model,
        plan.buffers,
        plan.scratch_bytes,
        plan.persistent_bytes,
        plan.align,
        io,
        states,
        (window,) if states and rng.random() < 0.5 else (),
        {key: Quant(rng.uniform(1e-6, 1), rng.randint(-128, 127)) for key in ("x", "y")},
        tuple(_constants(rng, model, stored)),
        rng.randbytes(rng.choice((0, 1, 300))),
        rng.random() < 0.5,
        ("made at random",) * rng.randint(0, 2),
        rng.randint(0, 2),
    )


def _model(rng: random.Random, stateful: bool) -> Model:
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 4)))
    dtype = rng.choice((DType.INT8, DType.UINT8, DType.INT16, DType.FLOAT32, DType.BOOL))
    tensors = {name: Tensor(name, dtype, shape) for name in ("x", "y", "v", "w", "c")}
    ops = [Op("first", "Add", ("x", "w"), ("t0",), sources=(0, 1))]
    for number in range(rng.randint(0, 5)):
        effect = rng.choice(tuple(Effect))
        ops.append(Op(f"op {number}", "Relu", (f"t{number}",), (f"t{number + 1}",), effect))
    tensors |= {op.outputs[0]: Tensor(op.outputs[0], dtype, shape) for op in ops}
    if rng.random() < 0.3:
        inner = Model("body", "onnx", {"b": Tensor("b", dtype, shape)}, outputs=("b",))
        body = Model(**(_fields(inner) | {"ops": (Op("in", "Neg", ("x",), ("b",)),)}))
        ops.append(Op("if", "If", ("x",), ("v",), bodies=(body, body), repeats=True))
    else:
        ops.append(Op("view", "Reshape", (ops[-1].outputs[0],), ("v",), Effect.VIEW))
    ops.append(Op("last", "Mul", ("v", "c"), ("y",)))
    inputs: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("y",)
    if stateful:
        tensors |= {name: Tensor(name, DType.INT8, (8, 2)) for name in ("h", "h next")}
        ops.append(Op("state", "Tanh", ("h",), ("h next",)))
        inputs, outputs = ("x", "h"), ("y", "h next")
    return Model("m", "onnx", tensors, tuple(ops), inputs, outputs, ("w", "c"), notes=("seed",))


def _fields(model: Model) -> dict[str, Any]:
    return {key: getattr(model, key) for key in model.__dataclass_fields__}


def _constants(rng: random.Random, model: Model, stored: bytearray) -> Iterator[Constant]:
    elements = {"int8": 3, "uint8": 2, "int16": 5, "float32": 1, "bool": 9}
    for name in model.constants:
        tensor = model.tensors[name]
        stored += bytes(-len(stored) % 256)
        offset = Offset(len(stored))
        stored += rng.randbytes(tensor.nbytes)
        element = elements[tensor.dtype.value]
        yield Constant(name, element, tensor.shape, offset, Bytes(tensor.nbytes), name == "c")


# --- Ways to damage any file ---------------------------------------------------------------------


def flip_bits(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Flip one to eight bits."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Keep a beginning, or rarely an end."""
    at = rng.randrange(len(data))
    return data[at:] if rng.random() < 0.2 else data[:at]


def extend(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Append zeros, noise or another binary."""
    return data + rng.choice((bytes(rng.randint(1, 512)), rng.randbytes(64), rng.choice(others)))


def overwrite_integer(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Set a little-endian integer, mostly of the header, to something extreme."""
    width = rng.choice((1, 2, 4, 4, 8))
    end = min(len(data), 256) if rng.random() < 0.7 else len(data)
    at = rng.randrange(end - width)
    value = rng.choice(NUMBERS) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def swap_ranges(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Swap two neighbouring stretches."""
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Join the beginning of one binary with the end of another."""
    other = rng.choice(others)
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


# --- Ways to damage what the bytes mean, with checksums that fit ---------------------------------


def seal_header(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change an integer of the header or the table and make the header's checksum right."""
    count = struct.unpack_from("<I", data, 24)[0]
    end = HEADER_SIZE + SECTION_SIZE * count
    head = bytearray(data[:end])
    at, width = rng.randrange(2, end // 4) * 4, rng.choice((2, 4, 8))
    old = int.from_bytes(head[at : at + width], "little")
    change = rng.choice((old + 1, old - 1, old + 256, old ^ 1 << rng.randrange(64), *NUMBERS))
    part = (change % (1 << 8 * width)).to_bytes(width, "little")[: end - at]
    head[at : at + len(part)] = part
    struct.pack_into("<I", head, 28, 0)
    struct.pack_into("<I", head, 28, zlib.crc32(head))
    return bytes(head) + data[end:]


def seal_sections(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Exchange, drop or double sections and write a header that fits."""
    mine, other = _sections(data), _sections(rng.choice(others))
    programs = list(rng.choice((mine, other)).programs)
    rng.choice((lambda: None, lambda: programs.append(programs[0]), programs.pop))()
    constants = rng.choice((mine.constants, other.constants, mine.constants[:-1]))
    return _seal(rng.choice((mine, mine, other)).meta, programs, constants)


def seal_text(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage the description as a text."""
    parts = _sections(data)
    meta = bytes(parts.meta)
    at = rng.randrange(len(meta))
    odd = (b"\xff", b"\xd8\x00", b'"', b",", b"9" * 5000, b"NaN", b"1e999", b"\xef\xbb\xbf", b"{}")
    deep = rng.choice((10, 1000, 100_000))
    mess = rng.choice((*odd, b"[" * deep, b'{"a":' * deep, b"[" * deep + b"]" * deep))
    end = at + rng.choice((0, 0, 1, 5))
    whole = meta.decode().encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-32")))
    return _seal(
        whole if len(whole) > len(meta) else meta[:at] + mess + meta[end:],
        list(parts.programs),
        parts.constants,
    )


def seal_json(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace, remove, repeat or move values of the description."""
    parts = _sections(data)
    document = json.loads(bytes(parts.meta))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(rng, document)
    return _seal(json.dumps(document).encode(), list(parts.programs), parts.constants)


def _change(rng: random.Random, document: Any) -> None:
    places = list(_places(document))
    if not places:
        return
    holder, key = rng.choice(places)
    source, other = rng.choice(places)
    action, value = rng.randrange(6), holder[key]
    if action == 0:
        holder[key] = rng.choice(VALUES)
    elif action == 1:
        holder[key] = copy.deepcopy(source[other])
    elif action == 2:
        del holder[key]
    elif action == 3 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif isinstance(value, int):
        holder[key] = value + rng.choice((-256, -64, -1, 1, 64, 256))
    elif isinstance(value, str):  # another name of the same document
        holder[key] = rng.choice([h[k] for h, k in places if isinstance(h[k], str)])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _sections(data: bytes) -> BinarySections:
    return take_apart(memoryview(data))


def _seal(meta: bytes | memoryview, programs: list[memoryview], constants: memoryview) -> bytes:
    whole = [bytes(program) for program in programs]
    return b"".join(assemble(bytes(meta), whole, constants))


RAW: tuple[Mutation, ...] = (
    flip_bits,
    truncate,
    extend,
    overwrite_integer,
    overwrite_integer,
    swap_ranges,
    splice,
)
SEALED: tuple[Mutation, ...] = (seal_header, seal_sections, seal_text, *(seal_json,) * 5)

# --- The run -------------------------------------------------------------------------------------


def seed_binaries(seed: int) -> list[bytes]:
    """Make the sound binaries that a run damages."""
    rng = random.Random(f"seeds {seed}")  # noqa: S311  wanted: the same again
    return [b"".join(pack(random_context(rng))) for _ in range(8)]


def mutants(count: int, seed: int, binaries: Sequence[bytes]) -> Iterator[Mutant]:
    """Make the mutants of a seed."""
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")  # noqa: S311  wanted: the same again
        mutate = rng.choice(SEALED if index % 2 else RAW)
        yield Mutant(index, mutate.__name__, mutate(rng, rng.choice(binaries), binaries))


def _read(mutant: Mutant) -> tuple[str, str]:
    """Read a mutant and give how that ended: loaded, a code or FAILED, and why it failed."""
    try:
        context = unpack(mutant.content, 30010 if mutant.index % 3 else 5005)
        _use(context, len(mutant.content))
        check_device(context, "v5_1", strict=mutant.index % 4 == 0)
    except QnnError as exc:
        fault = _fault_of(exc)
        return ("FAILED", fault) if fault else (str(exc.code), "")
    return "loaded", ""


def _use(context: CompiledContext, size: int) -> None:
    tcm = judge_binary(context, size)
    info = binary_info(context, size, tcm)
    json.loads(json.dumps(info))
    if not render_text(info, tcm, "mutant").replace("\n", "").isprintable():
        raise AssertionError("a control character in the text report")
    if unpack(b"".join(pack(context))) != context:
        raise AssertionError("what was loaded is not what is written")


def _fault_of(exc: QnnError) -> str:
    """Say what is wrong with a refusal; empty when nothing is."""
    text = str(exc)
    if exc.code not in CODES:
        return f"code {exc.code} is none of {sorted(CODES)}"
    if not text.isprintable():
        return f"error text with control characters: {text[:200]!r}"
    return f"error text of {len(text)} characters" if len(text) > 1000 else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--binary", type=Path, help="a sound binary to damage instead of made ones")
    parser.add_argument("--keep", type=Path, help="folder for the mutants that failed")
    given = parser.parse_args(arguments)
    binaries = seed_binaries(given.seed) if given.binary is None else [given.binary.read_bytes()]
    damaged = mutants(given.count, given.seed, binaries)
    return 1 if try_all(given.seed, damaged, _read, given.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
