"""The diagnosis of logs."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from qnnmem.results.host import HostResult
from qnnmem.results.incident import Incident
from qnnmem.results.result import Count, Result, describe


class IncidentGroup(Struct, frozen=True):
    """Incidents that share the property chosen with --group-by."""

    key: str
    incidents: Count
    memory: Annotated[Count, describe("How many of these incidents are memory shortages.")]
    logs: Annotated[Count, describe("Number of logs with such an incident.")]
    first_seen: Annotated[str, describe("File and line of the first incident.")]
    shortage_min_bytes: int | None
    shortage_max_bytes: int | None


class ReadAmount(Struct, frozen=True):
    """The amount of log data that was read."""

    lines: Count = 0
    bytes: Count = 0
    seconds: Annotated[float, Meta(ge=0)] = 0.0


class DoctorResult(Result, frozen=True, kw_only=True, tag="qnnmem.doctor/1"):
    """The diagnosis of logs: incidents with stage, cause and missing bytes."""

    incidents: tuple[Incident, ...]
    why: Annotated[
        dict[str, str],
        describe("Explanation of each cause, by name of the knowledge-base entry."),
    ] = field(default_factory=dict)
    stats: Annotated[ReadAmount, describe("Amount of log data that was read.")] = ReadAmount()
    noise: Annotated[
        dict[str, Count],
        describe("Number of harmless lines that look like failures, by knowledge-base entry."),
    ] = field(default_factory=dict)
    answer: Annotated[
        str | UnsetType,
        describe("Verdict on logs that are not from QNN or show too little; otherwise absent."),
    ] = UNSET
    notes: Annotated[tuple[str, ...], describe("Problems with reading the logs.")] = ()
    files: Annotated[tuple[str, ...], describe("Logs that were read.")] = ()
    groups: Annotated[
        tuple[IncidentGroup, ...] | UnsetType,
        describe("Incidents grouped by a common property; absent unless requested."),
    ] = UNSET
    host: Annotated[
        HostResult | UnsetType, describe("Checks of the machine; absent unless requested.")
    ] = UNSET

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        if not self.incidents:
            return self.answer or "no failure found"
        left = len(self.incidents) - 1
        return f"{self.incidents[0].title}{f', and {left:,} more' if left else ''}"
