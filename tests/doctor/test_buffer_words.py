"""What lines say of a client's buffers and of the pool of TCM, in words of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import exit_code, run

from qnnmem.doctor.logs.topics import named_cause


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("persistent buffer released too early", "buffer_misuse"),
        ("scratch was freed before qnncontext_free", "buffer_misuse"),
        ("the input buffer was unmapped while the graph ran", "buffer_misuse"),
        ("handle used after qnncontext_free", "buffer_misuse"),
        ("memory registered twice with qnnmem_register", "buffer_misuse"),
        ("rpcmem_free called twice on the same pointer", "buffer_misuse"),
        ("enpu: io overlaps persistent pool", "buffer_misuse"),
        ("offset 4096 + size 8192 runs past the end of the shared buffer", "buffer_misuse"),
        ("scratch was never handed over; allocate it before finalize", "buffer_misuse"),
        ("lpai finalize: scratch not set", "buffer_misuse"),
        ("scratch pointer 0x7f001 is not a multiple of 64", "buffer_misuse"),
        ("lpai: alignment 8 but 64 required", "buffer_misuse"),
        ("input buffer is smaller than tensor", "buffer_misuse"),
        ("output tensor needs 4000 bytes but buffer holds 1000", "buffer_misuse"),
        ("persistent size queried 8192 but 4096 handed over", "buffer_misuse"),
        ("qnnmem_register: bad fd", "buffer_misuse"),
        ("memhandle of another context", "buffer_misuse"),
        ("spill fill buffer must be registered with the first context", "buffer_misuse"),
        ("tcm: 33rd allocation refused, max 32", "mem_tcm_slots"),
        ("tcm allocation failed: requested 2097152 exceeds 2035712", "mem_tcm_pool"),
        ("lpai: no room in tcm for the model", "mem_tcm_pool"),
        ("the model is in ddr while its inputs are in tcm", "tcm_mixed"),
        ("lpai: memory type tcm is not available in fastrpc mode", "tcm_memory_type"),
        ("op output does not fit, larger than tcm of 8388608 bytes", "mem_vtcm"),
        ("spill fill buffer 64 mb, context needs 92 mb", "mem_spill_fill"),
    ],
)
def test_what_a_line_names(text: str, cause: str) -> None:
    """Too early, too late, twice, in each other's place, too short, never."""
    assert named_cause(text) == cause


@pytest.mark.parametrize(
    "text",
    [
        "all buffers freed after the context was released",
        "scratch 53248 of 65536 bytes used",
        "tcm pool: 12 of 32 allocations, 1048576 bytes free",
        "memory of the model is freed when it is no longer needed",
        "qnn graph needs max 4 inputs but got 5",
        "heap needs 4096 bytes, 8192 bytes are free",
        "kernel size 3 is not a multiple of 2 channels",
    ],
)
def test_what_names_nothing(text: str) -> None:
    """Memory that is given back in time, room that is left, operators."""
    assert named_cause(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "user buffer was freed before QnnGraph_execute",
        "thermal shutdown while running qnn",
        "memory registered twice with QnnMem_register",
        "LPAI scratch memory was freed before QnnContext_free",
    ],
)
def test_no_such_message_is_healthy(text: str, tmp_path: Path) -> None:
    """Though they hold words of good runs: freed, running, registered."""
    log = tmp_path / "message.log"
    log.write_text(text + "\n", "utf-8")
    assert exit_code(run("doctor", log)) == 1
