"""Checks of a binary at their limits: the last valid value and the first invalid one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import pytest
from msgspec import structs

from qnnmem.errors import Damaged, WrongVersion
from qnnmem.ir import DType, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.lpai import binary as layout
from qnnmem.lpai.binary import meta as fields
from qnnmem.lpai.binary.check import check
from qnnmem.lpai.binary.meta import Description
from qnnmem.lpai.compiled import CompiledGraph, Constant
from qnnmem.planner import Io, PlacedBuffer, Pool
from qnnmem.results.inspect import FrameWindow
from qnnmem.units import Align, Bytes, Offset, Step

X, H, N = (Tensor(name, DType.INT8, (8, 4)) for name in ("x", "h", "n"))
MODEL = Model(
    "m",
    "onnx",
    {"x": X, "h": H, "n": N},
    (Op("add", "Add", ("x", "h"), ("n",)),),
    ("x", "h"),
    ("n",),
)
WINDOW = FrameWindow("win", "h", "n", 2, 8, 4, True, 0, "x")
CONSTANT = Constant("c", 3, (8, 4), Offset(256), Bytes(32), False)


def placed(name: str, at: int, pool: Pool = Pool.SCRATCH, upper: int = 2) -> PlacedBuffer:
    """Return a buffer of one tensor."""
    return PlacedBuffer(name, Bytes(32), Span(Step(0), Step(upper)), pool=pool, offset=Offset(at))


GRAPH = CompiledGraph(
    "g",
    MODEL,
    (placed("x", 0), placed("h", 0, Pool.PERSISTENT), placed("n", 32)),
    Bytes(64),
    Bytes(32),
    Align(32),
    states=(("h", "n"),),
    windows=(WINDOW,),
    constants=(CONSTANT,),
)


def fault(*graphs: CompiledGraph, constants: int = 288, hardware: str = "v6") -> str:
    """Return the fault of a description; empty if it is valid."""
    try:
        check(Description("qnnmem", hardware, graphs), constants)
    except Damaged as exc:
        return str(exc)
    return ""


def test_so_many_graphs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary has between one graph and the limit, each with a unique name."""
    monkeypatch.setitem(check.__globals__, "MAX_GRAPHS", 2)
    graphs = [replace(GRAPH, name=f"g{number}") for number in range(3)]
    assert fault() == "graphs has 0 entries; allowed: 1 to 2"
    assert [fault(*graphs[:1]), fault(*graphs[:2])] == ["", ""]
    assert fault(*graphs) == "graphs has 3 entries; allowed: 1 to 2"
    assert fault(GRAPH, GRAPH) == "graphs names 'g' twice"


