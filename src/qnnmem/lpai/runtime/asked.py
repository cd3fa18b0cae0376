"""Whether the alignment was asked for before memory was allocated (R1)."""

from __future__ import annotations

from qnnmem.contract.rules import finding
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.client_buffer import ClientBuffer


def note_unasked(backend: Backend, buffer: ClientBuffer, what: str, call: str) -> bool:
    """Leave a finding if the client could not know the alignment; gives whether it did.

    When memory from outside the heaps was allocated cannot be seen: there it is enough to have
    asked. Memory that was right for one backend is right for another with the same alignment.
    """
    made, asked = buffer.allocation, backend.alignment_asked_at
    pair = (backend.profile.start_alignment, backend.profile.size_alignment)
    if asked is None:
        sentence = f"{what} was allocated without asking for the alignment"
    elif made is not None and made.serial < asked and pair not in made.known_alignments:
        sentence = f"{what} was allocated before the alignment was asked for"
    else:
        if made is not None:
            made.known_alignments.add(pair)
        return False
    backend.note(finding("R1", sentence, call=call, buffer=what, address=buffer.address))
    return True
