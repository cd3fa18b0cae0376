"""Programs that are started as workers: wrong in one way each, or right without the library."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[1] / "src")

# A worker by hand: greets as version `{version}`, then does `{then}`.
_FAKE = """
import json, struct, sys, time
out, into = sys.stdout.buffer, sys.stdin.buffer
def send(header, payload=b""):
    text = json.dumps(header).encode()
    out.write(struct.pack("<QQ", len(text), len(payload)) + text + payload)
    out.flush()
def read():
    text, payload = struct.unpack("<QQ", into.read(16))
    return json.loads(into.read(text)), into.read(payload)
out.write(b"Welcome!\\n\\nqnnmem-htp-worker\\n")
hello = {"hello": 1, "qnnmem": "{version}", "library": ["2.7.0", "1", "/far"],
         "time_limit_s": 60, "memory_limit": 1 << 32}
send(hello)
into.readline(), into.readline(), read()
{then}
"""


def fake(then: str, version: str) -> tuple[str, ...]:
    """Give a command that greets rightly and then does something of its own."""
    text = _FAKE.replace("{then}", then).replace("{version}", version)
    return (sys.executable, "-I", "-S", "-c", text)


def program(text: str) -> tuple[str, ...]:
    """Give a command that runs a few lines of Python."""
    return (sys.executable, "-I", "-S", "-c", text)


# The real program without a library: requests that need none are served by the real child.
_BARE = """
import sys
sys.path.insert(0, {source!r})
from pathlib import Path
from qnnmem.htp import installed
from qnnmem.htp.far import server
server.installed_library = lambda: installed.Library("2.7.0", "1", Path("nowhere"))
server.run_server(Path({folder!r}), 1 << 30, server.server_limits(60.0, None))
"""


def bare(folder: Path) -> tuple[str, ...]:
    """Give the command of a real worker whose library is nowhere, with its files in a folder."""
    return (sys.executable, "-c", _BARE.format(source=SOURCE, folder=str(folder)))