def test_so_many_tensors_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on tensors counts all graphs and their bodies together."""
    body = Model("b", "onnx", {"b": X}, (), (), ("b",))
    ops = (replace(MODEL.ops[0], bodies=(body, body)),)
    nested = replace(GRAPH, name="n", model=replace(MODEL, ops=ops))
    monkeypatch.setitem(check.__globals__, "MAX_TENSORS", 8)
    assert fault(nested, GRAPH) == ""
    monkeypatch.setitem(check.__globals__, "MAX_TENSORS", 7)
    assert fault(nested, GRAPH) == "graphs have 8 tensors, over the limit of 7"


@pytest.mark.parametrize(
    ("hardware", "right"),
    [("v6", True), ("v999_999", True), ("v6\n", False), ("v1234", False), ("v\u0663", False)],
)
def test_a_hardware_version(hardware: str, right: bool) -> None:
    """A hardware version has at most three ASCII digits."""
    assert ("hw_version" not in fault(GRAPH, hardware=hardware)) == right


def buffers(**changed: PlacedBuffer) -> CompiledGraph:
    """Return the graph with some buffers replaced."""
    return replace(GRAPH, buffers=tuple(changed.get(b.name, b) for b in GRAPH.buffers))


@pytest.mark.parametrize(
    ("graph", "wanted"),
    [
        (buffers(n=placed("n", 32, upper=2)), ""),
        (
            buffers(n=placed("n", 32, upper=3)),
            ("buffers[2] ('n') is in use until step 3 of a graph with 1 steps"),
        ),
        (
            buffers(n=placed("n", 64)),
            ("buffers[2] ('n') ends at byte 96 of scratch, which has only 64 bytes"),
        ),
        (buffers(x=placed("x", 16)), "buffers[0] ('x') starts at byte 16, not a multiple of 32"),
        (buffers(x=placed("x", 0, Pool.IO)), "buffers[0] ('x') is in pool io, which this graph"),
        (replace(buffers(x=placed("x", 1 << 30, Pool.IO)), io=Io.OUTSIDE), ""),
        (
            replace(buffers(x=placed("x", 1 << 40, Pool.IO)), io=Io.OUTSIDE),
            ("of io, which has only 1,099,511,627,776 bytes"),
        ),
        (replace(GRAPH, buffers=GRAPH.buffers[:2]), "buffers do not include 'n'"),
        (replace(GRAPH, buffers=GRAPH.buffers[1:]), "buffers do not include 'x'"),
        (
            replace(GRAPH, buffers=(*GRAPH.buffers, placed("n", 0))),
            "buffers[3] places 'n' a second time",
        ),
        (
            replace(GRAPH, scratch_bytes=Bytes(128), buffers=(*GRAPH.buffers, placed("own", 96))),
            "",
        ),
    ],
)
def test_places(graph: CompiledGraph, wanted: str) -> None:
    """A buffer must lie inside a planned pool, be aligned, and die by the graph's last step."""
    found = fault(graph)
    assert wanted in found
    assert bool(found) == bool(wanted)


def test_a_graph_without_ops_has_no_steps() -> None:
    """A graph without ops has no steps, so any lifetime is valid."""
    listed = (FixedBuffer("x", 32, (0, 9)),)  # as in a buffer list
    model = replace(MODEL, ops=(), outputs=("x",), buffers=listed)
    graph = replace(GRAPH, model=model, states=(), windows=())
    assert (
        fault(
            replace(
                graph, buffers=tuple(replace(b, live=Span(Step(0), Step(9))) for b in graph.buffers)
            )
        )
        == ""
    )


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        (structs.replace(WINDOW, frames=8, stride=8), ""),
        (structs.replace(WINDOW, stride=8), ""),
        (structs.replace(WINDOW, stride=2), ""),
        (structs.replace(WINDOW, padding=8), ""),
        (structs.replace(WINDOW, reset=None), ""),
        (
            structs.replace(WINDOW, stride=3),
            "moves by 3 frames; the number must be a multiple of 2 up to 8",
        ),
        (
            structs.replace(WINDOW, stride=10),
            "moves by 10 frames; the number must be a multiple of 2 up to 8",
        ),
        (structs.replace(WINDOW, frames=16, stride=16), "has 8 frames, not a multiple of the 16"),
        (
            structs.replace(WINDOW, frames=4, stride=2),
            "moves by 2 frames; the number must be a multiple of 4 up to 8",
        ),
        (structs.replace(WINDOW, padding=9), "has 9 frames of padding, but only 8 frames"),
        (structs.replace(WINDOW, reset="n"), "uses the reset 'n', which is not an input"),
        (structs.replace(WINDOW, new="h"), "uses tensors that are not a state pair"),
    ],
)
def test_windows(window: FrameWindow, wanted: str) -> None:
    """A window's stride, padding and size must be multiples of its frames and fit inside it."""
    found = fault(replace(GRAPH, windows=(window,)))
    assert wanted in found
    assert bool(found) == bool(wanted)


def test_names_are_unique_and_known() -> None:
    """Window names are unique; a state pair is an input and an output of equal shape."""
    assert fault(replace(GRAPH, windows=(WINDOW, WINDOW))) == "graphs[0].windows names 'win' twice"
    assert "states[0] ('h', 'x') is not a pair of an" in fault(replace(GRAPH, states=(("h", "x"),)))
    other = {"x": X, "h": H, "n": Tensor("n", DType.INT8, (4, 8))}
    assert ("which has another type or shape") in fault(
        replace(GRAPH, model=replace(MODEL, tensors=other))
    )


