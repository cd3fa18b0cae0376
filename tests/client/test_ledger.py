"""The ledger: a call that a program counted and no checker answered is not checked."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from qnnmem.programs import ledger as module
from qnnmem.programs.ledger import LEDGER_BYTES, Hangup, Ledger, in_words, listed
from qnnmem.results.programs import NotChecked

HEAD, PROCESSES, ROWS, FUNCTIONS = 0, 40, 40 + 1024 * 8, 40 + 1024 * 8 + 4097 * 32
DAMAGED = "perhaps some calls: the program overwrote or removed the counter of its calls"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Return a ledger that does not wait for processes."""
    monkeypatch.setattr(module, "_END_S", 0.0)
    made = Ledger(tmp_path)
    yield made
    made.close()


def write(folder: Path, at: int, *words: int) -> None:
    """Write words at an offset of the ledger file."""
    with (folder / "ledger").open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(f"<{len(words)}Q", *words))


def row(number: int) -> int:
    """Return the offset of a row."""
    return ROWS + number * 32


def missed(ledger: Ledger) -> list[str]:
    """Return the descriptions of the unchecked calls."""
    return [one.what for one in ledger.not_checked("QNN came from elsewhere")]


def test_the_file_has_its_size_and_is_closed_to_others(ledger: Ledger, tmp_path: Path) -> None:
    """The ledger is a new file of fixed size with mode 600 and the pid of this process."""
    found = (tmp_path / "ledger").stat()
    assert found.st_size == LEDGER_BYTES == FUNCTIONS + 128 * 24
    assert found.st_mode & 0o777 == 0o600
    assert not os.get_inheritable(ledger._file)
    start = struct.unpack("<6Q", (tmp_path / "ledger").read_bytes()[:48])
    assert start == (os.getpid(), 0, 0, 0, 0, 0)
    with pytest.raises(FileExistsError):
        Ledger(tmp_path)


def test_a_full_disk_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises OSError and leaves no open descriptor."""

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Ledger(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_answered_calls_are_checked(ledger: Ledger, tmp_path: Path) -> None:
    """If each counted call was answered, nothing is missing."""
    write(tmp_path, row(1), 7, 8, 2, 0)
    ledger.hear(1)
    ledger.hear(1)
    assert missed(ledger) == []


@pytest.mark.parametrize(
    ("made", "lost", "heard", "said"),
    [
        (3, 0, 1, ["2 calls of thread 8 of process 7"]),
        (1, 0, 0, ["1 call of thread 8 of process 7"]),
        (2, 1, 2, ["1 call of thread 8 of process 7"]),
        (3, 1, 1, ["2 calls of thread 8 of process 7"]),
        (1, 0, 2, [DAMAGED]),
        (1 << 48, 0, 0, [f"{1 << 48:,} calls of thread 8 of process 7"]),
        ((1 << 48) + 1, 0, 0, [DAMAGED]),
        (0, (1 << 48) + 1, 0, []),
    ],
)
def test_a_difference_is_told(
    made: int, lost: int, heard: int, said: list[str], ledger: Ledger, tmp_path: Path
) -> None:
    """Lost or unanswered calls are counted, and impossible counts are reported as damage."""
    write(tmp_path, row(1), 7, 8, made, lost)
    for _ in range(heard):
        ledger.hear(1)
    assert missed(ledger) == said


def test_threads_beyond_the_table_share_a_row(ledger: Ledger, tmp_path: Path) -> None:
    """Calls of threads beyond the table share a row; a row number beyond that is refused."""
    write(tmp_path, row(4096), 0, 0, 5, 0)
    assert missed(ledger) == ["5 calls of other threads"]
    assert ledger.row(4096) == 4096
    with pytest.raises(Hangup, match="invalid row number"):
        ledger.row(4097)


def test_limits_are_named_where_calls_are_missing(ledger: Ledger, tmp_path: Path) -> None:
    """Limits are named only if calls are missing."""
    ledger.refuse("512 threads")
    ledger.refuse("24 descriptors")
    ledger.refuse("512 threads")
    assert missed(ledger) == []
    write(tmp_path, row(0), 7, 8, 1, 0)
    ledger.miss("a buffer")
    ledger.miss("a buffer")
    wanted = ["1 call of thread 8 of process 7", "a buffer", "limit: 512 threads; 24 descriptors"]
    assert missed(ledger) == wanted


def test_other_ways_past_the_checker_are_told(ledger: Ledger, tmp_path: Path) -> None:
    """Too many processes, a process without LD_PRELOAD and a foreign library have own sentences."""
    write(tmp_path, 16, 1025, 3, 1)
    found = ledger.not_checked("QNN came from elsewhere")
    assert [one.what for one in found] == [
        "limit: at most 1,024 processes can use QNN",
        "a process without LD_PRELOAD tried to use QNN and was refused",
        "QNN came from elsewhere",
    ]
    assert found[1].calls == 3
    write(tmp_path, 16, 1024, 0, 0)
    assert missed(ledger) == []


@pytest.mark.parametrize("harm", ["overwritten", "removed", "replaced", "cut"])
def test_a_ledger_that_was_touched_proves_nothing(
    harm: str, ledger: Ledger, tmp_path: Path
) -> None:
    """An overwritten, removed, replaced or truncated ledger is reported as damaged."""
    path = tmp_path / "ledger"
    if harm == "overwritten":
        write(tmp_path, HEAD, 1)
    elif harm == "cut":
        os.truncate(path, 0)
    else:
        path.unlink()
        if harm == "replaced":
            path.write_bytes(bytes(LEDGER_BYTES))
    assert missed(ledger) == [DAMAGED]


def test_a_process_that_goes_on_is_named(ledger: Ledger, tmp_path: Path) -> None:
    """A running process is named only while it maps the ledger, because a pid may be reused."""
    me = os.getpid()
    write(tmp_path, PROCESSES, me, 0, 1 << 31, 1 << 40)
    assert missed(ledger) == []
    with (tmp_path / "ledger").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        (found,) = ledger.not_checked("")
    assert found == NotChecked(f"process {me} is still running and may call QNN", process=me)


def test_processes_are_given_time_to_end(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends within the waiting time is not reported."""
    monkeypatch.setattr(module, "_END_S", 600.0)
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    looks = iter([True, True, False])
    monkeypatch.setattr(Ledger, "_is_mapped", lambda *_: next(looks))
    write(tmp_path, PROCESSES, 7)
    assert missed(ledger) == []
    assert next(looks, None) is None


