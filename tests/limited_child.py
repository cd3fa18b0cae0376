"""A child program for tests: it tries what a hostile model would make a real one do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from qnnmem.child import limit_memory, open_replies, read_frame, write_frame


def answer(options: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """What became of one attempt."""
    if options["verb"] == "take":
        try:
            return {"taken": len(bytearray(options["bytes"]))}, b""
        except MemoryError:
            return {"taken": 0}, b""
    if options["verb"] == "sleep":
        time.sleep(options["seconds"])
    if options["verb"] == "start":
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        return {"pid": other.pid}, b""
    if options["verb"] == "reply":
        return {}, bytes(options["bytes"])
    names = [path.name for path in Path.cwd().iterdir()]
    return {"here": str(Path.cwd()), "names": names, "environment": dict(os.environ)}, b""


def main() -> None:
    """Serve until the parent closes the pipe."""
    limit_memory(int(sys.argv[1]))
    replies = open_replies()
    while (frame := read_frame(sys.stdin.buffer, 1 << 20)) is not None:
        write_frame(replies, *answer(frame[0]))


if __name__ == "__main__":
    main()
