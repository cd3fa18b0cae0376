"""Messages of loaders that refuse a library: the reason decides the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.source import find_streams

OPENED = "[ERROR] [Qnn ExecuTorch]: Cannot Open QNN library libQnnHtp.so, with error: "
BACKEND = "Unable to load backend, error: "


def causes(path: Path, text: str) -> list[str]:
    """Return the cause of each incident in a log."""
    path.write_text(f"{text}\n", "utf-8")
    return [one.cause for one in diagnose(find_streams([str(path)]), built_in()).incidents()]


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (OPENED + "libc++.so.1: cannot open shared object file", "skel_missing"),
        (
            OPENED + "libQnnHtp.so: cannot open shared object file: Permission denied",
            "access_denied",
        ),
        (OPENED + "libQnnHtp.so: undefined symbol: _ZNSt3__1", "version_mismatch"),
        (OPENED + "libQnnHtp.so: wrong ELF class: ELFCLASS64", "soc_mismatch"),
        (BACKEND + 'dlopen failed: "libQnnHtp.so" is 32-bit instead of 64-bit', "soc_mismatch"),
        (BACKEND + "LoadLibrary failed with 193", "soc_mismatch"),
        (BACKEND + 'cannot locate symbol "a" referenced by "libQnnHtp.so"', "version_mismatch"),
        ('couldn\'t map "/sdcard/libQnnHtp.so" segment 1: Permission denied', "access_denied"),
    ],
)
def test_the_reason_decides(tmp_path: Path, said: str, cause: str) -> None:
    """A missing symbol, a missing right or a wrong architecture is not a missing file."""
    assert causes(tmp_path / "a.log", said) == [cause]


def test_another_path_that_is_tried_leaves_the_first_refusal_open(tmp_path: Path) -> None:
    """A refused library gets low confidence if the log shows another path being tried."""
    lines = (
        "<E> DspTransport.openSession qnn_open failed, 0x80000406\n"
        "<W> Traditional path not available. Switching to user driver path"
    )
    path = tmp_path / "a.log"
    path.write_text(f"{lines}\n", "utf-8")
    found = list(diagnose(find_streams([str(path)]), built_in()).incidents())
    assert [one.confidence for one in found] == ["low"]


def test_graphs_that_ran_anyway_are_no_failure(tmp_path: Path) -> None:
    """A refused library is no incident if graphs ran later, unless the run ended in between."""
    refused = (
        "DspTransport.openSession qnn_open failed, 0x80000406, prio 100\n"
        "IDspTransport: Unable to load lib 0x80000406\n"
    )
    ran = "Executing Graphs\nFinished Executing Graphs"
    assert causes(tmp_path / "a.log", refused + ran) == []
    ended = "Failed to load skel, error: 1002\nDevice Creation failure\n"
    assert causes(tmp_path / "a.log", refused + ended + ran) == ["skel_missing"]
