"""Wrong tokens: how many an address may bring before its tokens are not looked at for a while.

A delay would limit nobody: a right token is answered at once, so a guesser need not wait for the
answer to a wrong one. Cookies are not counted here: whoever is in stays in, whoever guesses.
"""

from __future__ import annotations

import ipaddress
import time

AT_ONCE = 10  # wrong tokens of one address
REFILL_S = 6.0  # after which it may bring one more
LOOPBACK = "loopback"  # any of its addresses
_ADDRESSES = 4096  # that are remembered


class Guesses:
    """What each address has left; used by one thread."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}  # wrong tokens, and when that was so

    def may_try(self, address: str) -> bool:
        """Whether a token from there is looked at."""
        return self._count(network_of(address)) <= AT_ONCE - 1

    def was_wrong(self, address: str) -> None:
        """Count a wrong one."""
        network = network_of(address)
        count = self._count(network) + 1
        self._spent.pop(network, None)  # so that the one that was quiet longest stands first
        self._spent[network] = (count, time.monotonic())
        while len(self._spent) > _ADDRESSES:
            del self._spent[next(iter(self._spent))]

    def _count(self, network: str) -> float:
        count, then = self._spent.get(network, (0.0, 0.0))
        return max(0.0, count - (time.monotonic() - then) / REFILL_S)


def network_of(address: str) -> str:
    """What one machine has: an address, or the 2^64 of IPv6 that come with a line.

    All addresses that a machine has for itself are one.
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
