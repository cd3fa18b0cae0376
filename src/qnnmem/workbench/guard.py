"""Access control: checks of host, origin and token, and a rate limit for failed logins.

A page of another site can make a browser send requests to the workbench. Such requests name another
origin. If a foreign host name points to this machine (DNS rebinding), the Host header has that
name, and the request is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
import struct
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from qnnmem.workbench.answers import HEADERS, refusal, static_answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BURST = 10  # failed logins of one network
REFILL_S = 6.0  # seconds until another attempt is allowed
LOOPBACK = "loopback"  # network of all addresses of this machine
_MAX_NETWORKS = 4096  # networks remembered
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux only
_ESTABLISHED = "01"
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Paths that need no token: the login form and its files.
_OPEN = ("/login", "/static/login.js", "/static/app.css", "/static/icon.svg")


class LoginThrottle:
    """Token bucket per client network: 10 failed logins, then one every 6 s.

    For use by a single thread.
    """

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}  # by network: failures, and their time

    def allows(self, address: str) -> bool:
        """Return True if a login from this address can be tried now."""
        return self._count(network_of(address)) <= BURST - 1

    def record_failure(self, address: str) -> None:
        """Count a failed login."""
        network = network_of(address)
        count = self._count(network) + 1
        self._spent.pop(network, None)  # the network that was idle longest is first
        self._spent[network] = (count, time.monotonic())
        while len(self._spent) > _MAX_NETWORKS:
            del self._spent[next(iter(self._spent))]

    def _count(self, network: str) -> float:
        count, then = self._spent.get(network, (0.0, 0.0))
        return max(0.0, count - (time.monotonic() - then) / REFILL_S)


def network_of(address: str) -> str:
    """Return the network of a client: an IPv4 address, or the /64 of an IPv6 address.

    All loopback addresses are one network.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 6:
        if ip.ipv4_mapped is None and not ip.is_loopback:
            return str(ipaddress.ip_network((ip, 64), strict=False))
        ip = ip.ipv4_mapped or ip
    return LOOPBACK if ip.is_loopback else str(ip)


def peer_user(peer: tuple[str, int], own_port: int) -> int | None:
    """Return the user id of the process at the other end of a local connection; None if unknown.

    Every local user can use all addresses in 127.0.0.0/8, so an address does not identify a user.
    """
    wanted = {f"{written}:{peer[1]:04X}" for written in _written(peer[0])}
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
            # A socket that was closed meanwhile has no owner: the table shows inode 0.
            is_it = local in wanted and remote.endswith(f":{own_port:04X}")
            if is_it and state == _ESTABLISHED and inode != "0":
                return int(user)
    return None


def _written(address: str) -> tuple[str, ...]:
    """Return the forms of an address in `/proc/net/tcp`: words in the machine's byte order."""
    try:
        if ":" in address:
            return (_words(socket.inet_pton(socket.AF_INET6, address)),)
        packed = socket.inet_pton(socket.AF_INET, address)
    except OSError:
        return ()
    return _words(packed), _words(bytes(10) + b"\xff\xff" + packed)


def _words(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))


@dataclass(frozen=True, slots=True)
class Access:
    """Address, allowed hosts and token of the workbench."""

    port: int
    is_local: bool = True  # only this machine can connect
    token: str = ""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    throttle: LoginThrottle = field(default_factory=LoginThrottle)

    @property
    def cookie(self) -> str:
        """Return the cookie's name with the port in it: browsers share cookies between ports."""
        return f"qnnmem-{self.port}"

    def takes_host(self, text: str) -> bool:
        """Return True if a Host header names this machine."""
        match = _HOST.fullmatch(text)
        if match is None:
            return False
        name = match["name"].lower()
        if self.is_local:
            return name in _LOOPBACK and int(match["port"] or 80) == self.port
        return name in (*_LOOPBACK, *_own_names()) or _is_address(name)

    def takes_token(self, text: str) -> bool:
        """Return True for the right token, compared in constant time."""
        return hmac.compare_digest(text.encode(), self.token.encode())

    def refused_token(self, text: str, address: str) -> tuple[int, str] | None:
        """Check a login; return None for the right token, else a status and a sentence."""
        if not self.throttle.allows(address):
            return 429, "this address sent too many wrong tokens; wait a minute"
        if self.token and self.takes_token(text):
            return None
        self.throttle.record_failure(address)
        return 401, "wrong token"

    def kept_out(self, request: Request) -> tuple[int, str] | None:
        """Return None for a request with a valid cookie or token, else a status and a sentence."""
        if not self.token or self._brings_cookie(request):
            return None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.refused_token(token.strip(), address_of(request))
        return 401, "the token is missing"

    def _brings_cookie(self, request: Request) -> bool:
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return False
        brought = cookies.get(self.cookie)
        return brought is not None and hmac.compare_digest(
            brought.value.encode(), self.session.encode()
        )


def address_of(request: Request) -> str:
    """Return the address of a client; for a local client, return its user.

    Failed logins are counted by address, so another local user's wrong tokens do not lock out the
    owner.
    """
    if request.client is None:
        return ""
    host, port = request.client
    server = request.scope.get("server")
    if network_of(host) != LOOPBACK or not server:
        return host
    user = peer_user((host, port), server[1])
    return host if user is None else f"user {user}"


def _own_names() -> tuple[str, ...]:
    return tuple({name.lower() for name in (socket.gethostname(), socket.getfqdn())})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def refused(request: Request, access: Access) -> tuple[int, str] | None:
    """Return None if the request is allowed, else a status and a sentence."""
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not access.takes_host(hosts[0]):
        return 421, "this is not the address of the workbench; open the address that it printed"
    origins = request.headers.getlist("origin")
    if origins and origins != [f"http://{hosts[0]}"]:
        return 403, "requests from pages of other origins are refused"
    if any(site not in ("same-origin", "none") for site in _sites(request)):
        return 403, "requests from other sites are refused; type the address into the browser"
    return None if request.url.path in _OPEN else access.kept_out(request)


def _sites(request: Request) -> Iterable[str]:
    return request.headers.getlist("sec-fetch-site")


class Guard:
    """Middleware that refuses forbidden requests and adds security headers to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # web sockets are not supported
        request = Request(scope, receive)

        async def send_guarded(message: Message) -> None:
            await send(_with_headers(message))

        why = refused(request, self._access)
        if why is None:
            await self._app(scope, receive, send_guarded)
        elif why[0] == 401 and request.method == "GET" and request.url.path == "/":
            await static_answer("login.html", 401)(scope, receive, send_guarded)
        else:
            await refusal(request, *why)(scope, receive, send_guarded)


def _with_headers(message: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if message["type"] != "http.response.start":
        return message
    own = {name.lower() for name, _ in message.get("headers", ())}
    more = [
        (name.encode(), value.encode())
        for name, value in HEADERS.items()
        if name.encode() not in own
    ]
    return {**message, "headers": [*message.get("headers", ()), *more]}
