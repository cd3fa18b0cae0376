"""Feeds damaged context binaries to their reader.

Run it as `python tools/mutate_binaries.py --count 20000 --seed 0`, with `--binary FILE` for a
binary of your own. Half of the mutants have their checksums made right again, so that they reach
the checks behind them. Every mutant goes through `unpack`; when it loads, through `check_device`,
`binary_info`, the renderer and back through `pack`. The only good ends are an answer and a QnnError
whose text is one plain line. The same seed makes the same mutants. Exit code 1 when one failed.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from mutation import (
    ANY,
    NUMBERS,
    TEXTS,
    Mutant,
    Mutation,
    change_value,
    in_head,
    options,
    overwrite_integer,
    refusal,
    stream,
    try_all,
)

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
from qnnmem.planner import Io, PoolOptions, plan_model
from qnnmem.report.inspect import render_text
from qnnmem.units import Bytes, Offset

CODES = {5004, 5005, 5008, 5011, 30010}
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(-1, -256, 2**64, 10**30, 0.5, -1.0, 1e308, None, True, False, [], {}, [[]] * 9),
    *(*TEXTS, "a" * 70_000, "v99", "float32"),
)


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
    mine, other = sections(data), sections(rng.choice(others))
    programs = list(rng.choice((mine, other)).programs)
    rng.choice((lambda: None, lambda: programs.append(programs[0]), programs.pop))()
    constants = rng.choice((mine.constants, other.constants, mine.constants[:-1]))
    return seal(rng.choice((mine, mine, other)).meta, programs, constants)


def seal_text(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage the description as a text."""
    parts = sections(data)
    meta = bytes(parts.meta)
    at = rng.randrange(len(meta))
    odd = (b"\xff", b"\xd8\x00", b'"', b",", b"9" * 5000, b"NaN", b"1e999", b"\xef\xbb\xbf", b"{}")
    deep = rng.choice((10, 1000, 100_000))
    mess = rng.choice((*odd, b"[" * deep, b'{"a":' * deep, b"[" * deep + b"]" * deep))
    end = at + rng.choice((0, 0, 1, 5))
    whole = meta.decode().encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-32")))
    return seal(
        whole if len(whole) > len(meta) else meta[:at] + mess + meta[end:],
        list(parts.programs),
        parts.constants,
    )


def seal_json(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace, remove, repeat or move values of the description."""
    parts = sections(data)
    document = json.loads(bytes(parts.meta))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change_value(rng, document, VALUES)
    return seal(json.dumps(document).encode(), list(parts.programs), parts.constants)


def sections(data: bytes) -> BinarySections:
    """Take a sound binary apart."""
    return take_apart(memoryview(data))


def seal(
    meta: bytes | memoryview, programs: Sequence[bytes | memoryview], constants: memoryview
) -> bytes:
    """Put a binary together, checksums right."""
    whole = [bytes(program) for program in programs]
    return b"".join(assemble(bytes(meta), whole, constants))


RAW = (*ANY, *(in_head(mutation, 256) for mutation in (overwrite_integer,) * 3))
SEALED: tuple[Mutation, ...] = (seal_header, seal_sections, seal_text, *(seal_json,) * 5)


def seed_binaries(seed: int) -> list[bytes]:
    """Make the sound binaries that a run damages."""
    rng = random.Random(f"seeds {seed}")  # noqa: S311  wanted: the same again
    return [b"".join(pack(random_context(rng))) for _ in range(8)]


def mutants(count: int, seed: int, binaries: Sequence[bytes]) -> Iterator[Mutant]:
    """Make the mutants of a seed."""
    for index in range(count):
        rng = stream(seed, index)
        mutate = rng.choice(SEALED if index % 2 else RAW)
        yield Mutant("bin", index, mutate.__name__, mutate(rng, rng.choice(binaries), binaries))


def _read(mutant: Mutant) -> tuple[str, str]:
    """Read a mutant and give how that ended: loaded, a code or FAILED, and why it failed."""
    try:
        context = unpack(mutant.content, 30010 if mutant.index % 3 else 5005)
        _use(context, len(mutant.content))
        check_device(context, "v5_1", strict=mutant.index % 4 == 0)
    except QnnError as exc:
        if exc.code not in CODES:
            return "FAILED", f"code {exc.code} is none of {sorted(CODES)}"
        return refusal(exc, str(exc.code), longest=1000)
    return "loaded", ""


def _use(context: CompiledContext, size: int) -> None:
    tcm = judge_binary(context, size)
    info = binary_info(context, size, tcm)
    json.loads(json.dumps(info))
    if not render_text(info, tcm, "mutant").replace("\n", "").isprintable():
        raise AssertionError("a control character in the text report")
    if unpack(b"".join(pack(context))) != context:
        raise AssertionError("what was loaded is not what is written")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    given = options(__doc__, binaries=True).parse_args(arguments)
    binaries = [path.read_bytes() for path in given.binary or ()] or seed_binaries(given.seed)
    damaged = mutants(given.count, given.seed, binaries)
    return 1 if try_all(given.seed, damaged, _read, given.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
