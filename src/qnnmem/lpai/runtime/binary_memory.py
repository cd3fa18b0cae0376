"""The memory of a context binary: whether it is there, of which type, and apart from the rest."""

from __future__ import annotations

from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.lpai.runtime.asked import note_unasked
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.client_buffer import ClientBuffer
from qnnmem.lpai.runtime.context_config import CREATE, INVALID_CONFIG, ContextConfig
from qnnmem.lpai.runtime.holdings import holders
from qnnmem.qnn.enums import MemType


def check_binary_memory(backend: Backend, buffer: ClientBuffer, config: ContextConfig) -> MemType:
    """The type of memory that the model is in; DDR where nobody says anything."""
    if buffer.is_freed:
        sentence = "the buffer of the binary was freed before the context was made"
        backend.fail(5005, _found("B1", sentence, buffer))
    given, said = buffer.mem_type, config.model_mem_type
    if given is not None and given not in backend.profile.mem_types:
        mode = backend.profile.mode.value
        sentence = f"the binary is in {given.name}, which {mode} mode does not have"
        rule = "T3" if given is MemType.TCM else "R14"
        backend.fail(1000, _found(rule, sentence, buffer))
    if given is not None and said is not None and given != said:
        sentence = (
            f"the binary is said to be in {said.name}, but its memory came from the "
            f"{given.name} heap"
        )
        backend.fail(INVALID_CONFIG, _found("T5", sentence, buffer))
    if given not in (None, MemType.DDR) and said is None:
        sentence = f"the binary is in {given.name}, but MODEL_BUFFER_MEM_TYPE does not say so"
        backend.note(_found("T5", sentence, buffer))
    if config.persistent_binary:
        _note_alignment(backend, buffer)
        _check_apart(backend, buffer)
    return given or said or MemType.DDR


def _note_alignment(backend: Backend, buffer: ClientBuffer) -> None:
    """A block of a heap that stays in place is allocated as every other buffer is.

    Where Python puts a `bytes` that was read from a file is not for the client to choose.
    """
    if buffer.allocation is None:
        return
    if backend.alignment_asked_at is not None:  # who never asks hears it of the pools
        note_unasked(backend, buffer, "binary", CREATE)
    align = backend.profile.start_alignment
    off = buffer.address % align
    if off:
        sentence = (
            f"the binary starts at {buffer.address:#x}, {off} bytes past a multiple of {align}"
        )
        backend.note(_found("R3", sentence, buffer))


def _check_apart(backend: Backend, buffer: ClientBuffer) -> None:
    for held in holders.touching(buffer):
        if held.what != "binary":  # it is only read: several contexts may share one
            sentence = f"the binary shares bytes with {held.label}"
            backend.fail(5000, _found("X8", sentence, buffer))


def _found(rule: str, sentence: str, buffer: ClientBuffer) -> Finding:
    return finding(rule, sentence, call=CREATE, buffer="binary", address=buffer.address)
