"""What a file seems to be that was given in place of a context binary of ours."""

from __future__ import annotations

import re

_HEAD = 4096
_VENDOR = "a context binary of Qualcomm's SDK"
_STARTS = (
    (b"\x89QMEM", "a qnnmem context binary whose line ends were changed by a transfer as text"),
    (b"\0\0\0\2\0\0\0\2", _VENDOR),
    (b"\0\0\0\2\0\0\0\3", _VENDOR),
    (b"PK\x03\x04", "a DLC or another zip archive"),
    (b"\x7fELF", "a shared library or a program"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x93NUMPY", "a numpy array"),
)
_PROTOBUF = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]")
# A Qualcomm binary names the SDK build that made it.
_SDK_BUILD = re.compile(rb"v[12]\.[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{6}|qti\.aisw|libQnn")
CURE = "qnnmem reads its own container, made by 'qnnmem prepare MODEL -o model.bin'"


def guess_kind(file: memoryview) -> str:
    """A clause that says what the file seems to be."""
    head = bytes(file[:_HEAD])
    if not head:
        return "the context binary is empty"
    kind = _kind(head)
    if kind is None:
        return "the file is not a context binary of qnnmem"
    return f"the file is not a context binary of qnnmem but seems to be {kind}"


def _kind(head: bytes) -> str | None:
    for start, kind in _STARTS:
        if head.startswith(start):
            return kind
    if head[4:8] == b"TFL3":
        return "a TFLite model"
    if _PROTOBUF.match(head):
        return "an ONNX model"
    if _SDK_BUILD.search(head):
        return _VENDOR
    if head.lstrip()[:1] in (b"{", b"["):
        return "JSON, perhaps a configuration file or an eAI report"
    return None
