"""Provoked failures are diagnosed to the right entry and numbers."""

from __future__ import annotations

import re
from pathlib import Path

import lpai_failures
import pytest
from seeds import share

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.kb.stored import cases
from qnnmem.doctor.logs.source import Stream
from qnnmem.results.incident import Incident

LPAI = {case.id: case for case in cases() if case.id.startswith("lpai-")}

# Kind: (entry, stage, cause).
HTP = {
    "graph-limit": ("graph-over-limit", "graph", "mem_graph_limit"),
    "op-over-vtcm": ("op-over-vtcm", "graph", "mem_vtcm"),
    "pd-full": ("no-pd-for-context", "context", "mem_dsp_va"),
    "host-memory": ("host-memory-compile", "graph", "mem_system_ram"),
    "bad-binary": ("binary-unreadable", "context", "version_mismatch"),
}

# Entry and numbers from one sentence of the LPAI runtime.
SENTENCES: dict[str, tuple[str, dict[str, int]]] = {
    "tcm-pool-two-inputs": ("lpai-tcm-full", {"needed_bytes": 1 << 20, "limit_bytes": 985_600}),
    "scratch-misaligned": ("lpai-alignment", {"off": 16, "align": 64}),
    "scratch-too-small": ("lpai-buffer-too-small", {"needed_bytes": 256, "limit_bytes": 192}),
    "scratch-of-other-type": ("lpai-memory-type-said", {}),
    "pools-overlap": ("lpai-pools-overlap", {}),
    "no-scratch": ("lpai-memory-missing", {}),
    "scratch-freed": ("lpai-memory-freed", {}),
    "input-too-short": ("lpai-io-size", {"needed_bytes": 100, "size_bytes": 96}),
    "registered-past-the-end": ("lpai-buffer-too-small", {"off_bytes": 36}),
    "persistent-after-finalize": ("lpai-call-order", {}),
}


def incidents(folder: Path, log: bytes) -> list[Incident]:
    """Return the incidents of a log."""
    path = folder / "failure.log"
    path.write_bytes(log)
    diagnosis = diagnose([Stream((str(path),))], built_in())
    try:
        return list(diagnosis.incidents())
    finally:
        diagnosis.close()


@pytest.mark.htp
@pytest.mark.parametrize("kind", HTP)
def test_a_provoked_htp_failure_is_diagnosed(kind: str, tmp_path: Path) -> None:
    """The log of the real library gives one incident with the library's own numbers."""
    from qnnmem.htp.installed import INSTALL
    from qnnmem.htp.library import has_library
    from qnnmem.htp.provoke import FailureKind, provoke
    from qnnmem.targets.socs import find_soc

    if not has_library():
        pytest.skip(f"the real QNN library is not installed: {INSTALL}")
    failure = provoke(FailureKind(kind), find_soc("SM8650"))
    assert failure.record.as_expected
    (incident,) = incidents(tmp_path, failure.log_text)
    assert (incident.entry, incident.stage, incident.cause) == HTP[kind]
    needed, limit = failure.record.need, failure.record.limit
    assert incident.quantities.get("needed_bytes") == needed
    if needed is not None and limit is not None:
        assert incident.quantities["limit_bytes"] == limit
        assert incident.shortage_bytes == needed - limit
    if kind == "bad-binary":  # the sizes in the log belong to a valid binary loaded before
        assert incident.cause_meaning.startswith("a truncated or damaged context binary")
        assert set(incident.quantities) == {"code"}
    if kind == "pd-full":  # the library also prints the remaining space
        printed = incident.quantities["limit_bytes"]
        assert isinstance(needed, int)
        assert isinstance(printed, int)
        assert incident.shortage_bytes == needed - printed > 0


@pytest.mark.parametrize("name", share(sorted(LPAI), 4))
def test_a_provoked_lpai_failure_is_diagnosed(name: str, tmp_path: Path) -> None:
    """A failure of the LPAI runtime, provoked again, gets the verdict of its stored case."""
    wanted = LPAI[name]
    (failure,) = (one for one in lpai_failures.FAILURES if f"lpai-{one.name}" == name)
    log = "\n".join(failure.lines()) + "\n"
    (incident,) = incidents(tmp_path, log.encode())
    assert incident.is_memory is wanted.is_memory
    if wanted.decidable == "cause":
        assert (incident.verdict, incident.cause) == ("cause", wanted.cause)
        assert incident.stage == wanted.stage
    if name.startswith("lpai-tcm-pool"):
        assert (incident.shortage_bytes or 0) > 0


def test_a_good_lpai_run_is_healthy(tmp_path: Path) -> None:
    """A successful LPAI run in TCM gives no incident."""
    log = "\n".join(lpai_failures.good_run()) + "\n"
    assert incidents(tmp_path, log.encode()) == []


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_of_our_runtime_is_read_without_its_code(name: str, tmp_path: Path) -> None:
    """A sentence of the runtime leads to its entry without its code, and its numbers are read."""
    (failure,) = (one for one in lpai_failures.FAILURES if one.name == name)
    (line,) = (one for one in failure.lines() if re.search(r"\[[A-Z][0-9]+\]", one))
    words = line.partition("]: ")[2] or line.partition("] ")[2]
    (incident,) = incidents(tmp_path, f"[ERROR] [Qnn Runtime] {words}\n".encode())
    entry, numbers = SENTENCES[name]
    assert incident.entry == entry
    assert incident.quantities | numbers == incident.quantities
