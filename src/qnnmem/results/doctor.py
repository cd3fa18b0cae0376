"""The diagnosis of logs."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from qnnmem.results.host import HostResult
from qnnmem.results.incident import Incident
from qnnmem.results.result import Count, Result, describe


class IncidentGroup(Struct, frozen=True):
    """Incidents grouped by a common property, which --group-by names."""

    key: str
    incidents: Count
    memory: Annotated[Count, describe("How many of these are memory shortages.")]
    logs: Annotated[Count, describe("Logs that have such an incident.")]
    first_seen: Annotated[str, describe("Place of the first of them.")]
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
        describe("Of each entry that an incident names, why such a failure happens."),
    ] = field(default_factory=dict)
    stats: Annotated[ReadAmount, describe("How much was read.")] = ReadAmount()
    noise: Annotated[
        dict[str, Count],
        describe("Entries about harmless lines that look like failures, with counts."),
    ] = field(default_factory=dict)
    answer: Annotated[
        str | UnsetType,
        describe("What the logs are, where they are no logs of QNN or say too little."),
    ] = UNSET
    notes: Annotated[tuple[str, ...], describe("What was wrong with the logs.")] = ()
    files: Annotated[tuple[str, ...], describe("The logs.")] = ()
    groups: Annotated[
        tuple[IncidentGroup, ...] | UnsetType,
        describe("Incidents counted by what they have in common, where a group was asked for."),
    ] = UNSET
    host: Annotated[
        HostResult | UnsetType, describe("Checks of the machine, where they were asked for.")
    ] = UNSET

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        if not self.incidents:
            return self.answer or "no failure found"
        left = len(self.incidents) - 1
        return f"{self.incidents[0].title}{f', and {left:,} more' if left else ''}"
