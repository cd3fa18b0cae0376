from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from vendor_reader import BLOB_SIZES, vendor_reading

from qnnmem.child import memory_limit
from qnnmem.errors import CannotTell, Refused
from qnnmem.htp import installed
from qnnmem.htp.installed import check_platform, check_version
from qnnmem.htp.library import has_library
from qnnmem.htp.native import child
from qnnmem.htp.requests import (
    LibraryRefusal,
    LoadReply,
    LoadRequest,
    Served,
    Tick,
    VersionsReply,
    VersionsRequest,
    WaitRequest,
)
from qnnmem.htp.worker import LogTap, Worker, default_memory_limit
from qnnmem.wire import decode

MARK = b"[qnnmem] end of request"
needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {installed.INSTALL}"
)


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Return a worker and close it after the test."""
    with Worker() as one:
        yield one


class Killer:
    """Sends a signal to a request when the request is served."""

    def __init__(self, worker: Worker, number: int, whole: bool = False) -> None:
        self._worker, self._number, self._whole = worker, number, whole

    def __call__(self, tick: Tick) -> None:
        """Send the signal at the first sign of life."""
        target = self._worker.pid if self._whole else tick.pid
        if tick.pid is not None and target is not None:
            with suppress(ProcessLookupError):  # the process has already died of the signal
                os.kill(target, self._number)


@needs_library
@pytest.mark.htp
def test_versions_name_the_library(worker: Worker) -> None:
    """The HTP backend has id 6 and states its build."""
    outcome = worker.ask(VersionsRequest())
    assert outcome.kind == "done"
    reply = outcome.result(VersionsReply)
    assert reply.backend_id == 6
    assert reply.build_id.startswith("v2.")


@needs_library
@pytest.mark.htp
def test_what_the_library_prints_to_standard_output_is_log(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lines that the library prints go to the log, not to standard output."""
    outcome = worker.ask(VersionsRequest())
    assert any("LIBNATIVE" in line for line in outcome.tail)
    assert capfd.readouterr() == ("", "")


@needs_library
@pytest.mark.htp
def test_one_child_serves_many_requests(worker: Worker) -> None:
    """One child process serves several requests."""
    worker.ask(VersionsRequest())
    first = worker.pid
    assert worker.ask(VersionsRequest()).is_done
    assert worker.pid == first


@needs_library
@pytest.mark.htp
def test_a_request_knows_its_peak_memory(worker: Worker) -> None:
    """The outcome of a request states its peak memory."""
    peak = worker.ask(VersionsRequest()).peak_rss
    assert peak is not None
    assert 16 << 20 < peak < 1 << 30


@needs_library
@pytest.mark.htp
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_is_an_outcome(worker: Worker, number: signal.Signals) -> None:
    """A request whose process dies names the signal, and the next request works."""
    outcome = worker.ask(WaitRequest(), time_limit_s=30, progress=Killer(worker, number))
    assert (outcome.kind, outcome.signal) == ("crashed", number)
    assert number.name in outcome.sentence
    assert worker.ask(VersionsRequest()).is_done


@needs_library
@pytest.mark.htp
def test_a_child_that_vanishes_is_replaced(worker: Worker) -> None:
    """A killed child costs only the current request."""
    killer = Killer(worker, signal.SIGKILL, whole=True)
    assert worker.ask(WaitRequest(), time_limit_s=30, progress=killer).kind == "crashed"
    assert worker.ask(VersionsRequest()).is_done


@needs_library
@pytest.mark.htp
def test_a_request_that_takes_too_long_is_ended(worker: Worker) -> None:
    """A request over the time limit ends with a timeout, and the next request works."""
    outcome = worker.ask(WaitRequest(), time_limit_s=0.3)
    assert outcome.kind == "timeout"
    assert "0.3 s" in outcome.sentence
    assert worker.ask(VersionsRequest()).is_done


@needs_library
@pytest.mark.htp
def test_a_request_without_memory_is_told_apart(worker: Worker) -> None:
    """A request without enough address space ends with "memory", not with a crash."""
    outcome = worker.ask(VersionsRequest(), memory_limit=64 << 20)
    assert outcome.kind == "memory"
    assert worker.ask(VersionsRequest()).is_done


