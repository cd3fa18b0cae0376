"""Writes an ExecuTorch program (.pte) that runs a finished context binary.

Each graph of the binary becomes a method of the same name, with one call to the QNN delegate. The
binary is stored once for all methods, in a segment after the wrapper of ExecuTorch 1.2 and later.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

from qnnmem.errors import UsageError
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.qnn.enums import DataType
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.targets.socs import soc_by_id
from qnnmem.text import quote
from qnnmem.units import round_up

# ExecuTorch's numbers of element types.
_TYPES = {
    **{DataType.UINT_8: 0, DataType.UFIXED_POINT_8: 0, DataType.INT_8: 1},
    **{DataType.SFIXED_POINT_8: 1, DataType.INT_16: 2, DataType.SFIXED_POINT_16: 2},
    **{DataType.INT_32: 3, DataType.SFIXED_POINT_32: 3, DataType.INT_64: 4},
    **{DataType.FLOAT_16: 5, DataType.FLOAT_32: 6, DataType.FLOAT_64: 7, DataType.BOOL_8: 11},
    **{DataType.UINT_16: 27, DataType.UFIXED_POINT_16: 27, DataType.UINT_32: 28},
    **{DataType.UFIXED_POINT_32: 28, DataType.UINT_64: 29},
}
_TENSOR, _DELEGATE_CALL = 5, 2  # tags in the unions of values and instructions
_HTP = 2
_IN_SEGMENT = 1
_HEADER = struct.Struct("<4sIQQQ")
_WRAPPER = struct.Struct("<IqQ")
_MAGIC, _PADDING = 0x5678ABCD, 256
_ALIGN, _SEGMENT_ALIGN = 16, 4096
_MIB = 1 << 20

Part = Callable[[Any], int]  # writes itself into a builder and returns its offset


def write_pte(binary: Path, context: HtpContext, target: Path) -> None:
    """Write a program around a binary; raise UsageError for IO types that ExecuTorch lacks."""
    size = binary.stat().st_size
    program = _program(context, _PADDING + size)
    # The header is between the identifier and the first table and shifts all offsets equally.
    offset = round_up(len(program) + _HEADER.size, _SEGMENT_ALIGN)
    header = _HEADER.pack(
        b"eh00", _HEADER.size, len(program) + _HEADER.size, offset, _PADDING + size
    )
    root = struct.unpack_from("<I", program)[0] + _HEADER.size
    with target.open("xb") as file, binary.open("rb") as source:
        # The runtime uses this number as the key of a loaded context.
        signature = int.from_bytes(file_digest(source, "sha256").digest()[:8], "little") >> 1
        source.seek(0)
        file.write(struct.pack("<I", root) + program[4:8] + header + program[8:])
        file.write(bytes(offset - file.tell()))
        file.write(_WRAPPER.pack(_MAGIC, signature, size).ljust(_PADDING, b"\0"))
        shutil.copyfileobj(source, file, _MIB)


def _program(context: HtpContext, size: int) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(4096)
    spec = _spec(context)
    plans = _tables([_plan(graph, spec) for graph in context.graphs])
    segment = _table(2, {0: ("Uint64", 0), 1: ("Uint64", size)})
    # One offset means "no constant"; without it the runtime looks for constants elsewhere.
    constants = _table(2, {0: ("Uint32", 0), 1: _numbers("Uint64", 8, [0])})
    fields = {0: ("Uint32", 0), 1: plans, 2: _tables([]), 3: _tables([]), 4: _tables([segment])}
    builder.Finish(_table(8, {**fields, 5: constants})(builder), b"ET12")
    return bytes(builder.Output())


def _spec(context: HtpContext) -> bytes:
    """Return the compile spec, which states the SoC and that the program uses a context binary."""
    import flatbuffers

    soc = None if context.soc_model is None else soc_by_id(context.soc_model)
    stored = max((graph.vtcm or 0 for graph in context.graphs), default=0)
    vtcm = stored if soc is None or soc.vtcm_size is None else soc.vtcm_size.value
    htp = _table(2, {0: ("Int32", context.dsp_arch or 0), 1: ("Uint32", -(-vtcm // _MIB))})
    shares = any(graph.shared_weights for graph in context.graphs)
    options = _table(10, {8: ("Bool", shares)})
    backend = _table(2, {0: ("Int32", _HTP), 1: options})
    info = _table(2, {0: ("Int32", context.soc_model or 0), 1: htp})
    packages = _table(1, {0: _tables([])})
    builder = flatbuffers.Builder(512)
    words = {2: _text(""), 10: _text(""), 11: packages}
    builder.Finish(_table(13, {0: info, 1: backend, **words, 8: ("Bool", True)})(builder))
    return bytes(builder.Output())


def _plan(graph: HtpGraph, spec: bytes) -> Part:
    places, size = [], 0
    for tensor in graph.tensors:
        places.append(size)
        size = round_up(size + tensor.nbytes, _ALIGN)
    values = [_value(*pair) for pair in zip(graph.tensors, places, strict=True)]
    numbers = range(len(graph.tensors))
    inputs, outputs = numbers[: len(graph.inputs)], numbers[len(graph.inputs) :]
    call = _table(2, {0: ("Int32", 0), 1: _indices(numbers)})
    instruction = _table(2, {0: ("Uint8", _DELEGATE_CALL), 1: call})
    ends = {0: _indices(inputs), 1: _indices(outputs)}
    chain = _table(4, {**ends, 2: _tables([instruction])})
    key = _table(2, {0: _text("qnn_compile_spec"), 1: _octets(spec)})
    blob = _table(2, {0: ("Int8", _IN_SEGMENT), 1: ("Uint32", 0)})
    delegate = _table(3, {0: _text("QnnBackend"), 1: blob, 2: _tables([key])})
    words = _table(2, {0: _text(""), 1: _text("")})
    fields = {0: _text(graph.name), 1: words, 2: _tables(values)}
    fields |= {3: _indices(inputs), 4: _indices(outputs), 5: _tables([chain])}
    fields |= {6: _tables([]), 7: _tables([delegate]), 8: _numbers("Int64", 8, [0, size])}
    return _table(9, fields)


def _value(tensor: TensorInfo, place: int) -> Part:
    """Return an input or output as a value of the program, at an offset in the first buffer."""
    if tensor.data_type not in _TYPES:
        problem = f"tensor {quote(tensor.name)} has type {tensor.data_type.name}"
        raise UsageError(f"{problem}, which ExecuTorch does not have")
    low, high = place & 0xFFFFFFFF, place >> 32
    where = _table(3, {0: ("Uint32", 1), 1: ("Uint32", low), 2: ("Uint32", high)})
    sizes = _numbers("Int32", 4, tensor.dimensions)
    order = _octets(bytes(range(len(tensor.dimensions))))
    fields = {0: ("Int8", _TYPES[tensor.data_type]), 2: sizes, 3: order, 6: where}
    return _table(2, {0: ("Uint8", _TENSOR), 1: _table(9, fields)})


# --- FlatBuffers, inner parts first ---------------------------------------------------------------


def _table(slots: int, fields: dict[int, Any]) -> Part:
    """Return a function that writes a table.

    A field is a pair (kind, number), or a function that writes the content of the field.
    """

    def write(builder: Any) -> int:
        inner = {slot: part(builder) for slot, part in fields.items() if callable(part)}
        builder.StartObject(slots)
        for slot, value in fields.items():
            if slot in inner:
                builder.PrependUOffsetTRelativeSlot(slot, inner[slot], 0)
            else:
                kind, number = value
                getattr(builder, f"Prepend{kind}Slot")(slot, number, 0)
        return int(builder.EndObject())

    return write


def _tables(parts: Sequence[Part]) -> Part:
    def write(builder: Any) -> int:
        places = [part(builder) for part in parts]
        builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            builder.PrependUOffsetTRelative(place)
        return int(builder.EndVector())

    return write


def _numbers(kind: str, size: int, values: Sequence[int]) -> Part:
    def write(builder: Any) -> int:
        builder.StartVector(size, len(values), size)
        for value in reversed(values):
            getattr(builder, f"Prepend{kind}")(value)
        return int(builder.EndVector())

    return write


def _indices(values: Sequence[int]) -> Part:
    return _numbers("Int32", 4, values)


def _octets(data: bytes) -> Part:
    return lambda builder: int(builder.CreateByteVector(data))


def _text(text: str) -> Part:
    return lambda builder: int(builder.CreateString(text))
