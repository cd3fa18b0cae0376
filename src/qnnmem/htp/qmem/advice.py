"""How each tool is told to use memhandle, when a graph is prepared and when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from qnnmem.errors import Setting, Words
from qnnmem.flags import with_flags
from qnnmem.results.qmem import IoMode, QmemFlag, QmemResult
from qnnmem.units import format_size

_FLAGS: tuple[tuple[str, Literal["prepare", "execute", "both"], Words], ...] = (
    (
        "qnnmem",
        "prepare",
        ("prepare ", Setting("backend", "htp"), " ", Setting("io_mem_type", "memhandle")),
    ),
    (
        "qnn-context-binary-generator",
        "prepare",
        "--input_output_tensor_mem_type memhandle",
    ),
    ("qnn-net-run", "execute", "--shared_buffer (Android only)"),
    (
        "ONNX Runtime",
        "both",
        "provider option enable_htp_shared_memory_allocator=1; at run time values from that "
        "allocator, as plain arrays are copied",
    ),
    ("ExecuTorch", "both", "generate_qnn_executorch_compiler_spec(shared_buffer=True)"),
    ("LiteRT", "prepare", "--qualcomm_graph_io_tensor_mem_type=memhandle (its default)"),
)


def memhandle_flags() -> tuple[QmemFlag, ...]:
    """What to write where, for each tool."""
    return tuple(QmemFlag(tool, step, with_flags(text)) for tool, step, text in _FLAGS)


def advise(qmem: QmemResult) -> str:
    """The recommendation, first sentence of every report."""
    if qmem.tensors == 0 or qmem.io_exact.value == 0:
        return "no input and no output: raw and memhandle cost the same"
    raw = qmem.row(IoMode.RAW, IoMode.RAW)
    saved = f"saves {_size(raw.internal)} of IO memory and {_size(raw.copied)} of copies"
    if qmem.prepared is IoMode.MEMHANDLE:
        return (
            "prepared for memhandle: pass registered shared memory at each execution; "
            f"that {saved} per inference"
        )
    if qmem.prepared is None:
        return (
            f"{qmem.memhandle_tensors} of {qmem.tensors} inputs and outputs are prepared for "
            "memhandle: prepare all, and pass registered shared memory; "
            f"against raw that {saved} per inference"
        )
    return f"prepare and execute with memhandle: that {saved} per inference"


def traps(qmem: QmemResult) -> Iterator[str]:
    """Rows that surprise, with this model's numbers."""
    wasted = qmem.row(IoMode.RAW, IoMode.MEMHANDLE).internal
    late = qmem.row(IoMode.MEMHANDLE, IoMode.RAW).reserved_at_first_inference.value
    if wasted:
        yield f"prepared raw, executed memhandle: {_size(wasted)} are reserved and never used"
    if late:
        yield (
            f"prepared memhandle, executed raw: {_size(late)} are reserved in the first inference, "
            "which is slow; ONNX Runtime does this with plain arrays"
        )
    if qmem.memhandle_tensors < qmem.tensors:
        yield "the hint is also inside the compiled blob: prepare again, do not patch the file"


def _size(size: int) -> str:
    return f"{size:,} bytes ({format_size(size)})" if size >= 1024 else f"{size:,} bytes"
