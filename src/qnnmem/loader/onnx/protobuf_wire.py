"""Checks the bytes of an ONNX file before a protobuf library unpacks them.

A few bytes on disk can become hundreds in memory (an empty message, a one-byte number). So limits
on the number of messages, and on bytes other than plain weight data, are checked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qnnmem.deadline import ask_deadline
from qnnmem.errors import Damaged, LoadError

MAX_MESSAGES = 4_000_000
MAX_STRUCTURE_BYTES = 512 << 20
# Nested bodies take three messages per level; protobuf itself refuses more than 100.
MAX_DEPTH = 90

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PLAIN = {"Tensor": frozenset({4, 9, 10})}  # float_data, raw_data, double_data: same size in memory

# Message fields by number (onnx.proto); an unlisted field is skipped as bytes.
_FIELDS = {
    "Model": {7: "Graph", 8: "Leaf", 14: "Leaf", 20: "Training", 25: "Function", 26: "Leaf"},
    "Training": {1: "Graph", 2: "Graph", 3: "Leaf", 4: "Leaf"},
    "Function": {
        **{4: "Leaf", 5: "Leaf", 6: "Leaf"},
        **{7: "Node", 9: "Leaf", 11: "Attribute", 12: "Value", 14: "Leaf"},
    },
    "Graph": {
        **{1: "Node", 5: "Tensor", 11: "Value", 12: "Value", 13: "Value"},
        **{14: "Annotation", 15: "Sparse", 16: "Leaf"},
    },
    "Node": {1: "Leaf", 2: "Leaf", 5: "Attribute", 9: "Leaf", 10: "Leaf"},
    "Attribute": {
        **{5: "Tensor", 6: "Graph", 9: "Leaf", 10: "Tensor", 11: "Graph"},
        **{14: "Type", 15: "Type", 22: "Sparse", 23: "Sparse"},
    },
    "Tensor": {3: "Leaf", 6: "Leaf", 13: "Leaf", 16: "Leaf"},
    "Sparse": {1: "Tensor", 2: "Tensor"},
    "Annotation": {2: "Leaf"},
    "Value": {2: "Type", 4: "Leaf"},
    "Type": {1: "TensorType", 4: "Nested", 5: "Nested", 8: "TensorType", 9: "Nested"},
    "Nested": {1: "Type", 2: "Type"},
    "TensorType": {2: "Shape"},
    "Shape": {1: "Leaf"},
    "Leaf": {},
}


def check_wire(path: Path, blob: bytes) -> None:
    """Raise LoadError unless the file unpacks into bounded memory."""
    try:
        _Scan(blob).walk()
    except Damaged as exc:
        raise LoadError(path, str(exc)) from None


class _Scan:
    """Counts the messages of a file, and the bytes of plain weights."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self.messages = 0
        self.plain_bytes = 0

    def walk(self) -> None:
        """Visit every message with an explicit stack, because the file controls the depth.

        Only enclosing messages are on the stack: a list of all siblings could grow without bound.
        """
        stack = [self._children("Model", 0, len(self.blob))]
        while stack:
            ask_deadline()
            message = next(stack[-1], None)
            if message is None:
                stack.pop()
                continue
            self.messages += 1
            if self.messages > MAX_MESSAGES:
                raise Damaged(
                    f"contains more than {MAX_MESSAGES:,} protobuf messages, the limit for reading"
                )
            if message[0] == "Leaf":
                continue
            if len(stack) > MAX_DEPTH:
                raise Damaged("contains graphs that are nested too deeply")
            stack.append(self._children(*message))
        if len(self.blob) - self.plain_bytes > MAX_STRUCTURE_BYTES:
            size = MAX_STRUCTURE_BYTES >> 20
            raise Damaged(
                f"contains more than {size} MiB besides raw weights; store weights as raw_data"
            )

    def _children(self, kind: str, offset: int, end: int) -> Iterator[tuple[str, int, int]]:
        fields: dict[int, str] = _FIELDS[kind]
        plain: frozenset[int] = _PLAIN.get(kind, frozenset())
        blob = self.blob
        while offset < end:
            tag = blob[offset]
            offset += 1
            if tag > 127:
                tag, offset = self._varint(offset - 1, end)
            wire = tag & 7
            if wire == _BYTES:
                size = blob[offset] if offset < end else 128
                offset += 1
                if size > 127:
                    size, offset = self._varint(offset - 1, end)
                if size > end - offset:
                    raise Damaged("is truncated or not an ONNX model")
                number = tag >> 3
                if number in plain:
                    self.plain_bytes += size
                elif number in fields:
                    yield fields[number], offset, offset + size
                offset += size
            else:
                offset = self._skip(wire, offset, end)

    def _skip(self, wire: int, offset: int, end: int) -> int:
        if wire == _VARINT:
            while offset < end and self.blob[offset] > 127:
                offset += 1
            offset += 1
        elif wire in (_FIXED64, _FIXED32):
            offset += 8 if wire == _FIXED64 else 4
        else:  # groups do not occur in ONNX
            raise Damaged("is not an ONNX model")
        if offset > end:
            raise Damaged("is truncated or not an ONNX model")
        return offset

    def _varint(self, offset: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while offset < end and shift < 70:
            byte = self.blob[offset]
            offset += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, offset
            shift += 7
        raise Damaged("is truncated or not an ONNX model")
