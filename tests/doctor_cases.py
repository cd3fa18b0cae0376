"""Stored failure logs for tests of the doctor: embedded in noise, diagnosed and graded."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.source import find_streams
from qnnmem.results.incident import Incident

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from doctor_log import Noise  # noqa: E402 - the generator is in benchmarks/

LOGS = ROOT / "src" / "qnnmem" / "doctor" / "kb" / "stored_logs"
CLASSES = ("cause", "memory_only", "no", "healthy")
GRADES = ("right", "undecided", "silent", "wrong")

_PID = 7311
_NOON = 12 * 3_600_000
_BETWEEN = 500
# The line prefixes that the noise generator writes; each case is embedded in each style.
_HEADS = (
    re.compile(r"[\d-]+ [\d:.]+ +\d+ +\d+ (?P<level>[VDIWEF]) (?P<tag>.*?) *: ?(?P<text>.*)"),
    re.compile(r"[\d-]+ [\d:.]+ +\d+-\d+ +(?P<tag>\S+) +\S+ +(?P<level>[VDIWEF])  ?(?P<text>.*)"),
    re.compile(r"[\d-]+ [\d:.]+ (?P<text>\[(?P<level>[VIWEF]):(?P<tag>onnxruntime).*)"),
    re.compile(r" *[\d.]+ms \[ *(?P<level>[A-Z])[A-Z]* *\] ?(?P<text>.*)"),
    re.compile(r"\[ *\d+\.\d{6}\] ?(?P<text>.*)"),
)


class Case(NamedTuple):
    """A stored log and its known diagnosis."""

    id: str
    source: str  # the repository, thread or program of origin
    decidable: str  # one of CLASSES
    stage: str
    cause: str
    is_memory: bool
    lines: tuple[str, ...]
    ours: bool = False  # from a run of this project, not from a report
    accept: tuple[str, ...] = ()  # further correct causes

    def last(self, count: int) -> Case:
        """Return the case with only its last lines."""
        return self._replace(lines=self.lines[-count:])


def read_cases(folder: Path = LOGS) -> tuple[Case, ...]:
    """Return all stored failures, then the healthy logs."""
    failures = [_case(row, row["decidable"]) for row in _rows(folder / "cases.jsonl")]
    return (*failures, *(_case(row, "healthy") for row in _rows(folder / "healthy.jsonl")))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def _case(row: dict[str, Any], decidable: str) -> Case:
    lines = tuple(part for line in row["lines"] for part in line.splitlines())
    cause, stage = row.get("cause", "benign_noise"), row.get("stage", "init")
    memory, ours = row.get("is_memory") is True, row["how"] != "reported"
    where, accept = origin(row["source"]), tuple(row.get("accept", ()))
    return Case(row["id"], where, decidable, stage, cause, memory, lines, ours, accept)


def origin(source: str) -> str:
    """Return the source of a log; all threads of one repository are one source."""
    if "onnxruntime-qnn" in source:
        return "onnxruntime-qnn"  # one library prints all these logs, whoever runs it
    return re.split(r"#|,| \(", source)[0]


def plainly(case: Case) -> bytes:
    """Return the log as stored."""
    return "".join(f"{line}\n" for line in case.lines).encode("utf-8", "replace")


def embedded(case: Case, style: str, count: int) -> bytes:
    """Return the log inside this many lines of noise, in the noise's style and as one process."""
    noise, before, between, after = _background(style, count)
    noise.ms = _NOON
    lines = [before]
    others = iter(between)
    for number, line in enumerate(case.lines):
        # A line without a level counts as an error, except in a healthy log.
        level, tag, text = _without_head(line, "I" if case.decidable == "healthy" else "E")
        lines.append(noise.of(_PID, noise.tail(level, tag, text)))
        lines += [next(others, b"") for _ in range(number % 3)]
    return b"\n".join([*lines, after, b""])


@cache
def _background(style: str, count: int) -> tuple[Noise, bytes, list[bytes], bytes]:
    """Return noise before, during and after the failure."""
    noise = Noise(3, style, many=False)
    noise.ms = _NOON - 4 * count
    before = b"\n".join(noise.line() for _ in range(count // 2))
    noise.ms = _NOON
    between = [noise.line() for _ in range(_BETWEEN)]
    return noise, before, between, b"\n".join(noise.line() for _ in range(count - count // 2))


def _without_head(line: str, usual: str) -> tuple[str, str, str]:
    for head in _HEADS:
        if match := head.fullmatch(line):
            found = match.groupdict()
            kernel = "kernel" if head is _HEADS[-1] else "QnnDsp"
            return found.get("level") or usual, found.get("tag") or kernel, found["text"]
    return usual, "QnnDsp", line


def incidents(log: bytes, knowledge: Knowledge) -> list[Incident]:
    """Return the doctor's incidents for a log."""
    return diagnosed(log, knowledge)[0]


def diagnosed(log: bytes, knowledge: Knowledge) -> tuple[list[Incident], bool]:
    """Return the doctor's incidents, and whether the log is too unclear for an answer."""
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        file.write(log)
        file.flush()
        diagnosis = diagnose(find_streams([file.name]), knowledge)
        try:
            return list(diagnosis.incidents()), diagnosis.is_unclear
        finally:
            diagnosis.close()


def grade(case: Case, found: Sequence[Incident]) -> str:
    """Return one of GRADES; one confident false incident makes the whole answer wrong."""
    if case.decidable == "healthy":
        return "wrong" if found else "right"
    if not found:
        return "silent"
    told = [one for one in found if one.verdict != "undecided"]
    if case.decidable == "no":
        guessed = all(one.verdict == "memory" and one.confidence == "low" for one in told)
        same = all(one.is_memory is case.is_memory for one in told)
        return "right" if guessed and same else "wrong"
    if any(one.is_memory is not case.is_memory for one in told):
        return "wrong"
    if case.decidable == "memory_only":
        return "right" if told else "undecided"
    named = {(one.cause, one.stage) for one in told if one.verdict == "cause"}
    if named - {(case.cause, case.stage)}:
        return "wrong"
    return "right" if named else "undecided"