def test_constants() -> None:
    """A constant may end at the last byte of the section, not beyond."""
    assert fault(GRAPH, constants=288) == ""
    wanted = "graphs[0].constants[0] ('c') ends at byte 288, but there are 287 bytes of constants"
    assert fault(GRAPH, constants=287) == wanted


# --- Values --------------------------------------------------------------------------------------


class Word(Enum):
    """An enumeration of two words."""

    YES = "yes"
    NO = "no"


LONGEST = "x" * fields.MAX_TEXT


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (fields.text, "", ""),
        (fields.text, LONGEST, LONGEST),
        (fields.flag, False, False),
        (fields.integer(2, 5), 2, 2),
        (fields.integer(2, 5), 5, 5),
        (fields.word(Word), "no", Word.NO),
        (fields.listing(fields.flag, 2), [True, False], (True, False)),
        (fields.listing(fields.flag), [True] * 3, (True, True, True)),
        (fields.pair(fields.text), ["a", "b"], ("a", "b")),
        (fields.optional(fields.flag), None, None),
        (fields.optional(fields.flag), True, True),
    ],
)
def test_a_value_at_its_bound_is_read(read: Callable[[Any], Any], value: Any, found: Any) -> None:
    """A value at its limit is read unchanged."""
    assert read(value) == found


@pytest.mark.parametrize(
    ("read", "value", "wanted"),
    [
        (fields.text, LONGEST + "x", "has 65,537 characters, over the limit of 65,536"),
        (fields.text, None, "is null instead of a string"),
        (fields.text, b"x", "instead of a string"),
        (fields.flag, 0, "is 0 instead of true or false"),
        (fields.flag, "x", "is 'x' instead of true or false"),
        (fields.integer(2, 5), 1, "is 1, not between 2 and 5"),
        (fields.integer(2, 5), 6, "is 6, not between 2 and 5"),
        (fields.integer(0, 5), True, "is true instead of a whole number"),
        (fields.integer(0, 5), False, "is false instead of a whole number"),
        (fields.integer(0, 5), 1.5, "is 1.5 instead of a whole number"),
        (fields.word(Word), "YES", "is 'YES'; it must be one of yes, no"),
        (fields.word(Word), ["yes"], "it must be one of yes, no"),
        (fields.listing(fields.flag, 2), [True] * 3, "has 3 entries, over the limit of 2"),
        (fields.listing(fields.flag), (True,), "instead of a list"),
        (fields.listing(fields.flag), [True, 3], "[1] is 3 instead of true or false"),
        (fields.pair(fields.text), ["a"], "must have two entries"),
        (fields.pair(fields.text), ["a", "b", "c"], "has 3 entries, over the limit of 2"),
        (fields.Row(dict, a=fields.flag), [], "instead of an object"),
        (fields.Row(dict, a=fields.flag, b=fields.flag), {"b": 1}, "lacks 'a'"),
        (fields.Row(dict, a=fields.flag), {"a": 1, "b": 1}, "has an unknown key 'b'"),
        (fields.Row(dict, a=fields.flag), {"a": 1}, "a is 1 instead of"),
    ],
)
def test_a_value_beyond_its_bound_is_refused(
    read: Callable[[Any], Any], value: Any, wanted: str
) -> None:
    """A value beyond its limit is refused with the value and the expected form."""
    with pytest.raises(Damaged) as caught:
        read(value)
    assert wanted in str(caught.value)


# --- Bytes ---------------------------------------------------------------------------------------


def file(programs: int = 1, constants: bytes = b"c") -> bytes:
    """Return a binary with a minimal description, programs and constants."""
    return b"".join(layout.assemble(b"{}", [b"p"] * programs, memoryview(constants)))


