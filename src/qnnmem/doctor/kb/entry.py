"""The data of the knowledge base: signs, diagnoses, and the conditions that connect them."""

from __future__ import annotations

import msgspec

from qnnmem.results.incident import EntryFacts

STAGES = ("init", "graph", "context", "memreg", "execute")

# The closed set of causes with their meanings; memory causes start with `mem_`.
CAUSES = {
    "mem_dsp_va": "the mappings exceed the address space of the DSP process",
    "mem_map_layer": (
        "a layer below QNN cannot map memory: its page-table pool is full or a message limit is hit"
    ),
    "mem_graph_limit": "the compiler's estimate is above its limit for one graph",
    "mem_vtcm": "one operator needs more VTCM than the SoC has",
    "mem_tcm_pool": "model, inputs and outputs do not fit the TCM pool of LPAI",
    "mem_tcm_slots": "LPAI's TCM pool allows no more allocations, however small",
    "mem_activation": "the context is too big because of intermediate activations",
    "mem_spill_fill": "the shared spill/fill buffer of a context group is too small",
    "mem_buffer_cap": "one buffer is above the limit of a backend or an allocator",
    "mem_multi_context": "too many contexts or graphs are resident at the same time",
    "mem_concurrency": "several processes or requests use the memory at the same time",
    "mem_leak": "earlier memory is not released yet, or memory is fragmented",
    "mem_system_ram": "the phone, board or build machine is short of RAM",
    "mem_unknown": "memory is short, but the log does not name the resource",
    "skel_missing": "the skel or another library that QNN needs is not found",
    "signing": "a signature is missing or refused, or the unsigned domain is not allowed",
    "access_denied": "access denied by a device node, SELinux, session policy or linker namespace",
    "session_limit": "no free FastRPC session, or another process owns the DSP",
    "soc_mismatch": "a binary or library for another SoC or architecture",
    "vtcm_config": "the binary requires more VTCM than the SoC allows",
    "version_mismatch": "libraries, binary or driver are from releases that do not match",
    "driver_firmware": "a fault in the device's driver or firmware",
    "dsp_crash": "the DSP or its process crashed and was restarted",
    "timeout": "an execution or a wait exceeded its time limit",
    "op_unsupported": "an operator, data type or shape that the target does not support",
    "tcm_memory_type": "a memory type that LPAI does not support, at least not in this mode",
    "tcm_mixed": "model, inputs and outputs are partly in TCM and partly in DDR",
    "buffer_misuse": "a buffer with a wrong size, offset or shape, or a wrong registration",
    "framework_bug": "a fault in the framework that uses QNN",
    "benign_noise": "lines of a healthy run",
    "unknown": "the log does not show the cause",
}

OPEN_CAUSES = ("unknown", "mem_unknown")  # placeholders for an unknown cause

# Readings of a failing line without a matching template: its stage, whether it has a code, the
# cause that it names, or that the cause is not memory. A matching line, or the next line, may
# contain a code that the template lacks. A line about LPAI has a topic, and may state the needed
# and the available size.
READS = (
    *(f"{stage}{code}" for stage in (*STAGES, "other") for code in ("", " code")),
    *(f"known {stage} code" for stage in STAGES),
    *(f"names {cause}" for cause in (*CAUSES, "other")),
    *("lpai alignment", "lpai size", "lpai size needed", "lpai size limit", "lpai tcm"),
    *("lpai tcm needed", "lpai memory", "lpai memory needed", "lpai other"),
)

# Hole types whose values are collected from every matching line, not only from the first.
COUNTED = ("level", "added")
VERDICTS = ("cause", "memory", "undecided")
CONFIDENCES = ("high", "medium", "low")


def is_memory(cause: str) -> bool:
    """Return True if the cause is a shortage of memory."""
    return cause.startswith("mem_")


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line template, and the sign that a matching line gives."""

    sign: str
    text: str
    call: str = ""  # stage of the failing call that this line names
    opens: bool = True  # True: the line alone makes an incident
    # Alternative to `text`: a failing line that matches no template, by stage (or "other"), with a
    # code ("context code") or without; a line that names a cause in words ("names mem_unknown"); or
    # a code next to a matching line ("known context code").
    reads: str = ""


class Condition(msgspec.Struct, frozen=True):
    """Comparison with a captured number: `needed >= 2500000000`, `code == 1007|1011`."""

    sign: str  # "" for the deciding line
    name: str  # name of a hole, or `count`: the number of occurrences of the sign
    operator: str
    values: tuple[int, ...]


class When(msgspec.Struct, frozen=True, omit_defaults=True):
    """Conditions that together establish a diagnosis."""

    signs: tuple[str, ...]  # each of them can decide
    where: tuple[Condition, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()  # one sign of each group must occur
    after: tuple[tuple[str, ...], ...] = ()  # one sign of each group must occur earlier
    unless: tuple[str, ...] = ()  # none of these may occur
    # Confidence if these conditions hold, if lower than the entry's. For example, a code or a
    # failed mapping shows whether memory is short, but only suggests the cause.
    confidence: str = ""


class Entry(EntryFacts, frozen=True, omit_defaults=True):
    """Diagnosis, with the conditions that establish it and its line templates."""

    whens: tuple[When, ...]
    lines: tuple[Line, ...] = ()
    stage_from_call: bool = False
    over: tuple[str, ...] = ()  # entries with lower priority, whatever the order of lines
    explains: tuple[str, ...] = ()  # signs that are harmless if a benign entry matches
    candidates: tuple[tuple[str, float], ...] = ()
    words: tuple[tuple[str, str], ...] = ()  # meanings of the candidate causes in this entry
    collect: tuple[str, ...] = ()
    body: str = ""
    typical: int = 0  # number of typical lines, for an entry without conditions
    pool_bytes: int = 0  # documented size of the exhausted pool, if no line states it
    meaning: str = ""  # meaning of the cause in this entry, if the general meaning would mislead

    @property
    def is_memory(self) -> bool | None:
        """True if memory is short, False if it is not, None if the entry does not decide."""
        return None if self.verdict == "undecided" else is_memory(self.cause)
