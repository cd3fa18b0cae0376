"""Tests of the doctor on varied, composed and healthy logs.

A varied failure log keeps its verdict: people and loggers spell lines differently. A composed
one-line message of calls, codes and verbs is never healthy. A healthy log, as stored or varied,
raises no alarm. Everything is drawn from a seed, so each case can be repeated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from doctor_cases import ROOT, incidents, read_cases
from labelled_texts import DATA, rows_of

from qnnmem.doctor.kb.knowledge import Knowledge

HEALTHY_RUNS = ROOT / "tests" / "doctor" / "healthy_runs"
SPELLINGS, MESSAGES, HEALTHY = 2000, 500, 300

Lines = tuple[str, ...]


class NamedLog(NamedTuple):
    """A log and its id."""

    id: str
    lines: Lines


class Tried(NamedTuple):
    """A made log, the doctor's answer, and the expected answer."""

    name: str
    text: bytes
    said: object
    expected: object


_PATH = re.compile(r"(?<![\w:/.])/(?:[\w.+-]+/)+(?=[\w.+-]*)")
_HEAD = re.compile(
    r"^(?:\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +\d+ +\d+ |\d{4}-\d\d-\d\d[ T][\d:.]+(?:Z|[+-]\d+)? "
    r"|\[ *\d+\.\d{6}\] | *\d+\.\d+ms )"
)
_CODE = re.compile(r"(?<![\w.:x-])(1002|1003|1007|1008|14001|4000|5000|5005|6031|8003)(?![\w.])")
_HEX = re.compile(r"\b0x(3ea|138d|1f43|c26|44c|36b1)\b", re.IGNORECASE)
_JOINED = re.compile(r"(?<=[a-z])([-_])(?=[a-z])")
_WIDTH = 96


def _hyphen(line: str, draw: random.Random) -> str:
    """Swap hyphen and underscore in a name, but not in files and addresses."""
    words = line.split(" ")
    plain = [
        n for n, word in enumerate(words) if _JOINED.search(word) and not re.search(r"[/.\\]", word)
    ]
    if plain:
        at = draw.choice(plain)
        words[at] = _JOINED.sub(lambda found: "-" if found[1] == "_" else "_", words[at])
    return " ".join(words)


def _case(line: str, draw: random.Random) -> str:
    return draw.choice((str.lower, str.upper))(line)


def _marks(line: str, draw: random.Random) -> str:
    mark = draw.choice((":", ",", " -", ";", "."))
    return re.sub(
        r"\b(failed|error|failure)\b[:,]? (?=\w)", rf"\1{mark} ", line, flags=re.IGNORECASE
    )


def _without_head(line: str, draw: random.Random) -> str:
    return _HEAD.sub("", line)


def _other_head(line: str, draw: random.Random) -> str:
    """Replace the line's clock by another clock."""
    bare = _HEAD.sub("", line)
    hour, second = draw.randrange(24), draw.randrange(60)
    kernel = re.match(r"^\[ *\d+\.\d{6}\] ", line)
    if kernel or bare == line:
        return line if kernel else f"2025-03-04 {hour:02}:07:{second:02}.123 {line}"
    return f"2025-03-04T{hour:02}:07:{second:02}.123456 {bare}"


def _paths(line: str, draw: random.Random) -> str:
    folder = draw.choice(("/opt/models/", "/data/app/~~Ab1/lib/arm64/", "/home/user/work/qnn/"))
    return _PATH.sub(folder, line)


def _numbers(line: str, draw: random.Random) -> str:
    """Write error codes in the other base."""
    there = _CODE.sub(lambda found: hex(int(found[1])), line)
    return there if there != line else _HEX.sub(lambda found: str(int(found[1], 16)), line)


def _wrapped(line: str, draw: random.Random) -> str:
    """Wrap the line as a mail or a narrow terminal does."""
    import textwrap

    broken = textwrap.wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(broken) or line


VARIATIONS: dict[str, Callable[[str, random.Random], str]] = {
    "hyphen": _hyphen,
    "case": _case,
    "marks": _marks,
    "without head": _without_head,
    "other head": _other_head,
    "paths": _paths,
    "numbers": _numbers,
    "wrapped": _wrapped,
}


