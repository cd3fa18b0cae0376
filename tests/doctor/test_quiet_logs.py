"""Logs without a QNN failure: foreign, truncated or healthy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import exit_code, run
from doctor_cases import incidents

from qnnmem.doctor.kb.knowledge import built_in

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_a_text_that_is_no_log_is_none_of_qnn(tmp_path: Path) -> None:
    """Text that is no log gives exit code 3 and says that it has no QNN lines."""
    log = tmp_path / "note.txt"
    log.write_text("hello world\nthis is not a log\n", "utf-8")
    done = run("doctor", log)
    assert exit_code(done) == 3
    assert done.stdout.startswith("no QNN log: no QNN lines in 2 lines")
    answer = msgspec.json.decode(run("doctor", log, "--json").stdout)
    assert answer["incidents"] == []
    assert "no QNN lines found" in answer["notes"][0]


def test_a_log_that_was_cut_before_its_failure_is_not_healthy(tmp_path: Path) -> None:
    """A log that ends before its failure is undecided, not healthy."""
    lines = (EXAMPLES / "graph_limit.log").read_text("utf-8").splitlines()
    log = tmp_path / "cut.log"
    log.write_text("\n".join(lines[:16]) + "\n", "utf-8")
    done = run("doctor", log)
    assert exit_code(done) == 3
    assert "undecided: neither failure nor success in" in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "<I> no error: out of memory checks passed",
        "03-01 10:00:00.123  4242  4250 I QnnDsp  : <I> no error: out of memory checks passed",
        "QnnDsp <W> memory check passed",
    ],
)
@pytest.mark.parametrize("times", [1, 40])
def test_a_check_that_passed_is_no_shortage(line: str, times: int, tmp_path: Path) -> None:
    """A passed memory check is no incident, alone or repeated."""
    log = tmp_path / "run.log"
    log.write_text(f"{line}\n" * times, "utf-8")
    answer = msgspec.json.decode(run("doctor", log, "--json").stdout)
    assert answer["incidents"] == []


def test_codes_of_fastrpc_are_shown_as_people_know_them(tmp_path: Path) -> None:
    """FastRPC codes are shown in hexadecimal; the JSON has the number."""
    log = tmp_path / "run.log"
    log.write_text("ADSPRPC: remote_handle_open failed 0x80000406\n", "utf-8")
    assert "0x80000406    reported" in run("doctor", log).stdout
    (found,) = msgspec.json.decode(run("doctor", log, "--json").stdout)["incidents"]
    assert found["quantities"]["code"] == 0x80000406


def test_a_crash_of_the_modem_is_not_surely_one_of_the_dsp() -> None:
    """A modem crash gets no confident DSP verdict; a cDSP crash gets the DSP crash entry."""
    modem = (
        "qcom_q6v5_mss 4080000.remoteproc: fatal error received: lte.c:1804\n"
        "remoteproc remoteproc0: crash detected in modem: type fatal error\n"
    )
    dsp = modem.replace("in modem", "in cdsp")
    assert all(one.confidence != "high" for one in incidents(modem.encode(), built_in()))
    assert [one.entry for one in incidents(dsp.encode(), built_in())] == ["dsp-subsystem-crash"]
