"""A fake device child that sends dishonest answers, as a compromised child might."""

from __future__ import annotations

import json
import os
import sys

import msgspec

from qnnmem.child import open_replies
from qnnmem.lpai.net_run.device import Ready
from qnnmem.wire import LENGTHS, read_raw, write_frame


def main() -> int:
    """Report ready, then answer every request with the reply from the environment."""
    replies = open_replies()
    said, size = json.loads(os.environ["NONSENSE"])
    read_raw(sys.stdin.buffer, 1 << 30)
    write_frame(replies, Ready())
    while read_raw(sys.stdin.buffer, 1 << 30) is not None:
        text = msgspec.msgpack.encode(said)
        replies.write(LENGTHS.pack(len(text), size) + text + bytes(min(size, 100)))
        replies.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