def _drawing(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - reproducible, not secret


def varied(lines: Lines, seed: int) -> tuple[str, bytes]:
    """Return a log varied in one or two ways, and the names of the variations."""
    draw = _drawing(seed)
    names = draw.sample(sorted(VARIATIONS), draw.choice((1, 1, 2)))
    for name in names:
        inner = draw.randrange(1 << 30)
        lines = tuple(VARIATIONS[name](line, _drawing(inner)) for line in lines)
    return " and ".join(names), "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _later(*, healthy: bool) -> list[NamedLog]:
    return [
        NamedLog(row["id"], tuple("\n".join(row["lines"]).splitlines()))
        for row in rows_of(DATA / "fresh_logs.jsonl")
        if not row["frozen"] and (row["decidable"] == "healthy") is healthy
    ]


def failing_logs() -> list[NamedLog]:
    """Return the stored failures: the cases, and the later logs that are not frozen."""
    cases = [NamedLog(one.id, one.lines) for one in read_cases() if one.decidable != "healthy"]
    return [*cases, *_later(healthy=False)]


def healthy_logs() -> list[NamedLog]:
    """Return the stored healthy logs."""
    cases = [NamedLog(one.id, one.lines) for one in read_cases() if one.decidable == "healthy"]
    runs = [
        NamedLog(path.stem, tuple(path.read_text("utf-8", "replace").splitlines()))
        for path in sorted(HEALTHY_RUNS.glob("*.log"))
    ]
    return [*cases, *_later(healthy=True), *runs]


def verdicts(log: bytes, knowledge: Knowledge) -> frozenset[tuple[str, str, object]]:
    """Return the doctor's verdicts on a log."""
    return frozenset((one.verdict, one.cause, one.is_memory) for one in incidents(log, knowledge))


def spelling(knowledge: Knowledge, count: int, seed: int = 0) -> Iterator[Tried]:
    """Yield varied failures with their verdicts, each log about equally often."""
    logs = failing_logs()
    known = {
        one.id: verdicts("".join(f"{line}\n" for line in one.lines).encode(), knowledge)
        for one in logs[:count]
    }
    for number in range(count):
        log = logs[number % len(logs)]
        how, text = varied(log.lines, seed + number)
        yield Tried(f"{log.id}, {how}", text, verdicts(text, knowledge), known[log.id])


_CALLS = (
    *("QnnBackend_create", "QnnDevice_create", "QnnContext_createFromBinary", "QnnContext_create"),
    *("QnnGraph_create", "QnnGraph_finalize", "QnnGraph_execute", "QnnGraph_addNode"),
    *("QnnMem_register", "QnnTensor_createGraphTensor", "QnnInterface_getProviders"),
    *("graphFinalize", "deviceCreate", "contextCreateFromBinary", "qnn_htp_device_create"),
    *("qnn_graph_create", "qnn_execute_graph", "HTP graph prepare", "DSP session open"),
)
_CODES = (
    *("1002", "0x3ea", "1003", "1008", "14001", "4000", "5005", "0x138d", "6031", "8003", "-1002"),
    *("QNN_COMMON_ERROR_MEM_ALLOC", "QNN_GRAPH_ERROR_GENERAL", "QNN_DEVICE_ERROR_INVALID_CONFIG"),
    *("0x80000406", "AEE_ENOMEMORY", "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY"),
)
_FORMS = (
    *("{call} returned {code}", "{call} failed with {code}", "{call} failed: {code}"),
    *("{call}: error {code}", "error {code} in {call}", "{call} failed, error code {code}"),
    *("{call} -> {code}", "{call} status={code}", "could not {verb}: {call} {code}"),
    *("unable to {verb} ({call}, {code})", "[{call}] err={code}", "QNN error {code}"),
    *("{call} returned error {code}", "{call}() = {code}", "failed to {verb} on HTP, code {code}"),
    *("{call} unsuccessful ({code})", "cannot {verb}, {call} says {code}", "{call} rc={code}"),
    *("QNN: {verb} failed", "HTP backend cannot {verb}", "{call} did not succeed"),
)
_HEADS = (
    *("", "", "E/QnnDsp: ", "[ERROR] ", "QnnDsp <E> ", "[ERROR] [Qnn ExecuTorch]: ", "ERROR: "),
    *("     0.0ms [ ERROR ] ", "11-04 16:53:41.254 18847 18854 E QnnHtp  : "),
    "2025-06-20 22:06:20.2858459 [E:onnxruntime:, qnn_model.cc:181 FinalizeGraphs] ",
)
_VERBS = (
    *("create the device", "load the context", "finalize the graph", "execute the graph"),
    *("register the buffer", "open a session", "load the model", "allocate memory"),
)


def messages(count: int, seed: int = 0) -> list[str]:
    """Return one-line messages from a grammar, all different."""
    draw = _drawing(seed)
    made: dict[str, None] = {}
    while len(made) < count:
        text = draw.choice(_FORMS).format(
            call=draw.choice(_CALLS), code=draw.choice(_CODES), verb=draw.choice(_VERBS)
        )
        made[draw.choice(_HEADS) + text] = None
    return list(made)


def composed(knowledge: Knowledge, count: int, seed: int = 0) -> Iterator[Tried]:
    """Yield whether each composed message gives an incident, as expected."""
    for text in messages(count, seed):
        found = incidents(f"{text}\n".encode(), knowledge)
        yield Tried(text, text.encode(), bool(found), True)


def healthy(knowledge: Knowledge, count: int, seed: int = 0) -> Iterator[Tried]:
    """Yield healthy logs, plain and then varied; no incident is expected."""
    logs = healthy_logs()
    for number in range(count):
        log = logs[number % len(logs)]
        if number < len(logs):
            how, text = "as it is", "".join(f"{line}\n" for line in log.lines).encode()
        else:
            how, text = varied(log.lines, seed + number)
        yield Tried(f"{log.id}, {how}", text, bool(incidents(text, knowledge)), False)


def good(tried: Sequence[Tried]) -> int:
    """Return how many answers are as expected."""
    return sum(one.said == one.expected for one in tried)
