"""The data of the knowledge base: signs, diagnoses and the conditions between them."""

from __future__ import annotations

import msgspec

from qnnmem.results.incident import EntryFacts

STAGES = ("init", "graph", "context", "memreg", "execute")

# The closed set of causes, each with what it means; a cause is about memory when it says so.
CAUSES = {
    "mem_dsp_va": "what must be mapped into the DSP process exceeds its address space",
    "mem_map_layer": "a layer below QNN cannot map: page-table pool, paravirtual message limit",
    "mem_graph_limit": "the compiler's estimate is above its limit for one graph",
    "mem_vtcm": "one operator needs more VTCM than the part has",
    "mem_tcm_pool": "model, inputs and outputs do not fit the TCM pool of LPAI",
    "mem_tcm_slots": "the TCM pool of LPAI serves no more allocations, however small",
    "mem_activation": "the context is too big because of intermediate activations",
    "mem_spill_fill": "the shared spill/fill buffer of a context group is too small",
    "mem_buffer_cap": "one buffer is above a ceiling of a backend or an allocator",
    "mem_multi_context": "too many contexts or graphs are resident at once",
    "mem_concurrency": "several processes or requests at once share the memory",
    "mem_leak": "something earlier is not released yet, or memory is fragmented",
    "mem_system_ram": "the phone, board or build machine is short of RAM",
    "mem_unknown": "a memory failure whose limiting resource the lines do not name",
    "skel_missing": "the skel or another library that QNN needs is not found",
    "signing": "a signature is missing or refused, or the unsigned domain is not allowed",
    "access_denied": "device node rights, SELinux, session policy or linker namespace",
    "session_limit": "no free FastRPC session, or the DSP has another owner",
    "soc_mismatch": "a binary or library for another SoC or architecture",
    "vtcm_config": "the binary asks for a VTCM size that the SoC does not grant",
    "version_mismatch": "libraries, binary or driver of releases that do not go together",
    "driver_firmware": "driver or firmware of the device",
    "dsp_crash": "the DSP or its process crashed and was restarted",
    "timeout": "an execution or a wait ran out of time",
    "op_unsupported": "an operator, data type or shape that the target cannot build",
    "tcm_memory_type": "a memory type that LPAI does not have, or not in this mode",
    "tcm_mixed": "model, inputs and outputs lie partly in TCM and partly in DDR",
    "buffer_misuse": "a buffer of wrong size, offset or shape, or registered wrongly",
    "framework_bug": "a fault of the framework above QNN",
    "benign_noise": "lines of a healthy run",
    "unknown": "the lines do not say",
}

# How a failing line is read that no text matches: its stage, whether it has a code, and the cause
# that it names, or that it is another than memory. A line whose text is known, and the one below
# it, may hold a code that the text leaves out. A line of LPAI tells what it is about, and sometimes
# how much was needed and there.
READS = (
    *(f"{stage}{code}" for stage in (*STAGES, "other") for code in ("", " code")),
    *(f"known {stage} code" for stage in STAGES),
    *(f"names {cause}" for cause in (*CAUSES, "other")),
    *("lpai alignment", "lpai size", "lpai size needed", "lpai size limit", "lpai tcm"),
    *("lpai tcm needed", "lpai memory", "lpai memory needed", "lpai other"),
)

# Kinds of holes of which every line counts, not only the first that an incident has.
COUNTED = ("level", "added")
VERDICTS = ("cause", "memory", "undecided")
CONFIDENCES = ("high", "medium", "low")


def is_memory(cause: str) -> bool:
    """Return whether a cause is a shortage of memory."""
    return cause.startswith("mem_")


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line template and the sign that it gives."""

    sign: str
    text: str
    call: str = ""  # the stage of the failing call that this line names
    opens: bool = True  # whether the line alone makes an incident
    # Instead of a text: a failing line that no text matches, read as of this stage (or "other"),
    # with a code ("context code") or without; or one that "names mem_unknown" as its cause; or the
    # code beside a known line ("known context code").
    reads: str = ""


class Condition(msgspec.Struct, frozen=True):
    """A comparison of a captured number: `needed >= 2500000000`, `code == 1007|1011`."""

    sign: str  # "" for the deciding line
    name: str  # a hole, or `count`: how often the sign was seen
    operator: str
    values: tuple[int, ...]


class When(msgspec.Struct, frozen=True, omit_defaults=True):
    """One set of conditions by which a diagnosis is recognised."""

    signs: tuple[str, ...]  # any of them decides
    where: tuple[Condition, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()  # of each group one is seen somewhere
    after: tuple[tuple[str, ...], ...] = ()  # of each group one is seen earlier
    unless: tuple[str, ...] = ()  # none is seen
    # What an answer recognised this way is worth, where that is less than what the entry says: a
    # code, a failed mapping or a refused library tells the side, and the cause only perhaps.
    confidence: str = ""


class Entry(EntryFacts, frozen=True, omit_defaults=True):
    """One diagnosis."""

    whens: tuple[When, ...]
    lines: tuple[Line, ...] = ()
    stage_from_call: bool = False
    over: tuple[str, ...] = ()  # entries that this one beats, whatever the order of lines
    explains: tuple[str, ...] = ()  # signs that are harmless where a benign entry fires
    candidates: tuple[tuple[str, float], ...] = ()
    words: tuple[tuple[str, str], ...] = ()  # what candidates mean in this entry, by cause
    collect: tuple[str, ...] = ()
    body: str = ""
    typical: int = 0  # of an entry without conditions: how many typical lines it has
    pool_bytes: int = 0  # documented size of the pool that has no room, where no line tells it
    meaning: str = ""  # of the cause in this entry, where its general words would mislead

    @property
    def is_memory(self) -> bool | None:
        """Whether memory is short; None if the entry does not decide that."""
        return None if self.verdict == "undecided" else is_memory(self.cause)
