from __future__ import annotations

import gc

import pytest

from qnnmem.collector import collector_paused
from qnnmem.errors import QnnError, TcmFatal
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.heap import Extensions, Heap, TcmPool
from qnnmem.qnn.enums import LogLevel, MemType

POOL = 2_035_712


class Lines(list[tuple[LogLevel, str]]):
    """A log callback that stores its lines."""

    def __call__(self, level: LogLevel, text: str) -> None:
        """Add a line."""
        self.append((level, text))


def test_the_pool_speaks_once_and_every_allocation_speaks() -> None:
    """The pool logs its size at the first allocation, and each allocation with its rounded size."""
    lines = Lines()
    pool = TcmPool(lines)
    assert lines == []
    pool.allocate(100, "model")
    pool.allocate(64, "x")
    assert lines == [
        (LogLevel.INFO, "TCM pool current size: 0 max_size: 2035712"),
        (LogLevel.INFO, "Allocate size 128 from tcm pool 0"),
        (LogLevel.INFO, "Allocate size 64 from tcm pool 0"),
    ]


def test_an_exact_fit_passes() -> None:
    """An allocation of exactly the remaining bytes succeeds."""
    pool = TcmPool(Lines())
    assert pool.allocate(POOL - 64) is not None
    assert pool.allocate(64) is not None
    assert pool.used == POOL


@pytest.mark.parametrize("first", [0, 64, POOL])
def test_one_byte_more_fails_without_fallback(first: int) -> None:
    """A request one byte too large returns None and logs one error."""
    lines = Lines()
    pool = TcmPool(lines)
    if first:
        pool.allocate(first)
    before = len(lines)
    assert pool.allocate(POOL - first + 1) is None
    rounded = POOL - first + 64
    message = (LogLevel.ERROR, f"TCM memory allocation failure: required size: {rounded}")
    assert lines[before:][-1] == message
    assert pool.used == first


def test_32_allocations_pass_and_the_33rd_is_fatal() -> None:
    """The 33rd allocation raises TcmFatal with exit code 134."""
    pool = TcmPool(Lines())
    assert all(pool.allocate(64) is not None for _ in range(32))
    with pytest.raises(TcmFatal, match=r"^TCM allocator limit of 32 buffers exceeded$") as caught:
        pool.allocate(64)
    assert caught.value.exit_code == 134


def test_the_limit_counts_what_is_alive() -> None:
    """The limit counts live buffers only; a refused request does not count."""
    pool = TcmPool(Lines(), max_allocations=2)
    first = pool.allocate(64)
    assert first is not None
    assert pool.allocate(POOL) is None
    pool.allocate(64)
    first.free()
    assert pool.allocate(64) is not None


def test_a_larger_start_alignment_costs_room() -> None:
    """With start alignment 256, the gap between two buffers counts."""
    pool = TcmPool(Lines(), size=256 + 64, start_alignment=256)
    assert pool.allocate(1) is not None
    assert pool.allocate(64) is not None
    assert pool.allocate(1) is None
    starts = [buffer.heap_address % 256 for buffer in pool.buffers]
    assert starts == [0, 0]


def test_model_and_io_of_the_worked_example_fit() -> None:
    """The worked example takes 1,704,128 bytes in four allocations."""
    pool = TcmPool(Lines())
    made = [pool.allocate(size) for size in (1_500_000, 100_000, 100_000, 4_000)]
    assert None not in made
    assert (pool.used, len(pool.buffers)) == (1_704_128, 4)


def test_larger_inputs_of_the_worked_example_fail_on_the_second() -> None:
    """With inputs of 300,000 bytes, the binary and the first input fit, the second does not."""
    pool = TcmPool(Lines())
    made = [pool.allocate(size) is not None for size in (1_500_000, 300_000, 300_000)]
    assert made == [True, True, False]


def extensions(word: str, lines: Lines) -> Extensions:
    """Return the allocator of a run in direct mode."""
    return Extensions(Backend.create(profile=profile("adsp"), log=lines), word)


@pytest.mark.parametrize(("word", "kind"), [("ddr", MemType.DDR), ("tcm", MemType.TCM)])
def test_known_memory_types_are_read_silently(word: str, kind: MemType) -> None:
    """The words "ddr" and "tcm" are parsed without a log line."""
    lines = Lines()
    assert extensions(word, lines).mem_type is kind
    assert lines == []


@pytest.mark.parametrize("word", ["", "TCM", "llc", "psram", "tcm "])
def test_an_invalid_memory_type_gives_the_documented_pair(word: str) -> None:
    """An invalid memory type logs the two documented errors and allocates nothing."""
    lines = Lines()
    made = extensions(word, lines)
    assert made.mem_type is MemType.UNDEFINED
    with pytest.raises(QnnError) as caught:
        made.allocate(64, "x")
    assert (caught.value.code, caught.value.finding.rule) == (1002, "T4")
    assert lines[:2] == [
        (LogLevel.ERROR, "Invalid memory type"),
        (LogLevel.ERROR, "Memory type only supports DDR & TCM"),
    ]


@pytest.mark.parametrize(("word", "kind"), [("ddr", MemType.DDR), ("tcm", MemType.TCM)])
def test_io_comes_from_the_heap_it_asks_for(word: str, kind: MemType) -> None:
    """IO is allocated in the requested heap with a rounded size."""
    buffer = extensions(word, Lines()).allocate(100, "x")
    assert (buffer.mem_type, buffer.size) == (kind, 128)


def test_ddr_does_not_touch_the_pool() -> None:
    """Allocating in DDR does not touch the TCM pool."""
    lines = Lines()
    extensions("ddr", lines).allocate(100, "x")
    assert lines == []


def test_a_pool_of_its_own_has_nothing_to_do_with_the_one_of_the_process() -> None:
    """A separate TCM pool and the process-wide pool do not affect each other."""
    common = Heap(MemType.TCM)
    kept = common.allocate(POOL)
    own = TcmPool(Lines(), size=128)
    assert own.allocate(128) is not None
    assert own.allocate(1) is None
    del own
    with pytest.raises(QnnError, match="0 of 2,035,712 bytes are left"):
        common.allocate(1)
    kept.free()


def test_a_pool_held_by_young_garbage_is_freed_without_looking_through_everything() -> None:
    """A recently dropped TCM heap is freed by collecting only the youngest generation."""
    gc.collect()
    collected: list[int] = []
    with collector_paused():
        dropped = Heap(MemType.TCM)
        dropped.allocate(64)
        dropped.itself = dropped  # type: ignore[attr-defined]
        del dropped
        gc.callbacks.append(lambda phase, about: collected.append(about["generation"]))
        try:
            fresh = Heap(MemType.TCM).allocate(POOL)
        finally:
            gc.callbacks.pop()
    assert set(collected) == {0}
    fresh.free()


def test_a_pool_held_by_old_garbage_is_freed() -> None:
    """A TCM heap dropped long ago is freed when the pool needs the room."""
    with collector_paused():
        dropped = Heap(MemType.TCM)
        dropped.allocate(64)
        dropped.itself = dropped  # type: ignore[attr-defined]
        gc.collect()
        gc.collect()
        del dropped
        Heap(MemType.TCM).allocate(POOL).free()
