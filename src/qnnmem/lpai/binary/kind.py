"""What a file seems to be that was given in place of a context binary of ours."""

from __future__ import annotations

import re

from qnnmem.loader.file_kind import kind_of_bytes

_HEAD = 4096
# A Qualcomm binary names the SDK build that made it.
_SDK_BUILD = re.compile(rb"v[12]\.[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{6}|qti\.aisw|libQnn")
_CHANGED = "a qnnmem context binary whose line ends were changed by a transfer as text"
_CURE = "qnnmem reads its own container, made by 'qnnmem prepare MODEL -o model.bin'"


def guess_kind(file: memoryview) -> tuple[str, str]:
    """A clause that says what the file seems to be, and what to do about it."""
    head = bytes(file[:_HEAD])
    if not head:
        return "the context binary is empty", _CURE
    seems, cure = _kind(head)
    but = f" but seems to be {seems}" if seems else ""
    return f"the file is not a context binary of qnnmem{but}", cure


def _kind(head: bytes) -> tuple[str, str]:
    kind = kind_of_bytes(head)
    if kind.name == "binary":
        return ("a context binary of Qualcomm's SDK" if _SDK_BUILD.search(head) else ""), _CURE
    if kind.name == "lpai":
        return _CHANGED, _CURE
    return kind.words, f"{kind.readers}; {_CURE}"
