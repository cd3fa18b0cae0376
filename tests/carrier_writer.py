"""Writes files that contain context binaries, for tests of their readers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from context_writer import (
    FlatWriter,
    Inline,
    Octets,
    TableOf,
    VectorOf,
    example_context,
    example_graph,
    example_tensor,
    pack_context,
    u32,
)

from qnnmem.htp.binary.context import HtpContext, HtpGraph

DISPATCH_AT = 8192  # where the bytecode of a LiteRT model starts
SM8650, SM8750 = 57, 69


def kv_graph(name: str, new: int, length: int, **changes: object) -> HtpGraph:
    """Return a graph with a KV cache input, for `new` tokens of a context of `length`."""
    cache = example_tensor("past_key_0_in", 1, dimensions=(1, 4, 8, length - new))
    mask = example_tensor("attention_mask", 2, dimensions=(1, 1, new, length))
    return example_graph(name, inputs=(cache, mask), **changes)


def binary(*graphs: HtpGraph, soc: int = SM8650, **changes: Any) -> tuple[HtpContext, bytes]:
    """Return a context and its bytes."""
    context = example_context(*graphs, soc_model=soc, **changes)
    return context, pack_context(context)


# --- ExecuTorch -----------------------------------------------------------------------------------


def wrapped(data: bytes, padding: int = 256, magic: int = 0x5678ABCD) -> bytes:
    """Return a binary in ExecuTorch's wrapper."""
    return struct.pack("<IqQ", magic, 7, len(data)).ljust(padding, b"\0") + data


def spec(
    soc: int = SM8650,
    arch: int = 75,
    vtcm: int = 8,
    backend: int = 2,
    most_spill: int | None = None,
) -> bytes:
    """Return a compile spec."""
    info = TableOf({0: u32(soc), 1: TableOf({0: u32(arch), 1: u32(vtcm)})})
    options: dict[int, Any] = {0: u32(backend)}
    if most_spill is not None:
        options[1] = TableOf({0: u32(most_spill), 7: Inline(b"\1")})
    writer = FlatWriter()
    writer.finish(TableOf({0: info, 1: TableOf(options)}))
    return bytes(writer.data)


@dataclass(frozen=True)
class Delegate:
    """A delegate of a method."""

    index: int = 0
    inline: bool = False
    id: str = "QnnBackend"
    spec: bytes | None = None

    def table(self) -> TableOf:
        """Return the delegate as a table of the program."""
        place = {} if self.inline else {0: Inline(b"\1")}
        given = spec() if self.spec is None else self.spec
        one = TableOf({0: Octets(b"qnn_compile_spec"), 1: Octets(given)})
        return TableOf(
            {
                0: Octets(self.id.encode()),
                1: TableOf({**place, 1: u32(self.index)}),
                2: VectorOf([one]),
            }
        )


@dataclass(frozen=True)
class Method:
    """A method of a program."""

    name: str = "forward"
    delegates: Sequence[Delegate] = (Delegate(),)
    planned: Sequence[int] = (0,)
    operators: Sequence[str] = ()
    returns: int | None = None  # of a constant method

    def table(self) -> TableOf:
        """Return the method as a table of the program."""
        fields: dict[int, Any] = {0: Octets(self.name.encode())}
        if self.returns is not None:
            value = TableOf({0: Inline(struct.pack("<q", self.returns))})
            fields[2] = VectorOf([TableOf({0: Inline(b"\2"), 1: value})])
            fields[4] = Octets(struct.pack("<i", 0), 4)
        names = [TableOf({0: Octets(name.encode())}) for name in self.operators]
        fields[6] = VectorOf(names)
        fields[7] = VectorOf([one.table() for one in self.delegates])
        fields[8] = Octets(struct.pack(f"<{len(self.planned)}q", *self.planned), 8)
        return TableOf(fields)


def pte(
    methods: Sequence[Method],
    segments: Sequence[bytes] = (),
    inline: Sequence[bytes] = (),
    *,
    constants: int | None = None,
    version: bytes = b"ET12",
    places: Mapping[int, tuple[int, int]] | None = None,
) -> bytes:
    """Return a program; `places` replaces the stated offset and size of a segment."""
    rows, at = [], 0
    for number, segment in enumerate(segments):
        start, size = (places or {}).get(number, (at, len(segment)))
        rows.append(
            TableOf({0: Inline(struct.pack("<Q", start)), 1: Inline(struct.pack("<Q", size))})
        )
        at += len(segment)
    fields: dict[int, Any] = {
        1: VectorOf([method.table() for method in methods]),
        3: VectorOf([TableOf({0: Octets(data)}) for data in inline]),
        4: VectorOf(rows),
    }
    if constants is not None:
        fields[5] = TableOf({0: u32(constants), 1: Octets(bytes(16), 8)})
    writer = FlatWriter()
    root = writer.finish(TableOf(fields))
    body = bytes(writer.data[4:])
    if not segments:
        return struct.pack("<I", root + 4) + version + body
    size = 40 + len(body)
    head = struct.pack("<I4s4sIQQQ", root + 36, version, b"eh00", 32, size, size, at)
    return head + body + b"".join(segments)


