"""Incidents of many logs, counted by a property such as their cause."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from qnnmem.doctor.diagnose import Diagnosis
from qnnmem.errors import UsageError
from qnnmem.results.doctor import IncidentGroup
from qnnmem.results.incident import Incident

BY = ("cause", "stage", "entry", "device", "build", "file")
UNKNOWN = "unknown"

# Facts that identify the device or the build of a log, the most exact first.
_FACTS = {"device": ("device", "soc"), "build": ("build", "version")}


class FleetSummary(msgspec.Struct, frozen=True):
    """Incidents of many logs, counted by a key in `BY`; the most frequent value comes first."""

    by: str
    rows: tuple[IncidentGroup, ...]


class _Count:
    def __init__(self, first: str) -> None:
        self.first, self.incidents, self.memory = first, 0, 0
        self.logs: set[int] = set()
        self.least: int | None = None
        self.most: int | None = None

    def add(self, incident: Incident, log: int) -> None:
        self.incidents += 1
        self.memory += incident.decided_memory is True
        self.logs.add(log)
        shortage = incident.shortage_bytes
        if shortage is not None:
            self.least = shortage if self.least is None else min(self.least, shortage)
            self.most = shortage if self.most is None else max(self.most, shortage)

    def row(self, key: str) -> IncidentGroup:
        logs = len(self.logs)
        return IncidentGroup(
            key, self.incidents, self.memory, logs, self.first, self.least, self.most
        )


def group(diagnosis: Diagnosis, by: str) -> FleetSummary:
    """Count the incidents by the key `by`; the summary has one row for each value of the key."""
    if by not in BY:
        raise UsageError(f"incidents can be grouped by {', '.join(BY)}, not by '{by}'")
    facts = diagnosis.facts
    counts: dict[str, _Count] = {}
    for incident in diagnosis.incidents():
        log = diagnosis.log_of[incident.file]
        key = _key(incident, by, facts.get(log, {}))
        if key not in counts:
            counts[key] = _Count(f"{incident.file}:{incident.first_line}")
        counts[key].add(incident, log)
    rows = (count.row(key) for key, count in counts.items())
    return FleetSummary(by, tuple(sorted(rows, key=lambda row: (-row.incidents, row.key))))


def _key(incident: Incident, by: str, facts: Mapping[str, str]) -> str:
    if by in _FACTS:
        return next((facts[name] for name in _FACTS[by] if facts.get(name)), UNKNOWN)
    return str(getattr(incident, by) or UNKNOWN)