def test_a_request_that_cannot_even_reply_says_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that runs out of memory still sends a reply that says so."""

    def run_out(_served: Served) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(child, "_answer", run_out)
    unused = os.open(os.devnull, os.O_WRONLY)
    pid, results = child._start(Served(1, 1 << 30, Path(), VersionsRequest()), unused)
    os.close(unused)
    ended, reply = child._finish(pid, results)
    assert ended.status == 0
    assert decode(reply, LibraryRefusal) == LibraryRefusal("MemoryError", "versions", memory=True)


@needs_library
@pytest.mark.htp
def test_a_damaged_binary_is_refused_with_a_code(worker: Worker, tmp_path: Path) -> None:
    """A damaged binary is refused with a code by the vendor's reader and by the loader."""
    file = tmp_path / "zeros.bin"
    file.write_bytes(bytes(4096))
    with pytest.raises(Refused) as refused:
        vendor_reading(file)
    assert refused.value.code == 30010
    outcome = worker.ask(LoadRequest([file], 57))
    assert outcome.result(LoadReply).codes == [30001]


@needs_library
@pytest.mark.htp
def test_a_caller_that_gives_up_leaves_a_usable_worker(worker: Worker) -> None:
    """An exception in the caller's progress callback ends the request; the next one works."""

    def give_up(_tick: Tick) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.ask(WaitRequest(), progress=give_up)
    assert worker.ask(VersionsRequest()).is_done


