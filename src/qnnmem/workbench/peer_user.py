"""Which user of this machine is at the other end of a connection, where the system says so.

Every user has all of 127.0.0.0/8, so an address there tells nobody from anybody.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux; elsewhere there are none
_ESTABLISHED = "01"


def peer_user(peer: tuple[str, int], own_port: int) -> int | None:
    """The number of the user who holds the other end; None where that is not known.

    A socket that was closed in the meantime belongs to nobody, and the table then says 0 of it.
    """
    wanted = {f"{one}:{peer[1]:04X}" for one in _written(peer[0])}
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
            is_it = local in wanted and remote.endswith(f":{own_port:04X}")
            if is_it and state == _ESTABLISHED and inode != "0":
                return int(user)
    return None


def _written(address: str) -> tuple[str, ...]:
    """An address as the tables have it: words in the order of bytes of this machine."""
    try:
        if ":" in address:
            return (_words(socket.inet_pton(socket.AF_INET6, address)),)
        packed = socket.inet_pton(socket.AF_INET, address)
    except OSError:
        return ()
    return _words(packed), _words(bytes(10) + b"\xff\xff" + packed)


def _words(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
