"""From files to incidents: grouping, skipped files and exit codes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from search_engines import engine_named

from qnnmem.doctor.diagnose import Diagnosis, diagnose
from qnnmem.doctor.kb.entry import Entry, Line, When, is_memory
from qnnmem.doctor.kb.knowledge import Knowledge, built_in, pack
from qnnmem.doctor.logs.search import ENGINES
from qnnmem.doctor.logs.source import Stream, find_streams
from qnnmem.errors import LoadError, UsageError
from qnnmem.results.incident import Incident

MAPPING = "mapping of {length:bytes} bytes failed"
KNOWLEDGE = Knowledge(
    pack(
        (Line("map", MAPPING), Line("kernel", "iommu pool of {free:KB} kB is used up")),
        (
            Entry("map", "Mapping", "mem_dsp_va", "memreg", (When(("map",)),), verdict="memory"),
            Entry("pool", "Pool", "mem_map_layer", "memreg", (When(("kernel",)),)),
        ),
    )
)
FAILED = "05-28 20:26:{:02}.000 {:5} {:5} E QnnDsp  : mapping of 4096 bytes failed\n"
KERNEL = "[  100.000001] iommu pool of 16 kB is used up\n"
QUIET = "05-28 20:26:43.000  1  1 I Other   : nothing to say\n"


def said(path: Path, *texts: str) -> Diagnosis:
    """Return the diagnosis of a log with these lines."""
    path.write_text("".join(texts), "utf-8")
    return diagnose([Stream((str(path),))], KNOWLEDGE)


def test_processes_are_incidents_of_their_own(tmp_path: Path) -> None:
    """Each process has its own incident with a count, even with interleaved lines."""
    lines = [FAILED.format(second, pid, pid) for second in (1, 2) for pid in (10, 20)]
    found = list(said(tmp_path / "a.log", *lines).incidents())
    assert [(one.process, one.count) for one in found] == [(10, 2), (20, 2)]
    assert [(one.first_line, one.last_line) for one in found] == [(1, 3), (2, 4)]


def test_the_kernel_speaks_for_the_one_process_that_failed(tmp_path: Path) -> None:
    """A kernel line joins the incident of the only failed process, but not of one among two."""
    (one,) = said(tmp_path / "a.log", FAILED.format(1, 10, 10), KERNEL).incidents()
    assert (one.process, one.entry) == (10, "pool")
    several = said(tmp_path / "b.log", FAILED.format(1, 10, 10), FAILED.format(1, 20, 20), KERNEL)
    assert sorted(one.entry or "" for one in several.incidents()) == ["map", "map", "pool"]


def test_failures_far_apart_are_two(tmp_path: Path) -> None:
    """Failures more than a megabyte apart are two incidents."""
    far = said(
        tmp_path / "a.log", FAILED.format(1, 10, 10), QUIET * 25_000, FAILED.format(59, 10, 10)
    )
    assert len(far) == 2


def test_many_incidents_keep_their_order(tmp_path: Path) -> None:
    """A thousand incidents keep their order, beyond the limit held in memory."""
    lines = [FAILED.format(1, pid, pid) for pid in range(1, 1001)]
    found = said(tmp_path / "a.log", *lines)
    assert [one.process for one in found.incidents()] == list(range(1, 1001))
    found.close()


def test_what_cannot_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    """Unreadable files are noted beside others and refused alone."""
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b\x08junk")
    (tmp_path / "good.log").write_text(FAILED.format(1, 10, 10), "utf-8")
    (tmp_path / "quiet.log").write_text(QUIET, "utf-8")
    both = diagnose(find_streams([str(tmp_path)]), KNOWLEDGE)
    assert both.exit_code == 1
    assert "bad.gz" in both.notes[0]
    names = [str(tmp_path / name) for name in ("bad.gz", "quiet.log")]
    assert diagnose(find_streams(names), KNOWLEDGE).exit_code == 2
    with pytest.raises(LoadError, match=r"bad\.gz"):
        diagnose(find_streams(names[:1]), KNOWLEDGE)


def test_a_healthy_log_is_exit_code_zero(tmp_path: Path) -> None:
    """A healthy log gives exit code 0 and counts its lines and bytes."""
    quiet = QUIET.replace("Other", "QnnDsp").replace("nothing to say", "graph finalized, ok")
    found = said(tmp_path / "a.log", quiet * 3)
    assert (found.exit_code, found.lines, found.bytes) == (0, 3, 3 * len(quiet))


@pytest.mark.parametrize(
    ("text", "look"),
    [
        (QUIET * 400, "a logcat"),
        ("[    1.500000] usb 1-1: new device\n", "a kernel log"),
        ("Nov 16 10:00:00 host sshd[77]: hello\n" * 3, "a system journal"),
        ("It was a dark night.\n", "plain text"),
        ("x" * 300_000, "plain text"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_without_a_word_of_qnn_is_not_healthy(
    tmp_path: Path, text: str, look: str, engine: str
) -> None:
    """A log without QNN lines gives exit code 3, and the note says what it looks like."""
    (tmp_path / "a.log").write_text(text, "utf-8")
    engine_named(KNOWLEDGE, engine)
    found = diagnose(find_streams([str(tmp_path / "a.log")]), KNOWLEDGE, engine=engine)
    assert (found.exit_code, len(found)) == (3, 0)
    assert found.notes[0].endswith(f"no QNN lines found; it looks like {look}")


def test_a_word_of_qnn_late_in_a_log_is_seen(tmp_path: Path) -> None:
    """One QNN line in one of several logs is enough for exit code 0."""
    (tmp_path / "a.log").write_text(QUIET * 9000 + "I QnnDsp : loaded\n", "utf-8")
    (tmp_path / "b.log").write_text(QUIET, "utf-8")
    found = diagnose(find_streams([str(tmp_path)]), KNOWLEDGE)
    assert (found.exit_code, len(found.notes)) == (0, 1)
    assert "b.log: no QNN lines found" in found.notes[0]


@pytest.mark.parametrize("line", ["ERROR: finalize failure -12", "execute returned error 1002"])
def test_a_short_message_is_about_what_the_doctor_knows(tmp_path: Path, line: str) -> None:
    """A short failure message without QNN words is an incident; inside a long log it is not."""
    found = []
    for text in (line, QUIET * 300 + line):
        (tmp_path / "a.log").write_text(text, "utf-8")
        diagnosis = diagnose(find_streams([str(tmp_path / "a.log")]), built_in())
        found.append((diagnosis.exit_code, len(diagnosis)))
    assert found == [(3, 1), (3, 0)]


def test_rotated_files_are_one_log(tmp_path: Path) -> None:
    """Rotated files are joined: suffix numbers count backwards, inner numbers forwards."""
    for name in ("dev.000.log", "dev.001.log", "logcat", "logcat.1", "logcat.2", "notes.md"):
        (tmp_path / name).write_text(QUIET, "utf-8")
    streams = find_streams([str(tmp_path)])
    names = [[Path(part).name for part in stream.parts] for stream in streams]
    assert names == [["dev.000.log", "dev.001.log"], ["logcat.2", "logcat.1", "logcat"]]


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    """A folder without logs is refused."""
    with pytest.raises(UsageError, match="no log in"):
        find_streams([str(tmp_path)])


def diagnosed(path: Path, text: str) -> list[Incident]:
    """Return the incidents that the built-in knowledge finds."""
    path.write_text(text, "utf-8")
    return list(diagnose(find_streams([str(path)]), built_in()).incidents())


@pytest.mark.parametrize(
    "lines",
    [
        (
            "remote_handle64_invoke failed for handle 0xb400007951dc0a10, interface",
            "libdspqueue_rpc_skel.so method 3 on domain 3 (sc 0x3010100) (errno Success) (user err",
            "0x80000414)",
        ),
        (
            "[  338.213494] ../../kernel/drivers/char/adsprpc.c:1988:error:",
            "-512: 0 == (err = interrupted)",
            "[  338.216608] (elapsed 0.009 seconds) done.",
            "[  338.220095] PM: Suspending system (mem)",
        ),
    ],
    ids=["a number at the start", "part of what is known"],
)
def test_pieces_of_a_harmless_message_raise_no_alarm(
    lines: tuple[str, ...], tmp_path: Path
) -> None:
    """A wrapped harmless message gives no incident."""
    assert not diagnosed(tmp_path / "a.log", "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("width", [60, 70, 80, 90])
@pytest.mark.parametrize("between", ["", "QNN is up\n"])
def test_a_message_that_somebody_wrapped_is_read_whole(
    tmp_path: Path, width: int, between: str
) -> None:
    """A message wrapped at spaces is read as one message."""
    message = (
        'A single op, "q::ForceFormat_Crouton" (Op ID: 1165b600001430), requires 0x2400000 bytes '
        "of TCM, which is greater than the TCM size of 0x800000!"
    )
    wrapped = "\n".join(textwrap.wrap(message, width))
    (one,) = diagnosed(tmp_path / "a.log", f"{between}{wrapped}\n")
    assert (one.cause, one.shortage_bytes) == ("mem_vtcm", 0x2400000 - 0x800000)


def test_an_unknown_error_before_the_deciding_line_makes_it_doubtful(tmp_path: Path) -> None:
    """An unknown error before the deciding line lowers the confidence and is in the evidence."""
    known = "E QnnDsp : Can't read future blob\n"
    strange = "E QnnDsp : the frobnicator failed\n"
    (sure,) = diagnosed(tmp_path / "a.log", known + strange)
    (doubtful,) = diagnosed(tmp_path / "b.log", strange + known)
    assert (sure.cause, sure.confidence) == ("version_mismatch", "high")
    assert (doubtful.cause, doubtful.confidence) == ("version_mismatch", "low")
    assert any("frobnicator" in one.text for one in doubtful.evidence)


def test_words_alone_are_never_sure(tmp_path: Path) -> None:
    """A line without a template gets its cause from its words."""
    (one,) = diagnosed(
        tmp_path / "a.log", 'dlopen failed: library "libQnnHtpV75Skel.so" not found\n'
    )
    assert (one.cause, one.verdict) == ("skel_missing", "cause")
    assert one.confidence in ("medium", "high")


def test_the_model_names_a_cause_and_similar_entries_are_shown(tmp_path: Path) -> None:
    """The model suggests a cause without high confidence, with similar entries."""
    (one,) = diagnosed(
        tmp_path / "a.log",
        "E QnnDsp : spill fill arena gone wrong, sadly failed to group contexts\n",
    )
    assert (one.verdict, one.cause, one.is_memory) == ("cause", "mem_spill_fill", True)
    assert one.confidence != "high"
    assert one.candidates[0].cause == one.cause
    assert one.similar


def test_an_entry_and_the_model_that_disagree_are_both_shown(tmp_path: Path) -> None:
    """If code and words disagree about memory, the verdict is undecided and both are candidates."""
    line = "QNN_MEM_ERROR_MAPPING (8003): dlopen failed, library libQnnHtpV75Skel.so not found"
    (one,) = diagnosed(tmp_path / "a.log", f"{line}\n")
    assert (one.verdict, one.is_memory, one.entry) == ("undecided", "unknown", None)
    sides = {is_memory(candidate.cause) for candidate in one.candidates}
    assert sides == {True, False}


@pytest.mark.parametrize(
    "lines",
    [
        "worker-2: QnnBackend_create failed",
        "step 3: QnnGraph_finalize failed\nmodel could not be prepared",
        "acme::Runner: [main] QnnContext_createFromBinary did not succeed",
    ],
)
def test_a_call_behind_names_decides_no_side(tmp_path: Path, lines: str) -> None:
    """A failed call behind other names stays undecided, with candidates."""
    (one,) = diagnosed(tmp_path / "a.log", f"{lines}\n")
    assert (one.verdict, one.is_memory) == ("undecided", "unknown")
    assert one.candidates


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("QNN model requires 7.5 GB RAM, device has 6 GB (NPU mode)", True),
        ("QNN backend requires Windows build 26100, found 22631", False),
    ],
)
def test_what_is_undecided_may_have_a_probable_side(tmp_path: Path, line: str, short: bool) -> None:
    """An undecided incident may show a likely side, which agrees with the candidates."""
    (one,) = diagnosed(tmp_path / "a.log", f"{line}\n")
    assert (one.verdict, one.confidence, one.is_memory) == ("undecided", "low", short)
    assert one.decided_memory is None
    memory = sum(each.score for each in one.candidates if is_memory(each.cause))
    assert (memory > sum(each.score for each in one.candidates) / 2) is short


def test_a_short_log_that_looks_like_a_failure_is_not_healthy(tmp_path: Path) -> None:
    """A short log of failures at info level gives exit code 3, not 0."""
    (tmp_path / "a.log").write_text(
        "03-10 09:28:51.045 2279 2279 I ggml-qnn: failed to create qnn graph, unknown QNN error\n"
        "03-10 09:28:51.046 2279 2279 I ggml-qnn: can't create qnn graph handle, error = 1008\n"
    )
    diagnosis = diagnose(find_streams([str(tmp_path / "a.log")]), built_in())
    assert (len(diagnosis), diagnosis.exit_code) == (0, 3)


def test_the_model_adds_no_verdict_to_a_bare_code(tmp_path: Path) -> None:
    """A bare code stays undecided, with the model's candidates."""
    (one,) = diagnosed(tmp_path / "a.log", "execute returned error 1002\n")
    assert (one.verdict, one.is_memory) == ("undecided", "unknown")
    assert one.candidates


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("HTP backend: watchdog bite\n", 1),
        ("QNN 内存不足\n", 3),
        ("QNN 没有输出\n", 3),
        ("QNN outputs are all zeros\nqnn ret: nothing\n", 3),
        ("QNN loaded\n", 0),
        ("I QnnDsp: nothing to say\n", 3),
        ("[INFO] rpcmem_alloc: 0x0\n", 3),
        ('{"success": false, "backend": "qnn"}\n', 3),
        ("qnn: error count: 0, all ok\n", 0),
        ("qnn one\nqnn two\nqnn three\nqnn four\n", 3),
    ],
)
def test_a_message_that_says_nothing_is_not_healthy(tmp_path: Path, text: str, code: int) -> None:
    """A short message without a clear outcome gives exit code 3, not 0."""
    (tmp_path / "a.log").write_text(text, "utf-8")
    assert diagnose(find_streams([str(tmp_path / "a.log")]), built_in()).exit_code == code