@needs_library
@pytest.mark.htp
def test_the_child_ends_with_its_parent() -> None:
    """The child process ends when its parent is killed during a request."""
    program = (
        "from qnnmem.htp.requests import VersionsRequest, WaitRequest\n"
        "from qnnmem.htp.worker import Worker\n"
        "worker = Worker()\n"
        "worker.ask(VersionsRequest())\n"
        "print(worker.pid, flush=True)\n"
        "worker.ask(WaitRequest())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    signalled, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert signalled


@needs_library
@pytest.mark.htp
def test_the_structs_have_the_sizes_of_the_headers() -> None:
    """The bound structs have the sizes of the public headers."""
    program = (
        "import ctypes, qnnmem.qnn.abi as abi\n"
        "names = ('CTensor', 'CTensorV1', 'CTensorV2', 'CQuantParams', 'CBinaryInfo', 'CGraphInfo',"
        " 'CConfig', 'CMemDescriptor', 'CHtpMem', 'CHtpGraphConfig')\n"
        "print(*(ctypes.sizeof(getattr(abi, name)) for name in names))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    sizes = ["144", "112", "136", "40", "144", "88", "16", "48", "32", "56"]
    assert done.stdout.split() == sizes
    assert BLOB_SIZES == (40, 72)


@pytest.mark.skipif(sys.platform != "linux", reason="the worker is for Linux")
@pytest.mark.parametrize("whole", [True, False], ids=["child", "request"])
def test_no_process_is_left_behind(whole: bool) -> None:
    """Killing the child or the request leaves no process of either."""
    served: list[int] = []
    with Worker(library=installed.Library("2.7.0", "1", Path("nowhere"))) as one:
        killer = Killer(one, signal.SIGKILL, whole)

        def kill(tick: Tick) -> None:
            if tick.pid is not None and not served:
                served.append(os.pidfd_open(tick.pid))
                killer(tick)

        assert one.ask(WaitRequest(), time_limit_s=60, progress=kill).kind == "crashed"
        ended, _, _ = select.select(served, [], [], 30)
        os.close(served[0])
        assert ended
        assert "libQnnHtp.so" in one.ask(VersionsRequest(), time_limit_s=60).sentence


class Pipe:
    """A log tap with the write end of its pipe."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.tap = LogTap(reader, MARK)

    def finish(self, request: int) -> None:
        """Write the end mark of a request and wait for the tap."""
        os.write(self.writer, MARK + b" %d\n" % request)
        self.tap.wait_for_end(30)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.writer)
        self.tap.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Return a tap and close it after the test."""
    one = Pipe()
    yield one
    one.close()


def test_a_tap_keeps_what_matters(pipe: Pipe) -> None:
    """The tap keeps lines with a keyword in order, and only counts the others."""
    pipe.tap.begin(1, None)
    os.write(pipe.writer, b"noise\n <E> first\n" + b"noise\n" * 1000 + b"spill_bytes=3\n")
    pipe.finish(1)
    assert [line.text for line in pipe.tap.lines()] == ["first", "spill_bytes=3"]
    assert pipe.tap.bytes_read > 6000


def test_a_tap_joins_lines_that_come_in_pieces(pipe: Pipe) -> None:
    """The tap joins a line that arrives in several reads."""
    pipe.tap.begin(1, None)
    for piece in (b"spill_by", b"tes=12", b"3\nfill_", b"bytes=4\n"):
        os.write(pipe.writer, piece)
    pipe.finish(1)
    assert [line.text for line in pipe.tap.lines()] == ["spill_bytes=123", "fill_bytes=4"]


def test_a_tap_forgets_the_request_before(pipe: Pipe) -> None:
    """Each request has only its own lines."""
    pipe.tap.begin(1, None)
    os.write(pipe.writer, b" <E> old\n")
    pipe.finish(1)
    pipe.tap.begin(2, None)
    os.write(pipe.writer, b" <E> new\n")
    pipe.finish(2)
    assert [line.text for line in pipe.tap.lines()] == ["new"]


def test_a_tap_knows_the_last_lines(pipe: Pipe) -> None:
    """The tail has the last non-empty lines, with or without a keyword."""
    pipe.tap.begin(1, None)
    os.write(pipe.writer, b"one\n\ntwo\nthree\n")
    pipe.finish(1)
    assert pipe.tap.tail(2) == ("two", "three")


def test_a_tap_stops_where_it_is_told(pipe: Pipe) -> None:
    """The tap is marked stopped when a line contains the stop text."""
    pipe.tap.begin(1, b"Unsupported nodes")
    assert not pipe.tap.stopped
    os.write(pipe.writer, b"[E:onnxruntime:, a.cc:1 F] Unsupported nodes: { x }\n")
    pipe.finish(1)
    assert pipe.tap.stopped


def test_a_tap_passes_everything_on(pipe: Pipe) -> None:
    """A sink receives every byte of the log."""
    got: list[bytes] = []
    pipe.tap.begin(1, None, got.append)
    os.write(pipe.writer, b"noise\n")
    pipe.finish(1)
    assert b"".join(got) == b"noise\n" + MARK + b" 1\n"


def test_a_tap_bounds_what_it_keeps(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tap limits the kept lines to MAX_KEPT bytes."""
    monkeypatch.setattr("qnnmem.htp.worker.MAX_KEPT", 100)
    pipe.tap.begin(1, None)
    os.write(pipe.writer, b" <E> again\n" * 5000)
    pipe.finish(1)
    assert len(pipe.tap.lines()) == 100 // len(b" <E> again")


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")]
)
def test_other_platforms_are_told_what_to_do(system: str, machine: str) -> None:
    """Without a compiler for the platform, the error names the platform and remote workers."""
    with pytest.raises(CannotTell, match="ssh, docker or qemu-user") as caught:
        check_platform(system, machine)
    assert machine in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("version", ["2.6.1", "3.0.0", "1.9", "junk"])
def test_other_versions_are_told_what_to_do(version: str) -> None:
    """An unsupported package version is refused with the install command."""
    with pytest.raises(CannotTell, match=re.escape(installed.INSTALL)):
        check_version(version)


@pytest.mark.parametrize("version", ["2.7.0", "2.11.3"])
def test_later_versions_are_taken(version: str) -> None:
    """Later versions with the same major version are accepted."""
    check_version(version)


@pytest.mark.parametrize("gib", [1, 8, 256])
def test_a_compile_may_take_most_of_the_machine(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    """A compile may use three quarters of the machine's memory, and at least 2 GiB."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gib << 18}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert default_memory_limit() == max(2, gib * 3 / 4) * (1 << 30)
    assert memory_limit() == min(12 << 30, default_memory_limit())


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the error gives the exact install command."""
    monkeypatch.setattr(installed, "PACKAGE", "no-such-package-anywhere")
    monkeypatch.setattr(installed, "check_platform", lambda *_: None)
    with pytest.raises(CannotTell, match=re.escape(installed.INSTALL)):
        installed.installed_library.__wrapped__()