# --- LiteRT ---------------------------------------------------------------------------------------


def litert(
    bytecode: bytes,
    uses: Sequence[tuple[str, int, int]] | None = None,
    *,
    maker: str = "Qualcomm",
    model: str = "SM8650",
) -> bytes:
    """Return a TFLite model whose operators run parts of the bytecode: name, start and size."""
    from flatbuffers import flexbuffers

    operators = []
    for name, start, size in uses or [("qnn_partition_0", 0, len(bytecode))]:
        builder = flexbuffers.Builder()
        with builder.Map():
            builder.Key("bytecode_offset")
            builder.UInt(DISPATCH_AT + start)
            builder.Key("bytecode_size")
            builder.UInt(size)
            builder.Key("name")
            builder.String(name)
        options = Octets(bytes(builder.Finish()))
        operators.append(TableOf({0: u32(0), 5: options}))
    operators.append(TableOf({0: u32(1)}))
    tensors = [TableOf({0: Octets(struct.pack("<2i", 2, 8), 4), 1: Inline(b"\0")})]
    stamp = maker.encode().ljust(125, b"\0") + model.encode().ljust(125, b"\0")
    custom = TableOf({0: Inline(b" "), 1: Octets(b"DISPATCH_OP"), 3: u32(32)})
    writer = FlatWriter()
    root = writer.finish(
        TableOf(
            {
                1: VectorOf([custom, TableOf({3: u32(0)})]),
                2: VectorOf([TableOf({0: VectorOf(tensors), 3: VectorOf(operators)})]),
                4: VectorOf([TableOf({}), TableOf({0: Octets(stamp)})]),
                6: VectorOf([TableOf({0: Octets(b"LiteRtStamp"), 1: u32(1)})]),
            }
        )
    )
    head = struct.pack("<I", root + 4) + b"TFL3" + bytes(writer.data[4:])
    return head.ljust(DISPATCH_AT, b"\0") + bytecode


def litertlm(models: Sequence[bytes]) -> bytes:
    """Return a LiteRT-LM file with these TFLite models."""
    rows, at, body = [], 16384, b""
    for model in models:
        end = at + len(model)
        fields = {1: Inline(struct.pack("<Q", at)), 2: Inline(struct.pack("<Q", end))}
        rows.append(TableOf({**fields, 3: Inline(b"\3")}))
        padding = -end % 16384
        body, at = body + model + bytes(padding), end + padding
    writer = FlatWriter()
    writer.finish(TableOf({1: TableOf({0: VectorOf(rows)})}))
    head = struct.pack("<8sIII4xQ", b"LITERTLM", 1, 4, 0, 32 + len(writer.data)) + writer.data
    return head.ljust(16384, b"\0") + body


# --- Folders --------------------------------------------------------------------------------------


def genie(
    folder: Path, binaries: Mapping[str, bytes], *, length: int = 128, spill: int = 0, soc: int = 57
) -> Path:
    """Write a Genie bundle and return its folder."""
    folder.mkdir(exist_ok=True)
    for name, data in binaries.items():
        (folder / name).write_bytes(data)
    engine = {
        "model": {"binary": {"version": 1, "ctx-bins": list(binaries)}},
        "backend": {"QnnHtp": {"spill-fill-bufsize": spill}, "extensions": "htp.json"},
    }
    config = {"dialog": {"version": 1, "context": {"size": length}, "engine": engine}}
    (folder / "genie_config.json").write_text(json.dumps(config))
    devices = [{"soc_model": soc, "dsp_arch": "v75"}]
    (folder / "htp.json").write_text(json.dumps({"devices": devices}))
    return folder


def epcontext(path: Path, *nodes: dict[str, Any], op_type: str = "EPContext") -> Path:
    """Write an ONNX model with nodes of these attributes and return its path."""
    import onnx
    from onnx import TensorProto, helper

    made = [
        helper.make_node(op_type, ["x"], [f"y{n}"], domain="com.microsoft", **attributes)
        for n, attributes in enumerate(nodes)
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y0")]
    graph = helper.make_graph(made, "g", values[:1], values[1:])
    onnx.save_model(helper.make_model(graph), path)
    return path
