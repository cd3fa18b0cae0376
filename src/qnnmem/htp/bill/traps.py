"""Numbers in a context binary that mislead its readers."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.errors import Setting
from qnnmem.flags import flag
from qnnmem.htp.bill.numbers import logged_vtcm, may_be_unset
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.log import CompileLog
from qnnmem.provenance import Sourced
from qnnmem.qnn.enums import DataType
from qnnmem.results.footprint import Trap
from qnnmem.targets.socs import Soc, htp_constant
from qnnmem.text import quote
from qnnmem.units import format_size

NO_OUTPUTS = "no-outputs"


def find_traps(
    context: HtpContext,
    soc: Soc | None,
    made_for: Soc | None,
    log: CompileLog,
    vtcm: Sourced | None = None,
) -> Iterator[Trap]:
    """The traps of a context that is billed for a SoC, in order of weight.

    `vtcm` is what the graph that needs most of it really uses.
    """
    if soc is None:
        option = flag(Setting("soc"))
        what = f"the file names no SoC known here; {option} says which one is meant"
        yield Trap("no-soc", what)
    elif made_for is not None and made_for.model_id != soc.model_id:
        yield Trap(
            "other-soc",
            f"the file was made for {made_for.name}; a compile for {soc.name} may give other sizes",
        )
    if soc is not None and (older := wrong_architecture(context.dsp_arch, soc)):
        yield Trap("older-hexagon", f"{older}; the library for x86 loads it all the same")
    if any(graph.const is None for graph in context.graphs):
        yield Trap(
            "no-sizes",
            "the file does not store weights, op data and DDR tensors, as those of SDK 2.34 and "
            f"before do not; its blob has {context.blob_bytes:,} bytes",
        )
    if any(t.data_type is DataType.UNDEFINED for g in context.graphs for t in g.tensors):
        yield Trap("unknown-type", "an input or output has a data type that is not known here")
    silent = next((graph.name for graph in context.graphs if not graph.outputs), None)
    if silent is not None:
        yield Trap(NO_OUTPUTS, f"graph {quote(silent)} states no outputs")
    yield from _vtcm_traps(context, made_for or soc, log)
    yield from _vtcm_over(soc, 0 if vtcm is None else vtcm.value)
    if len(context.graphs) > 1:
        yield Trap(
            "many-graphs",
            f"the process domain is reserved for all {len(context.graphs):,} graphs, VTCM for each "
            "of them; a graph that is not enabled does not count. The total counts VTCM once",
        )


def _vtcm_traps(context: HtpContext, soc: Soc | None, log: CompileLog) -> Iterator[Trap]:
    largest = None if soc is None else soc.vtcm_bytes
    if soc is None or largest is None:
        return
    most = format_size(largest.value)
    unknown = [g for g in context.graphs if logged_vtcm(g.name, log) is None]
    if any(may_be_unset(graph, largest) for graph in unknown):
        unset = format_size(htp_constant("vtcm", "unset").value)
        yield Trap(
            "vtcm-unset",
            f"the file says {unset} of VTCM, which is also what it says when VTCM was not set and "
            f"the compiler took all of {soc.name}'s {most}; the bill counts {most}",
        )


def _vtcm_over(soc: Soc | None, used: int) -> Iterator[Trap]:
    largest = None if soc is None else soc.vtcm_bytes
    if soc is not None and largest is not None and used > largest.value:
        yield Trap(
            "vtcm-over",
            f"a graph asks for {format_size(used)} of VTCM and {soc.name} has "
            f"{format_size(largest.value)}; the compiler accepts that, the device may not",
        )


def wrong_architecture(made: int | None, soc: Soc) -> str:
    """Why a binary cannot run on a SoC with an older Hexagon than the one it was made for."""
    if made is None or soc.arch is None or made <= soc.arch:
        return ""
    return (
        f"the binary was made for Hexagon v{made} and {soc.name} is v{soc.arch}; "
        "compile the model for it"
    )
