"""A child that answers as no device of ours would: what a program could make of it at worst."""

from __future__ import annotations

import json
import os
import sys

from qnnmem.child import LENGTHS, open_replies, read_frame


def main() -> int:
    """Answer the settings and every request with the bytes that the environment names."""
    replies = open_replies()
    header, size = json.loads(os.environ["NONSENSE"])
    while read_frame(sys.stdin.buffer, 1 << 30) is not None:
        text = header.encode()
        replies.write(LENGTHS.pack(len(text), size) + text + bytes(min(size, 100)))
        replies.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
