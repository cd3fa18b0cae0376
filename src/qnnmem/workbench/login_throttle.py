"""Rate limit for failed logins.

A delay would not help: a correct token is answered at once, so an attacker need not wait for the
answer to a wrong one. Cookies are not counted: a session that is open stays open.
"""

from __future__ import annotations

import ipaddress
import time

BURST = 10  # failed logins of one network
REFILL_S = 6.0  # after which one more is allowed
LOOPBACK = "loopback"  # any address of this machine
_MAX_NETWORKS = 4096  # that are remembered


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
