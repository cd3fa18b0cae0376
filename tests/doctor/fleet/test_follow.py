"""Logs that are still growing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import few

from qnnmem.doctor.diagnose import Diagnosis, diagnose
from qnnmem.doctor.follow import Follower, follow
from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs.source import Stream
from qnnmem.errors import LoadError

HEAD = b"03-17 16:13:01.123  1234  1235 E QnnDsp: "
CONTEXT = HEAD + b"Could not create context from binary with err 5005\n"
ESTIMATE = HEAD + b"graph requires estimated allocation of 4194304 KB, limit is 3670016 KB\n"
NOISE = b"03-17 16:13:02.000   99   99 I other: all is well\n"


class Script:
    """A source of scripted bytes and pauses, with its own clock."""

    def __init__(self, steps: list[bytes | float]) -> None:
        self._steps: Iterator[bytes | float] = iter(steps)
        self.now = 0.0

    def get(self, _seconds: float) -> bytes | None:
        """Return the next bytes, or None after a pause."""
        step = next(self._steps, b"")
        if isinstance(step, bytes):
            return step
        self.now += step
        return None

    def clock(self) -> float:
        """Return the seconds of all pauses so far."""
        return self.now


def watched(knowledge: Knowledge, *steps: bytes | float) -> tuple[list[Any], Diagnosis]:
    """Return the reported incidents with their times, and the final diagnosis."""
    script = Script(list(steps))
    told: list[Any] = []
    follower = Follower(
        "log", knowledge, lambda one: told.append((script.now, one)), script, script.clock
    )
    return told, follower.run()


def test_an_incident_is_told_when_its_chain_pauses(knowledge: Knowledge) -> None:
    """An incident is reported once, two seconds after the last line of its chain."""
    told, diagnosis = watched(knowledge, ESTIMATE, 0.25, CONTEXT, *[0.25] * 40)
    assert [(when, one.entry) for when, one in told] == [(2.5, "over-limit")]
    assert len(diagnosis) == 1
    diagnosis.close()


def test_other_processes_do_not_hold_an_incident_back(knowledge: Knowledge) -> None:
    """Lines of other processes do not delay an incident."""
    busy: list[bytes | float] = [0.5, NOISE]
    told, diagnosis = watched(knowledge, ESTIMATE, *busy * 10)
    assert [when for when, _ in told] == [2.5]
    diagnosis.close()


def test_a_line_without_end_is_told_too(knowledge: Knowledge) -> None:
    """A last line without a newline is reported."""
    told, diagnosis = watched(knowledge, ESTIMATE.rstrip(b"\n"), 0.5, 2.0, 2.0, b"\n", 2.0)
    assert [when for when, _ in told] == [2.5]
    diagnosis.close()


def test_growth_without_a_new_verdict_is_not_told(knowledge: Knowledge) -> None:
    """More lines with the same verdict are counted but not reported again."""
    told, diagnosis = watched(knowledge, ESTIMATE, 1.0, 3.0, 3.0, ESTIMATE, 1.0, 3.0, 3.0)
    assert len(told) == 1
    assert [one.count for one in diagnosis.incidents()] == [2]
    diagnosis.close()


def test_a_new_verdict_is_told(knowledge: Knowledge) -> None:
    """An incident is reported again when later lines change its verdict."""
    told, diagnosis = watched(knowledge, CONTEXT, 1.0, 3.0, 3.0, ESTIMATE, 1.0, 3.0, 3.0)
    assert [one.entry for _, one in told] == [None, "over-limit"]
    assert len(diagnosis) == 1
    diagnosis.close()


def test_what_never_paused_is_told_at_the_end(knowledge: Knowledge) -> None:
    """An incident in the last lines of a pipe is reported at the end of the pipe."""
    told, diagnosis = watched(knowledge, NOISE, ESTIMATE)
    assert len(told) == len(diagnosis) == 1
    diagnosis.close()


LINES = st.sampled_from(
    [
        ESTIMATE,
        CONTEXT,
        NOISE,
        b"[   12.345678] adsprpc: mapping refused, 12 kB free\r\n",
        HEAD + b"failed to map 268435456 bytes on dom\n" + HEAD + b"ain 3 gross use\n",
        HEAD + b"x" * 9000 + b" Backend build version: v2.33.0\n",
        HEAD + b"y" * 20_000 + ESTIMATE,
        NOISE * 900,
    ]
)


def script_of(log: bytes, cuts: Sequence[tuple[int, float]]) -> Script:
    """Return a script that delivers the log in these pieces and pauses."""
    steps: list[bytes | float] = []
    left = log
    for size, pause in cuts:
        steps += [left[:size], pause] if left else []
        left = left[size:]
    return Script([*steps, left])


@settings(max_examples=few(25))
@given(
    log=st.lists(LINES, max_size=12).map(b"".join),
    cuts=st.lists(st.tuples(st.integers(1, 30_000), st.sampled_from([0.0, 0.3, 3.0])), max_size=12),
)
def test_the_end_is_that_of_the_finished_log(
    tmp_path_factory: pytest.TempPathFactory,
    knowledge: Knowledge,
    say: Any,
    log: bytes,
    cuts: list[tuple[int, float]],
) -> None:
    """Following a log gives the same diagnosis as reading the finished file."""
    script = script_of(log, cuts)
    path = tmp_path_factory.mktemp("follow") / "log"
    path.write_bytes(log)
    told: list[Any] = []
    live = Follower(str(path), knowledge, told.append, script, script.clock).run()
    final = list(live.incidents())
    assert say(live) == say(diagnose([Stream((str(path),))], knowledge))
    assert all(one in told or one.entry in [old.entry for old in told] for one in final)


def test_a_growing_file_is_read_until_ctrl_c(
    tmp_path: Path, knowledge: Knowledge, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New lines of a file are read until Ctrl-C, which keeps all incidents so far."""
    path = tmp_path / "log"
    path.write_bytes(NOISE)

    def wait(_seconds: float) -> None:
        if path.stat().st_size == len(NOISE):
            with path.open("ab") as file:
                file.write(ESTIMATE)
        else:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(time, "sleep", wait)
    before = signal.getsignal(signal.SIGINT)
    told: list[Any] = []
    live = follow(str(path), knowledge, told.append)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(told) == 1
    assert say(live) == say(diagnose([Stream((str(path),))], knowledge))


