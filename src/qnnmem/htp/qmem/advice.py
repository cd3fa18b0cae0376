"""How each tool is told to use memhandle, when a graph is prepared and when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qnnmem.errors import Setting, Words
from qnnmem.htp.qmem import Qmem
from qnnmem.htp.qmem.layer import IoMode
from qnnmem.units import format_size


@dataclass(frozen=True, slots=True)
class Flag:
    """What to write where."""

    tool: str
    step: str  # prepare, execute or both
    text: Words


FLAGS = (
    Flag(
        "qnnmem",
        "prepare",
        ("prepare ", Setting("backend", "htp"), " ", Setting("io_mem_type", "memhandle")),
    ),
    Flag(
        "qnn-context-binary-generator",
        "prepare",
        "--input_output_tensor_mem_type memhandle",
    ),
    Flag("qnn-net-run", "execute", "--shared_buffer (Android only)"),
    Flag(
        "ONNX Runtime",
        "both",
        "provider option enable_htp_shared_memory_allocator=1; at run time values from that "
        "allocator, as plain arrays are copied",
    ),
    Flag("ExecuTorch", "both", "generate_qnn_executorch_compiler_spec(shared_buffer=True)"),
    Flag("LiteRT", "prepare", "--qualcomm_graph_io_tensor_mem_type=memhandle (its default)"),
)


def advise(qmem: Qmem) -> str:
    """The recommendation, first sentence of every report."""
    if qmem.tensors == 0 or qmem.exact.value == 0:
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
            f"{qmem.memhandles} of {qmem.tensors} inputs and outputs are prepared for memhandle: "
            "prepare all, and pass registered shared memory; "
            f"against raw that {saved} per inference"
        )
    return f"prepare and execute with memhandle: that {saved} per inference"


def traps(qmem: Qmem) -> Iterator[str]:
    """Rows that surprise, with this model's numbers."""
    wasted = qmem.row(IoMode.RAW, IoMode.MEMHANDLE).internal
    late = qmem.row(IoMode.MEMHANDLE, IoMode.RAW).at_first.value
    if wasted:
        yield f"prepared raw, executed memhandle: {_size(wasted)} are reserved and never used"
    if late:
        yield (
            f"prepared memhandle, executed raw: {_size(late)} are reserved in the first inference, "
            "which is slow; ONNX Runtime does this with plain arrays"
        )
    if qmem.memhandles < qmem.tensors:
        yield "the hint is also inside the compiled blob: prepare again, do not patch the file"


def _size(size: int) -> str:
    return f"{size:,} bytes ({format_size(size)})" if size >= 1024 else f"{size:,} bytes"