def test_functions_are_counted(ledger: Ledger, tmp_path: Path) -> None:
    """The ledger counts calls, nanoseconds and failures for each function, or zero if truncated."""
    write(tmp_path, FUNCTIONS, 1, 2, 3, 4, 5, 6)
    assert list(ledger.functions())[:2] == [(1, 2, 3), (4, 5, 6)]
    os.truncate(tmp_path / "ledger", FUNCTIONS + 24)
    found = list(ledger.functions())
    assert len(found) == 128
    assert found[:2] == [(1, 2, 3), (0, 0, 0)]


def test_a_closed_ledger_is_closed_once(tmp_path: Path) -> None:
    """Closing a ledger twice does not close another file that reuses the descriptor."""
    made = Ledger(tmp_path)
    made.close()
    with (tmp_path / "other").open("w") as other:
        made.close()
        other.write("still open")
    assert (tmp_path / "other").read_text() == "still open"


def thread(number: int) -> NotChecked:
    """Return an entry for two unchecked calls of a thread."""
    return NotChecked(f"2 calls of thread {number} of process 7", 2, 7, number)


def test_a_verdict_names_what_is_few_and_counts_what_is_many() -> None:
    """A verdict names at most four entries, merges threads and counts the rest."""
    others = [NotChecked(name) for name in "abcdef"]
    assert in_words([]) == ""
    assert in_words([others[0], thread(8)]) == "2 calls of thread 8 of process 7; a"
    two = "4 calls of 2 threads, the first of them thread 8 of process 7"
    assert in_words([thread(8), thread(9)]) == two
    assert in_words([*others[:3], thread(8), thread(9)]) == f"{two}; a; b; c"
    assert in_words([*others[:4]]) == "a; b; c; d"
    assert in_words(others) == "a; b; c; d; and 2 more"


def test_several_threads_are_listed_below_the_verdict() -> None:
    """Below the verdict up to ten threads are listed, and the others counted; one is not listed."""
    assert list(listed([thread(8), NotChecked("a")])) == []
    few = list(listed([thread(1), NotChecked("a"), thread(2)]))
    assert few == [
        "  not checked  2 calls of thread 1 of process 7",
        "  not checked  2 calls of thread 2 of process 7",
    ]
    many = list(listed([thread(n) for n in range(1, 13)]))
    assert len(many) == 11
    assert many[-1] == "  and 2 more threads"
    assert len(list(listed([thread(n) for n in range(1, 11)]))) == 10