def test_a_pipe_is_read_to_its_end(tmp_path: Path, knowledge: Knowledge) -> None:
    """A named pipe is read to its end, and its incidents are reported."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    code = "import sys; open(sys.argv[1], 'wb').write(bytes.fromhex(sys.argv[2]))"
    writer = subprocess.Popen([sys.executable, "-c", code, str(path), ESTIMATE.hex()])
    told: list[Any] = []
    follow(str(path), knowledge, told.append).close()
    assert writer.wait(300) == 0
    assert [one.entry for one in told] == ["over-limit"]


def test_a_packed_log_is_not_followed(tmp_path: Path, knowledge: Knowledge) -> None:
    """A compressed or a missing file cannot be followed; the message says why."""
    path = tmp_path / "log.gz"
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\0")
    with pytest.raises(LoadError, match="without follow"):
        follow(str(path), knowledge, print)
    with pytest.raises(LoadError, match="no such file"):
        follow(str(tmp_path / "absent"), knowledge, print)


def wrapped(line: bytes) -> bytes:
    """Return a line in the JSON of a log collector."""
    text = {"log": line.decode(), "stream": "stderr", "time": "2025-01-02T03:04:05.123Z"}
    return json.dumps(text).encode() + b"\n"


def test_lines_of_json_are_unwrapped_as_they_come(knowledge: Knowledge) -> None:
    """An incident in JSON lines is reported with its text and its line number in the file."""
    lines = [wrapped(line) for line in (NOISE, NOISE, ESTIMATE)]
    told, diagnosis = watched(knowledge, lines[0], 0.25, lines[1], lines[2], *[0.25] * 40)
    assert [(when, one.entry) for when, one in told] == [(2.5, "over-limit")]
    assert [one.evidence[0].text for _, one in told] == [ESTIMATE.decode().rstrip()]
    assert [(one.first_line, one.process) for _, one in told] == [(3, 1234)]
    assert len(diagnosis) == 1
    diagnosis.close()


def test_a_line_of_json_is_waited_for(knowledge: Knowledge) -> None:
    """An incomplete JSON line is not read before its end arrives."""
    line = wrapped(ESTIMATE)
    told, diagnosis = watched(knowledge, line[:30], 3.0, 3.0, line[30:], line[:40], 1.0, 3.0, 3.0)
    assert [one.evidence[0].text for _, one in told] == [ESTIMATE.decode().rstrip()]
    assert len(diagnosis) == 1
    diagnosis.close()


def test_numbers_of_lines_are_those_of_the_file_while_it_grows(knowledge: Knowledge) -> None:
    """Line numbers are those of the file, even if one JSON line holds several log lines."""
    many = json.dumps({"message": (NOISE * 5 + NOISE).decode(), "level": "info"}).encode() + b"\n"
    told, diagnosis = watched(knowledge, many, many, wrapped(ESTIMATE), 1.0, 3.0, 3.0)
    assert [one.first_line for _, one in told] == [3]
    assert [one.first_line for one in diagnosis.incidents()] == [3]
    diagnosis.close()


JSON_LINES = st.sampled_from(
    [
        *(wrapped(line) for line in (ESTIMATE, CONTEXT, NOISE)),
        wrapped(ESTIMATE + CONTEXT),
        json.dumps({"message": "x" * 5000, "level": "info"}).encode() + b"\n",
        b"no JSON at all\n",
        b'{"message": "broken\n',
    ]
)


@settings(max_examples=20)
@given(
    log=st.lists(JSON_LINES, max_size=12).map(lambda lines: wrapped(NOISE) + b"".join(lines)),
    cuts=st.lists(st.tuples(st.integers(1, 9000), st.sampled_from([0.0, 0.3, 3.0])), max_size=9),
)
def test_the_end_is_that_of_the_finished_log_in_json(
    tmp_path_factory: pytest.TempPathFactory,
    knowledge: Knowledge,
    say: Any,
    log: bytes,
    cuts: list[tuple[int, float]],
) -> None:
    """Following a log in JSON lines gives the same diagnosis as reading the finished file."""
    script = script_of(log, cuts)
    path = tmp_path_factory.mktemp("follow") / "log"
    path.write_bytes(log)
    live = Follower(str(path), knowledge, lambda _: None, script, script.clock).run()
    assert say(live) == say(diagnose([Stream((str(path),))], knowledge))
