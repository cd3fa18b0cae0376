"""Context binaries: reading returns what was written, with the documented bytes."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_contexts import random_context

from qnnmem.errors import LoadError, OutputError, UsageError
from qnnmem.ir import DType, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.lpai.binary import map_file, pack, unpack, write
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.planner import Io, PlacedBuffer, Pool, PoolOptions, plan_model
from qnnmem.units import Align, Bytes, Offset, Step


def small_graph(name: str = "g", program: bytes = b"program") -> CompiledGraph:
    """Return a compiled graph of x + w -> a -> y."""
    tensors = {n: Tensor(n, DType.INT8, (1, 40)) for n in ("x", "w", "a", "y")}
    ops = (Op("add", "Add", ("x", "w"), ("a",), sources=(0,)), Op("relu", "Relu", ("a",), ("y",)))
    model = Model("m", "onnx", tensors, ops, ("x",), ("y",), ("w",))
    plan = plan_model(model, PoolOptions(io=Io.INSIDE))
    return CompiledGraph(
        name,
        model,
        plan.buffers,
        plan.scratch_bytes,
        plan.persistent_bytes,
        plan.align,
        quants={"x": Quant(0.25, -3), "y": Quant(0.5, 0)},
        constants=(Constant("w", 3, (1, 40), Offset(256), Bytes(40), False),),
        program=program,
    )


def small_context(*graphs: CompiledGraph) -> CompiledContext:
    """Return a context of these graphs, or of one small graph."""
    stored = memoryview(bytes(256) + bytes(range(40)))
    return CompiledContext(graphs or (small_graph(),), "v6", "qnnmem 0.1.0", stored)


def packed(context: CompiledContext) -> bytes:
    """Return the packed context as one piece."""
    return b"".join(pack(context))


def sections(data: bytes) -> list[tuple[int, int, int, int, int, int]]:
    """Return the section table, read as documented."""
    (count,) = struct.unpack_from("<I", data, 24)
    return [struct.unpack_from("<IIQQII", data, 64 + 32 * n) for n in range(count)]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_read_is_what_was_written(seed: int) -> None:
    """Graphs with bodies, views, states, windows and constants read back equal."""
    context = random_context(random.Random(seed))  # noqa: S311 - reproducible, not secret
    assert unpack(packed(context)) == context


@given(
    name=st.text(max_size=50),
    note=st.text(st.characters(), max_size=50),
    scale=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    zero=st.integers(-(2**31), 2**31 - 1),
    program=st.binary(max_size=600),
)
def test_any_name_and_number_comes_back(
    name: str, note: str, scale: float, zero: int, program: bytes
) -> None:
    """Names with any character, finite scales and all zero points read back equal."""
    graph = replace(
        small_graph(name, program), notes=(note, "\ud800"), quants={"x": Quant(scale, zero)}
    )
    context = small_context(graph)
    assert unpack(packed(context)) == context


def test_equal_contexts_have_equal_bytes() -> None:
    """The order of tensors and quantizations in memory does not change the binary."""
    graph = small_graph()
    turned = replace(
        graph,
        model=replace(graph.model, tensors=dict(sorted(graph.model.tensors.items(), reverse=True))),
        quants=dict(sorted(graph.quants.items(), reverse=True)),
    )
    assert list(turned.model.tensors) != list(graph.model.tensors)
    assert packed(small_context(turned)) == packed(small_context(graph))


def test_different_contexts_have_different_bytes() -> None:
    """A plan that differs in one offset gives another binary."""
    graph = small_graph()
    moved = replace(graph.buffers[0], offset=Offset(graph.scratch_bytes - 64))
    assert graph.buffers[0].offset != moved.offset
    other = replace(graph, buffers=(moved, *graph.buffers[1:]))
    assert packed(small_context(other)) != packed(small_context(graph))


def test_a_plan_with_overlaps_loads() -> None:
    """The reader accepts a plan whose live buffers overlap."""
    graph = small_graph()
    piled = tuple(replace(buffer, offset=Offset(0)) for buffer in graph.buffers)
    context = small_context(replace(graph, buffers=piled))
    assert {buffer.offset for buffer in unpack(packed(context)).graphs[0].buffers} == {0}


def test_a_layout_without_ops_is_kept() -> None:
    """A layout from a buffer list, which has no tensors, reads back equal."""
    live = Span(Step(0), Step(5))
    fixed = FixedBuffer("b", Bytes(10), live, Align(2), Offset(4))
    free = FixedBuffer("c", Bytes(10), live)
    model = Model("m", "csv", buffers=(fixed, free))
    buffers = tuple(
        PlacedBuffer(name, Bytes(10), live, pool=Pool.SCRATCH, offset=Offset(at))
        for name, at in (("b", 4), ("c", 14))
    )
    graph = CompiledGraph("g", model, buffers, Bytes(24), Bytes(0), Align(2))
    context = CompiledContext((graph,), "v6", "qnnmem 0.1.0")
    assert unpack(packed(context)) == context


def test_the_header_is_as_documented() -> None:
    """Magic, version, sizes and checksum are at the documented offsets."""
    data = packed(small_context(small_graph("a"), small_graph("b")))
    magic, major, minor, head, size, count, crc = struct.unpack_from("<8sHHIQII", data)
    assert (magic, major, minor) == (b"\x89QMEM\r\n\x1a", 1, 0)
    assert (head, size, count) == (64 + 32 * 4, len(data), 4)
    assert crc == zlib.crc32(data[:28] + bytes(4) + data[32:head])


def test_sections_are_as_documented() -> None:
    """Description, programs and constants are in order, 256-byte aligned, with checksums."""
    data = packed(small_context(small_graph("a", b"one"), small_graph("b", b"")))
    table = sections(data)
    assert [(kind, number) for kind, number, *_ in table] == [(1, 0), (2, 0), (2, 1), (3, 0)]
    end = 64 + 32 * len(table)
    for _, _, offset, size, crc, reserved in table:
        assert offset % 256 == 0
        assert (offset - end < 256, any(data[end:offset]), reserved) == (True, False, 0)
        assert crc == zlib.crc32(data[offset : offset + size])
        end = offset + size
    assert end == len(data)


def test_constants_are_a_view_of_the_file() -> None:
    """Constants are a read-only view of the file, not a copy."""
    data = bytearray(packed(small_context()))
    view = unpack(data).constants
    start = sections(bytes(data))[-1][2]
    assert view.obj is data
    assert view.readonly
    data[start + 256] = 99
    assert view[256] == 99


def test_constants_of_any_shape_are_written_as_bytes() -> None:
    """A view with wider elements is stored as its bytes."""
    wide = memoryview(bytes(256) + bytes(range(40))).cast("I")
    context = replace(small_context(), constants=wide)
    assert unpack(packed(context)) == small_context()


@pytest.mark.parametrize(
    "change",
    [
        {"producer": "someone else 3"},
        {"hw_version": "6"},
        {"graphs": ()},
        {"graphs": (small_graph("g"), small_graph("g"))},
        {"graphs": (replace(small_graph(), scratch_bytes=Bytes(0)),)},
        {"graphs": (replace(small_graph(), quants={"x": Quant(float("nan"), 0)}),)},
        {"constants": memoryview(b"")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_could_not_be_read_is_not_written(change: dict[str, object]) -> None:
    """A context that the reader would refuse is not written."""
    with pytest.raises(UsageError):
        pack(replace(small_context(), **change))  # type: ignore[arg-type]  # wrong on purpose


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """A written file holds the whole binary, and no temporary file remains."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"older")
    size = write(small_context(), path)
    assert path.read_bytes() == packed(small_context())
    assert (size, list(tmp_path.iterdir())) == (path.stat().st_size, [path])


def test_a_failure_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises OutputError and leaves the older file unchanged."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"older")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        write(small_context(), path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"older", [path])


@pytest.mark.parametrize(
    "name", ["", "missing/model.bin", "a\0b"], ids=["folder", "missing", "nul"]
)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    """A folder, a missing folder or an impossible name raises OutputError."""
    with pytest.raises(OutputError):
        write(small_context(), tmp_path / name)


def test_a_binary_can_be_mapped(tmp_path: Path) -> None:
    """A mapped binary is read without a copy, with its constants 256-byte aligned in memory."""
    import numpy as np

    path = tmp_path / "model.bin"
    write(small_context(), path)
    found = unpack(map_file(path))
    assert found == small_context()
    assert np.frombuffer(found.constants, np.uint8).ctypes.data % 256 == 0


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
def test_a_file_that_cannot_be_mapped_is_named(tmp_path: Path, content: bytes | None) -> None:
    """A missing or empty file raises LoadError with its name."""
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LoadError, match=r"model\.bin"):
        map_file(path)
