"""Feeds damaged context binaries of the HTP backend to their reader.

Run it as `python tools/mutate_contexts.py --count 10000 --seed 0`, with `--binary FILE` for a
binary of your own, e.g. a real one. Every mutant is read; when that works, it is billed for a SoC,
rendered as text and as JSON, and nested as the vendor nests it. One in eight is embedded in an ONNX
model first. The only good ends are an answer and a LoadError whose text is one plain line. The same
seed makes the same mutants. Exit code 1 when one failed.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from context_writer import (
    example_context,
    example_graph,
    example_tensor,
    old_context,
    old_graph,
    pack_context,
)
from mutation import (
    ANY,
    NUMBERS,
    Mutant,
    Mutation,
    bump_integer,
    in_head,
    options,
    overwrite_integer,
    refusal,
    stream,
    try_all,
)

from qnnmem.errors import LoadError
from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.binary.read import context_from_bytes, read_context
from qnnmem.report import bill as bill_report
from qnnmem.report import context as context_report
from qnnmem.results.schema import encode
from qnnmem.targets.socs import find_soc

HEAD = 2048  # metadata of the seeds end before; the rest of a binary is hardly read
SOCS = (None, "SM8650", "SM7325", "SA8797")


def seed_binaries() -> list[bytes]:
    """Make sound binaries of every version."""
    tensors = tuple(example_tensor(f"t{n}", n) for n in range(5))
    graphs = [example_graph(f"graph {n}", inputs=tensors[: n + 1]) for n in range(3)]
    short = HtpGraph("short record", tensors[:1], (), 5, 4 << 20, 3, True, 6)
    contexts: list[HtpContext] = [
        example_context(),
        example_context(*graphs, context_tensors=tensors[:2]),
        example_context(short),
        old_context(),
        old_context(old_graph("a"), old_graph("b", inputs=tensors)),
        old_context(format_version=(2, 3)),
    ]
    return [pack_context(context) for context in contexts]


def overwrite_header(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Set a number of the header to something extreme."""
    at = rng.choice((0, 4, 8, 16, 24, 32))
    width = 4 if at < 8 else 8
    value = rng.choice((*NUMBERS, len(data), len(data) - 1)) % (1 << 8 * width)
    part = value.to_bytes(width, "big" if at < 8 else "little")
    return data[:at] + part + data[at + width :]


def redirect(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Copy words over others, so that offsets meet targets of another kind."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        source, target = (rng.randrange(max(len(data) - 4, 1)) // 4 * 4 for _ in range(2))
        out[target : target + 4] = out[source : source + 4]
    return bytes(out)


MUTATIONS: tuple[Mutation, ...] = (
    overwrite_header,
    *(
        in_head(mutation, HEAD)
        for mutation in (*ANY, *(overwrite_integer, bump_integer, redirect) * 2)
    ),
)


def embed(rng: random.Random, binary: bytes) -> bytes:
    """Put a binary into an ONNX model with an EPContext node; half of the models are damaged."""
    cache = _field(1, b"ep_cache_context") + _field(4, binary)
    mode = _field(1, b"embed_mode") + b"\x18\x01"
    node = _field(4, b"EPContext") + _field(5, cache) + _field(5, mode)
    model = bytearray(b"\x08\x09" + _field(7, _field(1, node)))
    if rng.random() < 0.5:
        model[rng.randrange(min(len(model), 80))] = rng.randrange(256)
    return bytes(model)


def _field(number: int, data: bytes) -> bytes:
    size, length = len(data), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data


def mutants(count: int, seed: int, binaries: Sequence[bytes]) -> Iterator[Mutant]:
    """Make the mutants of a seed."""
    for index in range(count):
        rng = stream(seed, index)
        mutate = rng.choice(MUTATIONS)
        content = mutate(rng, rng.choice(binaries), binaries)
        inside = index % 8 == 0
        reader = "onnx" if inside else "bin"
        yield Mutant(reader, index, mutate.__name__, embed(rng, content) if inside else content)


def _read(mutant: Mutant, folder: Path) -> tuple[str, str]:
    """Read a mutant and give how that ended: read, refused or FAILED, and why it failed."""
    try:
        _use(_context(mutant, folder), SOCS[mutant.index % len(SOCS)])
    except LoadError as exc:
        return refusal(exc, longest=1000)
    return "read", ""


def _context(mutant: Mutant, folder: Path) -> HtpContext:
    if mutant.reader == "bin":
        return context_from_bytes(mutant.content, "mutant.bin")
    path = folder / "mutant.onnx"
    path.write_bytes(mutant.content)
    return read_context(path)


def _use(context: HtpContext, soc: str | None) -> None:
    bill = bill_of(context, None if soc is None else find_soc(soc))
    json.dumps(context_report.as_values(context), allow_nan=False)
    json.loads(encode(bill))
    if not bill_report.render_text(bill).replace("\n", "").isprintable():
        raise AssertionError("a control character in the text report")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    parser = options(__doc__, binaries=True)
    given = parser.parse_args(arguments)
    binaries = [path.read_bytes() for path in given.binary or ()] or seed_binaries()
    damaged = mutants(given.count, given.seed, binaries)
    with tempfile.TemporaryDirectory() as folder:
        read = partial(_read, folder=Path(folder))
        return 1 if try_all(given.seed, damaged, read, given.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
