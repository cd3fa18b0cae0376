"""Diagnosis of logs: reads lines, groups them into sessions and judges the sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from qnnmem.doctor.incident_builder import IncidentBuilder
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.attribution import Attribution
from qnnmem.doctor.logs.scanner import REGION, LogScanner
from qnnmem.doctor.logs.session import LogSession, SessionGrouper, Sighting
from qnnmem.doctor.logs.shapes import kept_shapes
from qnnmem.doctor.logs.source import OpenPart, Stream, open_part
from qnnmem.doctor.spool import Spool
from qnnmem.errors import LoadError
from qnnmem.results.incident import Harmless, Incident, ReadingStats

# Captured values that identify the device and the build that wrote a log.
FACTS = ("device", "soc", "build", "version")
# Maximum number of foreign logs named in notes: a bug report can contain thousands, and their names
# would hide the diagnosis.
_NAMED = 20


class Diagnosis:
    """The diagnosis of several logs; its incidents are in the order of the logs."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._builder = IncidentBuilder(knowledge)
        self._spool = Spool()
        self._started = time.perf_counter()
        self.lines = self.bytes = 0
        self.notes: list[str] = []
        self._missed: dict[str, LoadError] = {}
        # Numbers of logs: about QNN, of other programs, and too short to be called healthy.
        self._ours = self._foreign = self._unclear = 0
        self.log_of: dict[str, int] = {}  # number of the log for each file with an incident
        self._facts: dict[int, dict[str, tuple[int, str]]] = {}  # facts of each log, by offset
        self._telling = {
            line: [name for name, _ in holes]
            for line, holes in enumerate(knowledge.holes)
            if not knowledge.opens[line] and any(name in FACTS for name, _ in holes)
        }

    def take(self, stream: int, sessions: Iterable[LogSession], parts: Sequence[str]) -> None:
        """Judge completed sessions of one log and store their incidents."""
        telling = self._telling.keys()
        for session in sorted(sessions, key=lambda one: one.first):
            if not telling.isdisjoint(session.seen):
                for line in telling & session.seen.keys():
                    self._note_facts(stream, line, session.seen[line], parts)
            incident = self._builder.build(session, parts)
            if incident is not None:
                self._spool.put(stream, session.first, incident)
                if parts[0] not in self.log_of:
                    self.log_of.update(dict.fromkeys(parts, stream))

    def _note_facts(self, stream: int, line: int, seen: Sighting, parts: Sequence[str]) -> None:
        """Store the first value in the log for each fact; sessions can arrive in any order."""
        facts = self._facts.setdefault(stream, {})
        self.log_of.update(dict.fromkeys(parts, stream))
        for name, value in zip(self._telling[line], seen.values, strict=True):
            if name in FACTS:
                said = (seen.offset, str(value).strip())
                facts[name] = min(facts.get(name, said), said)

    def miss(self, error: LoadError) -> None:
        """Record that a file cannot be read; the other files are still read."""
        if error.path not in self._missed:
            self._missed[error.path] = error
            self.notes.append(f"skipped: {error}")

    def close_log(self, name: str, ours: bool, look: str, unclear: bool) -> None:
        """Count a log as about QNN, unclear or foreign; `look` is the log's apparent format."""
        self._ours += ours and not unclear
        self._foreign += not ours
        self._unclear += ours and unclear
        if not ours and self._foreign <= _NAMED:
            self.notes.append(f"{name}: no QNN lines found; it looks like {look}")

    def check(self, streams: Sequence[Stream]) -> None:
        """Raise the first read error if no file could be read."""
        if self._missed and len(self._missed) >= len({p for s in streams for p in s.parts}):
            raise next(iter(self._missed.values()))

    @property
    def facts(self) -> dict[int, dict[str, str]]:
        """Facts that each log states about the device and the build, by log number."""
        return {
            log: {name: facts[name][1] for name in FACTS if name in facts}
            for log, facts in sorted(self._facts.items())
        }

    @property
    def noise(self) -> dict[str, int]:
        """Ids of the benign entries that matched, with the number of matches."""
        return dict(sorted(self._builder.noise.items()))

    @property
    def verdicts(self) -> dict[str, int]:
        """Number of incidents by verdict."""
        return self._builder.verdicts

    @property
    def exit_code(self) -> int:
        """0: healthy; 1: incidents; 2: unreadable input; 3: undecided or nothing about QNN."""
        if not len(self):
            return 2 if self._missed else 3 if self.is_foreign or self.is_unclear else 0
        decided = self.verdicts.get("cause", 0) + self.verdicts.get("memory", 0)
        return 1 if decided else 3

    @property
    def is_foreign(self) -> bool:
        """True if no log is about QNN."""
        return self._foreign > 0 and not self._ours and not self._unclear

    @property
    def is_unclear(self) -> bool:
        """True if the logs are too short to show either a failure or a success."""
        return self._unclear > 0 and not self._ours

    def __len__(self) -> int:
        return len(self._spool)

    def incidents(self) -> Iterator[Incident]:
        """Yield each incident, in the order of the logs."""
        return self._spool.incidents()

    def rows(self) -> Iterator[str]:
        """Yield each incident as JSON, in the order of the logs."""
        return self._spool.rows()

    def stats(self, streams: Sequence[Stream]) -> ReadingStats:
        """Return how much was read, how long reading took, and the notes about the logs."""
        titles = {entry.id: entry.title for entry in self._knowledge.entries} if self.noise else {}
        more = self._foreign - _NAMED
        unnamed = (f"no QNN lines in {more:,} more files",) if more > 0 else ()
        return ReadingStats(
            files=tuple(part for stream in streams for part in stream.parts),
            lines=self.lines,
            bytes=self.bytes,
            seconds=round(time.perf_counter() - self._started, 3),
            incidents=len(self),
            noise=tuple(
                Harmless(name, titles.get(name, name), count) for name, count in self.noise.items()
            ),
            notes=(*self.notes, *unnamed),
            unread=len(self._missed),
            foreign=self.is_foreign,
            unclear=self.is_unclear,
        )

    def close(self) -> None:
        """Close the temporary file that holds the incidents."""
        self._spool.close()