def resealed(data: bytes, at: int, form: str, value: int) -> bytes:
    """Return the file with one number changed and a correct header checksum."""
    (end,) = struct.unpack_from("<I", data, 12)
    head = bytearray(data[:end])
    struct.pack_into(form, head, at, value)
    struct.pack_into("<I", head, 28, 0)
    struct.pack_into("<I", head, 28, zlib.crc32(head))
    return bytes(head) + data[end:]


def refused(data: bytes) -> str:
    """Return the fault of a file."""
    with pytest.raises((Damaged, WrongVersion)) as caught:
        layout.take_apart(memoryview(data))
    return str(caught.value)


def test_sections_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with as many programs as allowed, and empty constants, reads back equal."""
    monkeypatch.setattr(layout, "MAX_GRAPHS", 3)
    for count in (1, 3):
        meta, programs, constants = layout.take_apart(memoryview(file(count, b"")))
        assert (bytes(meta), [bytes(p) for p in programs], bytes(constants)) == (
            b"{}",
            [b"p"] * count,
            b"",
        )
    assert refused(file(0)) == "the header states 2 sections; allowed: 3 to 5"
    assert refused(file(4)) == "the header states 6 sections; allowed: 3 to 5"


def test_a_description_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description may have as many bytes as allowed; other sections may be longer."""
    monkeypatch.setattr(layout, "MAX_META", 2)
    assert layout.take_apart(memoryview(file(1, bytes(99))))
    monkeypatch.setattr(layout, "MAX_META", 1)
    assert refused(file()) == "the description has 2 bytes, over the limit of 1"


@pytest.mark.parametrize(
    ("at", "form", "value", "wanted"),
    [
        (8, "<H", 0, "has format version 0.0; this qnnmem reads 1.0"),
        (10, "<H", 1, "has format version 1.1; this qnnmem reads 1.0"),
        (16, "<Q", 769, ""),
        (16, "<Q", 770, "the file ends after 769 of 770 bytes"),
        (16, "<Q", 768, "the file has 769 bytes but should have 768"),
        (12, "<I", 161, "the header states a size of 161 bytes, which is wrong for 3 sections"),
        (32, "<B", 1, "the header's reserved bytes are not zero"),
        (63, "<B", 1, "the header's reserved bytes are not zero"),
        (100, "<I", 1, "section 1 of the table is not the expected program"),
        (128, "<I", 2, "section 2 of the table is not the expected constants"),
        (
            96 + 16,
            "<Q",
            769 - 512,
            ("the table gives 768 instead of 1,024 as the offset of the constants"),
        ),
        (
            96 + 16,
            "<Q",
            769 - 511,
            "the table gives 258 as the size of the program section 0, past the end of the file",
        ),
        (128 + 16, "<Q", 0, "the last section ends at byte 768, but the file ends at 769"),
        (
            128 + 16,
            "<Q",
            2,
            "the table gives 2 as the size of the constants section, past the end of the file",
        ),
    ],
)
def test_each_number_of_a_header_has_one_value(at: int, form: str, value: int, wanted: str) -> None:
    """Each number in the header has one valid value; any other is refused with a reason."""
    data = file()
    assert len(data) == 769
    if at == 12:  # the header's own size: one byte more under the checksum
        head = bytearray(data)
        struct.pack_into(form, head, at, value)
        data = bytes(head)
    else:
        data = resealed(data, at, form, value)
    if wanted:
        assert wanted in refused(data)
    else:
        assert layout.take_apart(memoryview(data))


def test_what_lies_between_sections_is_nothing() -> None:
    """Padding between sections must be zero, from the first byte to the last."""
    for at, name in (
        (160, "description"),
        (255, "description"),
        (258, "program section 0"),
        (767, "const"),
    ):
        data = bytearray(file())
        data[at] = 1
        assert f"the padding before the {name}" in refused(bytes(data))
    assert refused(file()[:64]) == "the file ends after 64 of 769 bytes"
    assert refused(file()[:63]) == "the file ends after 63 bytes, inside its header"
