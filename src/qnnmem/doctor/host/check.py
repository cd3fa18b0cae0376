"""One check of a machine: its subject and its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.provenance import Origin
from qnnmem.results.host import HostVerdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found of one thing, how it stands, and what to do about it."""

    found: str
    verdict: HostVerdict
    action: str = ""
    origin: Origin = Origin.MEASURED  # reported: the machine's own word about itself


@dataclass(frozen=True, slots=True)
class Subject:
    """One thing to check, why it matters, and the causes of failures that it concerns."""

    id: str
    name: str
    why: str
    causes: tuple[str, ...]