def diagnose(
    streams: Sequence[Stream],
    knowledge: Knowledge,
    *,
    engine: str | None = None,
    region: int = REGION,
) -> Diagnosis:
    """Read logs one after another and return their diagnosis."""
    diagnosis = Diagnosis(knowledge)
    kept = kept_shapes(knowledge)

    def scanner_of(opened: OpenPart) -> LogScanner:
        shapes = kept.of(opened.size, engine)
        read, size = opened.readinto, opened.size
        return LogScanner(knowledge, shapes.engine, read, region=region, size=size, shapes=shapes)

    try:
        for number, stream in enumerate(streams):
            sessions = SessionGrouper(knowledge.counted)
            _read_stream(number, stream, diagnosis, scanner_of, sessions)
        diagnosis.check(streams)
    except BaseException:
        diagnosis.close()
        raise
    return diagnosis


def _read_stream(
    number: int,
    stream: Stream,
    diagnosis: Diagnosis,
    scanner_of: Callable[[OpenPart], LogScanner],
    sessions: SessionGrouper,
) -> None:
    attribution = Attribution()
    base, ours, look, unclear, short = 0, False, "", False, b""
    for part, name in enumerate(stream.parts):
        try:
            opened = open_part(name, stream.named)
        except LoadError as exc:
            diagnosis.miss(exc)
            continue
        scanner = scanner_of(opened)
        try:
            add = sessions.add
            for hit in scanner.hits_of_log():
                offset, shift = base + hit.offset, opened.shift
                add(hit, offset, part, shift(hit.number) if shift else 0)
                if offset >= sessions.sweep and (over := sessions.closed(offset)):
                    diagnosis.take(number, attribution.put(over, sessions.open), stream.parts)
        except LoadError as exc:
            diagnosis.miss(exc)
        finally:
            opened.close()
        base += scanner.bytes
        ours, look = ours or scanner.ours, look or scanner.looks_like
        unclear = scanner.unclear and len(stream.parts) == 1
        short = scanner.short if len(stream.parts) == 1 else b""
        diagnosis.lines += scanner.lines
        diagnosis.bytes += scanner.bytes
        diagnosis.notes += (*opened.notes, *(f"{name}: {note}" for note in scanner.budget.notes))
    diagnosis.take(number, attribution.put(sessions.finish(short), ()), stream.parts)
    if base:
        diagnosis.close_log(stream.parts[0], ours, look, unclear)
