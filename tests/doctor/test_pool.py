"""The TCM pool of LPAI: bytes in use at a failed request, and the shortage."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb import template
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.search import ENGINES
from qnnmem.doctor.logs.source import Stream
from qnnmem.errors import UsageError
from qnnmem.results.incident import Incident

SIZE = 2_035_712
OPENED = f"[INFO] TCM pool current size: 0 max_size: {SIZE}\n"
ALLOCATED = "[INFO] Allocate size {} from tcm pool 0\n"
FAILED = "[ERROR] TCM memory allocation failure: required size: {}\n"


def incident(path: Path, *lines: str, engine: str | None = None) -> Incident:
    """Return the only incident of a log with these lines."""
    path.write_text("".join(lines), "utf-8")
    (found,) = diagnose([Stream((str(path),))], built_in(), engine=engine).incidents()
    return found


def taken(*sizes: int) -> list[str]:
    """Return log lines of these allocations."""
    return [ALLOCATED.format(size) for size in sizes]


@pytest.mark.parametrize("engine", ENGINES)
def test_allocations_before_the_failure_are_added_up(tmp_path: Path, engine: str) -> None:
    """The bytes in use are the sum of the allocations; the shortage follows from the rest."""
    lines = [OPENED, *taken(1_500_032, 300_032), FAILED.format(299_968)]
    one = incident(tmp_path / "a.log", *lines, engine=engine)
    assert (one.cause, one.is_memory, one.confidence) == ("mem_tcm_pool", True, "high")
    assert one.quantities == {
        "needed_bytes": 299_968,
        "size_bytes": SIZE,
        "in_use_bytes": 1_800_064,
    }
    assert one.shortage_bytes == 64_320
    assert set(one.origins) == {"in_use_bytes"}


def test_the_documented_size_stands_in_for_a_line_that_is_not_there(tmp_path: Path) -> None:
    """Without its size line, the pool has the documented size, marked as such."""
    one = incident(tmp_path / "a.log", *taken(2_000_000), FAILED.format(64_000))
    assert one.quantities["size_bytes"] == SIZE
    assert one.origins["size_bytes"].startswith("documented")
    assert one.shortage_bytes == 64_000 - (SIZE - 2_000_000)


def test_a_pool_that_is_opened_again_starts_anew(tmp_path: Path) -> None:
    """Allocations of an earlier run do not count after the pool is opened again."""
    earlier = [OPENED, *taken(1_900_000)]
    one = incident(
        tmp_path / "a.log", *earlier, OPENED, *taken(1_000_000), FAILED.format(1_100_000)
    )
    assert one.quantities["in_use_bytes"] == 1_000_000
    assert one.shortage_bytes == 1_100_000 - (SIZE - 1_000_000)


def test_what_comes_after_the_failure_does_not_count(tmp_path: Path) -> None:
    """Allocations after the failure do not count."""
    after = [OPENED, *taken(64, 64, 64)]
    one = incident(tmp_path / "a.log", OPENED, *taken(2_000_000), FAILED.format(100_000), *after)
    assert one.quantities["in_use_bytes"] == 2_000_000


@pytest.mark.parametrize("sizes", [(2_000_000, 2_000_000), (64,) * 40])
def test_nothing_is_said_of_a_pool_from_which_things_were_given_back(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    """With more allocations than the pool can hold, the bytes in use are unknown."""
    one = incident(tmp_path / "a.log", OPENED, *taken(*sizes), FAILED.format(1_000_000))
    assert "in_use_bytes" not in one.quantities
    assert one.shortage_bytes is None


def test_a_request_above_the_whole_pool_misses_at_least_the_rest(tmp_path: Path) -> None:
    """A request over the whole pool gives a minimum shortage, marked `at least`."""
    one = incident(tmp_path / "a.log", FAILED.format(3_145_728))
    assert one.shortage_bytes == 3_145_728 - SIZE
    assert "at least" in one.origins["shortage_bytes"]


def test_a_log_read_by_several_processes_says_the_same(tmp_path: Path) -> None:
    """Two worker processes give the same bytes in use as one."""
    quiet = "05-28 20:26:43.000  1  1 I Other   : nothing to say\n"
    noise = quiet * 200_000
    lines = [OPENED, *taken(*[60_000] * 30), FAILED.format(300_000)]
    path = tmp_path / "a.log"
    path.write_text(noise + "".join(quiet + one for one in lines) + noise, "utf-8")
    one, two = (
        run("doctor", str(path), "--json", "--jobs", jobs).stdout.split('"stats"')[0]
        for jobs in ("1", "2")
    )
    assert one == two
    assert '"in_use_bytes": 1800000' in one or '"in_use_bytes":1800000' in one


def test_only_the_first_hole_can_be_counted() -> None:
    """Only the first hole of a template may be summed."""
    assert template.parse("Allocate size {allocated:added} from pool {}").holes
    with pytest.raises(UsageError, match="first placeholder"):
        template.parse("pool {name} gave {size:added} bytes")


def test_an_invalid_memory_type_alone_is_an_incident(tmp_path: Path) -> None:
    """An invalid memory type is an incident about configuration, not about memory."""
    one = incident(tmp_path / "a.log", "12.0ms [ERROR] Invalid memory type\n")
    assert (one.entry, one.cause, one.is_memory) == ("lpai-memory-type", "tcm_memory_type", False)


def test_a_refused_configuration_is_not_memory_freed_early(tmp_path: Path) -> None:
    """Code 5010 means a missing `is_persistent_binary` in an LPAI log, but not in an HTP log."""
    refused = "[ERROR] Failed to create context from binary. Error code: 5010\n"
    one = incident(tmp_path / "a.log", "Loading libQnnLpai.so\n", refused)
    assert (one.entry, one.is_memory, one.verdict) == ("code-5010-lpai", False, "memory")
    assert "is_persistent_binary" in one.remedies[0]
    other = incident(tmp_path / "b.log", "Loading libQnnHtp.so\n", refused)
    assert other.entry != "code-5010-lpai"


def test_lines_of_this_tool_are_not_shown_as_those_of_a_device() -> None:
    """Typical logs of LPAI entries contain no lines of qnnmem itself."""
    from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
    from qnnmem.doctor.kb.sections import own_lines, typical_lines

    _, entries = read_folder(BUILT_IN)
    shown = [line for one in entries if one.id.startswith("lpai-") for line in typical_lines(one)]
    assert shown
    assert not [line for line in shown if ") [" in line]
    assert any(own_lines(one) for one in entries)


@pytest.mark.parametrize("count", [31, 32, 33])
def test_an_end_after_32_allocations_suggests_the_33rd(tmp_path: Path, count: int) -> None:
    """A crash after exactly 32 TCM allocations suggests a fatal 33rd, with low confidence."""
    died = "Aborted (core dumped)\n"
    one = incident(tmp_path / "a.log", "qnn-net-run pid:7\n", OPENED, *taken(*[64] * count), died)
    assert (one.entry == "lpai-tcm-33rd", one.confidence) == (count == 32, "low")


def test_a_lost_context_of_lpai_is_memory_freed_early(tmp_path: Path) -> None:
    """Code 6039 of LPAI means freed memory or a freed context, not a shortage."""
    one = incident(tmp_path / "a.log", "[ERROR] [QnnLpai] QnnGraph_execute failed: error 6039\n")
    assert (one.entry, one.is_memory) == ("code-6039-lpai", False)
