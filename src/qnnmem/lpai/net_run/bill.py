"""The account of the TCM pool as lines of text, for a run that did not get its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.tcm import TcmBill, explain_tcm

_MAX_ROWS = 64
_MAX_CURES = 6


def bill_of(binary_bytes: int, graphs: Sequence[CompiledGraph], platform: Profile) -> TcmBill:
    """What a binary and the IO of its graphs take in TCM."""
    several = len(graphs) > 1
    sizes: dict[str, list[tuple[str, int]]] = {"inputs": [], "outputs": []}
    bits: dict[str, int] = {}
    for graph in graphs:
        for kind, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
            for name in names:
                tensor = graph.model.tensors[name]
                label = f"{graph.name}/{name}" if several else name
                sizes[kind].append((label, tensor.nbytes))
                bits[label] = tensor.dtype.bits
    return explain_tcm(
        binary_bytes,
        sizes["inputs"],
        sizes["outputs"],
        platform.start_alignment,
        platform.size_alignment,
        io_bits=bits,
    )


def bill_lines(bill: TcmBill) -> Iterator[str]:
    """The verdict, what took the room, and what would make it fit."""
    if bill.missing:
        yield (
            f"TCM: {bill.total:,} bytes are needed, the pool has {bill.limit:,}, "
            f"{bill.missing:,} are missing"
        )
    else:
        yield (
            f"TCM: {bill.allocations} allocations are needed, the pool counts "
            f"{bill.max_allocations}"
        )
    yield f"  {'bytes':>12} {'padding':>8} {'in total':>12}  what"
    for row in bill.rows[:_MAX_ROWS]:
        mark = "" if row.fits else "  <- does not fit"
        yield f"  {row.exact:>12,} {row.padding:>8,} {row.running_total:>12,}  {row.what}{mark}"
    if len(bill.rows) > _MAX_ROWS:
        yield f"  … and {len(bill.rows) - _MAX_ROWS} more"
    if bill.cures:
        yield "  what would change that:"
    for cure in bill.cures[:_MAX_CURES]:
        enough = "enough" if cure.sufficient else "not enough alone"
        yield f"  - {cure.what}: saves {cure.saves:,} bytes, {enough}"
    yield f"  {bill.advice}"
