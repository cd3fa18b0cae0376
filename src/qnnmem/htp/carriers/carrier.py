"""What every reader returns: a file's context binaries, and what the file says about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from qnnmem.errors import Damaged, LoadError
from qnnmem.htp.binary.container import is_context_binary
from qnnmem.htp.binary.pieces import Piece, distinct
from qnnmem.results.carrier import CarrierKind, HostPart, UnreadPart

MAX_PARTS = 4096  # delegates, operators that run a binary, archive members
ClaimKind = Literal[
    "SoC", "Hexagon", "VTCM", "largest spill/fill", "spill/fill buffer", "context length"
]


class Claim(Struct, frozen=True):
    """A number that a file states about its binaries: a size, an id or a context length."""

    what: ClaimKind
    value: int
    words: str  # in the notation of the file
    binaries: tuple[int, ...] | None = None  # indexes of the binaries it is about; None: all


class Payload(Struct, frozen=True):
    """A context binary in a deployment file, and the names of the parts that use the binary."""

    piece: Piece
    used_by: tuple[str, ...] = ()
    group: str = ""


class Carrier(Struct, frozen=True, kw_only=True):
    """A deployment file and its context binaries; identical binaries in one group appear once."""

    path: Path
    kind: CarrierKind
    title: str
    payloads: tuple[Payload, ...] = ()
    dlcs: tuple[Piece, ...] = ()  # models that are compiled on the device
    unread: tuple[UnreadPart, ...] = ()
    host: tuple[HostPart, ...] = ()
    cpu_operators: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    shares_spill_fill: bool = False
    notes: tuple[str, ...] = ()


class Gathered(Struct):
    """What a reader has found so far; `carrier` merges uses of the same binary."""

    payloads: list[Payload] = field(default_factory=list)
    dlcs: list[Piece] = field(default_factory=list)
    unread: list[UnreadPart] = field(default_factory=list)
    host: list[HostPart] = field(default_factory=list)
    cpu_operators: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)  # they number payloads in order of addition
    notes: list[str] = field(default_factory=list)
    shares_spill_fill: bool = False

    def add(self, piece: Piece, used_by: str, group: str = "") -> int:
        """Add a use of a context binary, and return the index of the use."""
        if len(self.payloads) >= MAX_PARTS:
            raise Damaged(f"the file has more than {MAX_PARTS:,} parts")
        self.payloads.append(Payload(piece, (used_by,) if used_by else (), group))
        return len(self.payloads) - 1

    def add_unread(self, name: str, why: str, size: int = 0) -> None:
        """Record a part of the file that has no bill, and the reason."""
        if len(self.unread) >= MAX_PARTS:
            raise Damaged(f"the file has more than {MAX_PARTS:,} parts")
        self.unread.append(UnreadPart(name, why, size))

    def merge(self, other: Gathered, name: str, group: str = "") -> None:
        """Add the contents of an archive member; their names get the member's name as prefix."""
        first = len(self.payloads)
        for payload in other.payloads:
            users = tuple(f"{name}: {user}" for user in payload.used_by) or (name,)
            self.payloads.append(replace(payload, used_by=users, group=group))
        every_payload = tuple(range(len(other.payloads)))
        for claim in other.claims:
            about = every_payload if claim.binaries is None else claim.binaries
            self.claims.append(replace(claim, binaries=tuple(first + number for number in about)))
        self.dlcs += other.dlcs
        self.unread += [
            UnreadPart(f"{name}: {part.name}" if part.name else name, part.why, part.bytes)
            for part in other.unread
        ]
        self.host += [HostPart(f"{name}: {part.name}", part.size) for part in other.host]
        self.cpu_operators += other.cpu_operators
        self.notes += [f"{name}: {note}" for note in other.notes]
        self.shares_spill_fill |= other.shares_spill_fill

    def carrier(self, path: Path, kind: CarrierKind, title: str) -> Carrier:
        """Return the final result; identical binaries in one group appear once."""
        numbers = distinct(payload.piece for payload in self.payloads)
        once: dict[tuple[int, str], Payload] = {}
        keys = [(numbers[payload.piece.place], payload.group) for payload in self.payloads]
        for key, payload in zip(keys, self.payloads, strict=True):
            known = once.get(key)
            users = () if known is None else known.used_by
            once[key] = replace(
                known or payload, used_by=tuple(dict.fromkeys((*users, *payload.used_by)))
            )
        places = {key: place for place, key in enumerate(once)}
        claims = [
            claim
            if claim.binaries is None
            else replace(
                claim,
                binaries=tuple(dict.fromkeys(places[keys[number]] for number in claim.binaries)),
            )
            for claim in self.claims
        ]
        return Carrier(
            path=path,
            kind=kind,
            title=title,
            payloads=tuple(once.values()),
            dlcs=tuple({dlc.place: dlc for dlc in self.dlcs}.values()),
            unread=tuple(dict.fromkeys(self.unread)),
            host=tuple(self.host),
            cpu_operators=tuple(dict.fromkeys(self.cpu_operators)),
            claims=tuple(dict.fromkeys(claims)),
            shares_spill_fill=self.shares_spill_fill,
            notes=tuple(dict.fromkeys(self.notes)),
        )


def is_binary(piece: Piece) -> bool:
    """Return True if a piece starts like a QNN context binary."""
    return is_context_binary(piece.head(8))


@contextmanager
def faults_of(path: Path, what: str) -> Iterator[None]:
    """Re-raise Damaged as a LoadError that names the file."""
    try:
        yield
    except Damaged as exc:
        raise LoadError(path, f"the {what} is damaged: {exc}") from exc
