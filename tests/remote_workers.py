"""Programs that act as workers: with one fault each, or correct without the library."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from packed import packed

SOURCE = str(Path(__file__).parents[1] / "src")

# A worker by hand: sends the greeting of version `{version}`, then runs `{then}`.
_FAKE = """
from __future__ import annotations
import json, struct, sys, time
{packed}
out, into = sys.stdout.buffer, sys.stdin.buffer
def send(message, payload=b""):
    text = message if isinstance(message, bytes) else packed(message)
    out.write(struct.pack("<QQ", len(text), len(payload)) + text + payload)
    out.flush()
def read():
    text, payload = struct.unpack("<QQ", into.read(16))
    return into.read(text), into.read(payload)
out.write(b"Welcome!\\n\\nqnnmem-htp-worker\\n")
hello = {"hello": 2, "qnnmem": "{version}", "library": ["2.7.0", "1", "/far"],
         "time_limit_s": 60, "memory_limit": 1 << 32}
send(json.dumps(hello).encode())
into.readline(), into.readline(), read()
{then}
"""


def fake(then: str, version: str) -> tuple[str, ...]:
    """Return a command that sends a valid greeting and then runs this code."""
    text = _FAKE.replace("{packed}", inspect.getsource(packed))
    text = text.replace("{then}", then).replace("{version}", version)
    return (sys.executable, "-I", "-S", "-c", text)


def program(text: str) -> tuple[str, ...]:
    """Return a command that runs a few lines of Python."""
    return (sys.executable, "-I", "-S", "-c", text)


# The real program without a library; the real child serves requests that need none.
_BARE = """
import sys
sys.path.insert(0, {source!r})
from pathlib import Path
from qnnmem.htp import installed
from qnnmem.htp.remote import server
server.installed_library = lambda: installed.Library("2.7.0", "1", Path("nowhere"))
server.run_server(Path({folder!r}), 1 << 30, server.server_limits(60.0, None))
"""


def bare(folder: Path) -> tuple[str, ...]:
    """Return the command of a real worker without a library, with its files in a folder."""
    return (sys.executable, "-c", _BARE.format(source=SOURCE, folder=str(folder)))
