"""Rate limit for failed logins, and the identity of clients.

A delay would not help: a correct token is answered at once, so an attacker need not wait for the
answer to a wrong one. Cookies are not counted: a session that is open stays open.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from pathlib import Path

BURST = 10  # failed logins of one network
REFILL_S = 6.0  # after which one more is allowed
LOOPBACK = "loopback"  # any address of this machine
_MAX_NETWORKS = 4096  # that are remembered
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux; elsewhere there are none
_ESTABLISHED = "01"


class LoginThrottle:
    """Token bucket per client network: 10 failed logins, then one every 6 s.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}  # failures, and when that was so

    def allows(self, address: str) -> bool:
        """Return whether a login from this address is checked at all."""
        return self._count(network_of(address)) <= BURST - 1

    def record_failure(self, address: str) -> None:
        """Count a failed login."""
        network = network_of(address)
        count = self._count(network) + 1
        self._spent.pop(network, None)  # the network that was quiet longest stands first
        self._spent[network] = (count, time.monotonic())
        while len(self._spent) > _MAX_NETWORKS:
            del self._spent[next(iter(self._spent))]

    def _count(self, network: str) -> float:
        count, then = self._spent.get(network, (0.0, 0.0))
        return max(0.0, count - (time.monotonic() - then) / REFILL_S)


def network_of(address: str) -> str:
    """Return the network of one client: an IPv4 address, or the /64 of an IPv6 address.

    All loopback addresses are one network.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6:
        if found.ipv4_mapped is None and not found.is_loopback:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped or found
    return LOOPBACK if found.is_loopback else str(found)


def peer_user(peer: tuple[str, int], own_port: int) -> int | None:
    """Return the user at the other end of a connection on this machine; None if it is unknown.

    Every user has all of 127.0.0.0/8, so an address there does not tell users apart.
    """
    wanted = {f"{one}:{peer[1]:04X}" for one in _written(peer[0])}
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
            # A socket that was closed meanwhile belongs to nobody: the table has inode 0.
            is_it = local in wanted and remote.endswith(f":{own_port:04X}")
            if is_it and state == _ESTABLISHED and inode != "0":
                return int(user)
    return None


def _written(address: str) -> tuple[str, ...]:
    """Return an address as the tables have it: words in the byte order of this machine."""
    try:
        if ":" in address:
            return (_words(socket.inet_pton(socket.AF_INET6, address)),)
        packed = socket.inet_pton(socket.AF_INET, address)
    except OSError:
        return ()
    return _words(packed), _words(bytes(10) + b"\xff\xff" + packed)


def _words(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
