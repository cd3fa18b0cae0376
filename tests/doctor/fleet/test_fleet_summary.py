"""The summary of many logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.fleet import diagnose_with
from qnnmem.doctor.fleet.summary import BY, FleetSummary, group
from qnnmem.doctor.kb.knowledge import BUILT_IN, Knowledge, pack, read_folder
from qnnmem.doctor.logs.source import Stream
from qnnmem.errors import UsageError
from qnnmem.report.doctor import render_fleet

HEAD = "03-17 16:13:01.123 %5d  1235 E QnnDsp: "
ESTIMATE = "graph requires estimated allocation of %d KB, limit is 1000 KB\n"
MODEL = "[ro.product.model]: [%s]\n"


@pytest.fixture
def streams(tmp_path: Path) -> list[Stream]:
    """Return three logs of two devices, the first rotated, and a healthy log."""
    texts = {
        "a.0": MODEL % "Phone 8" + HEAD % 5 + ESTIMATE % 1500,
        "a.1": HEAD % 6 + ESTIMATE % 3000,
        "b": "Backend build version: v2.33.0\n" + HEAD % 7 + ESTIMATE % 2000,
        "c": MODEL % "Phone 8" + HEAD % 8 + "failed to map 5000 bytes on domain 3 net use\n",
        "healthy": MODEL % "Phone 9",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    parts = [("a.0", "a.1"), ("b",), ("c",), ("healthy",)]
    return [Stream(tuple(str(tmp_path / name) for name in names)) for names in parts]


def test_incidents_are_counted_by_device(streams: list[Stream], knowledge: Knowledge) -> None:
    """Incidents are counted by the device that the log names; otherwise as `unknown`."""
    diagnosis = diagnose(streams, knowledge)
    phone, unknown = group(diagnosis, "device").rows
    diagnosis.close()
    assert (phone.key, phone.incidents, phone.logs, phone.memory) == ("Phone 8", 3, 2, 3)
    assert (phone.shortage_min_bytes, phone.shortage_max_bytes) == (500 << 10, 2000 << 10)
    assert phone.first_seen.rpartition(":")[0] == streams[0].parts[0]
    assert (unknown.key, unknown.incidents) == ("unknown", 1)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("cause", [("mem_graph_limit", 3), ("mem_dsp_va", 1)]),
        ("stage", [("graph", 3), ("context", 1)]),
        ("entry", [("over-limit", 3), ("big-map", 1)]),
        ("build", [("unknown", 3), ("v2.33.0", 1)]),
    ],
)
def test_incidents_are_counted_by_what_they_say(
    streams: list[Stream], knowledge: Knowledge, by: str, expected: list[tuple[str, int]]
) -> None:
    """Groups are sorted by count, the most frequent first."""
    diagnosis = diagnose(streams, knowledge)
    assert [(row.key, row.incidents) for row in group(diagnosis, by).rows] == expected
    diagnosis.close()


def test_workers_give_the_same_groups(
    streams: list[Stream], knowledge: Knowledge, here: Any
) -> None:
    """Workers give the same groups as a single reader."""
    alone, cut = (
        diagnose(streams, knowledge),
        diagnose_with(streams, knowledge, here(), range_bytes=20),
    )
    assert [group(alone, by) for by in BY] == [group(cut, by) for by in BY]
    alone.close()
    cut.close()


def test_the_table_has_a_line_for_each_row(streams: list[Stream], knowledge: Knowledge) -> None:
    """The table has one line per row, with counts and the range of the shortage."""
    diagnosis = diagnose(streams, knowledge)
    head, names, first, last = render_fleet(group(diagnosis, "device")).splitlines()
    diagnosis.close()
    assert head == "4 incidents by device"
    assert names.split()[:2] == ["device", "incidents"]
    assert "500.00 KiB .. 1.95 MiB" in first
    assert last.startswith("unknown")


def test_nothing_to_group_is_said() -> None:
    """Without incidents, the output is `no incidents` instead of a table."""
    assert render_fleet(FleetSummary("cause", ())) == "no incidents\n"


def test_names_from_logs_cannot_steer_a_terminal(tmp_path: Path, knowledge: Knowledge) -> None:
    """Control characters in a device name are replaced."""
    path = tmp_path / "log"
    path.write_text(MODEL % "Pho\x07ne\x9b2J" + HEAD % 5 + ESTIMATE % 1500)
    diagnosis = diagnose([Stream((str(path),))], knowledge)
    text = render_fleet(group(diagnosis, "device"))
    diagnosis.close()
    assert "Pho\ufffdne\ufffd2J" in text


def test_other_groups_are_refused(knowledge: Knowledge) -> None:
    """An unknown group is refused, and the message lists the valid groups."""
    diagnosis = diagnose([], knowledge)
    with pytest.raises(UsageError, match="cause, stage, entry, device, build, file"):
        group(diagnosis, "colour")
    diagnosis.close()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("[ro.product.model]: [SM-S928B]", "device", "SM-S928B"),
        ("[ro.soc.model]: [SM8650]", "soc", "SM8650"),
        ("Build fingerprint: 'a/b/c:14/UP1A/1:user/release-keys'", "build", "a/b/c:14/UP1A"),
        ("[    0.000000] Machine model: Qualcomm RB5 board", "device", "Qualcomm RB5 board"),
        ("Backend        build version: v2.20.0.240223161333_83920", "version", "v2.20.0"),
        ("     0.9ms [  INFO ] QNN_SDK build version: v2.38.0.2509", "version", "v2.38.0.2509"),
    ],
)
def test_real_lines_name_device_and_build(tmp_path: Path, line: str, name: str, value: str) -> None:
    """The built-in facts read device, SoC, build and version from real lines."""
    facts = Knowledge(pack(read_folder(Path(BUILT_IN) / "facts.toml")[0], ()))
    path = tmp_path / "log"
    path.write_text(line + "\n")
    diagnosis = diagnose([Stream((str(path),))], facts)
    assert diagnosis.facts[0][name].startswith(value)
    assert len(diagnosis) == 0
    diagnosis.close()
