"""What a part needs of the memory of HTP, by what the real library said of it."""

from __future__ import annotations

from qnnmem.fix.library.trial import LibraryTrial
from qnnmem.fix.parts.deployment import TOTAL, PartNeed, held_over
from qnnmem.fix.parts.line import OpLine, Stretch
from qnnmem.targets.socs import htp_constant
from qnnmem.units import round_up

_LOADED = ("weights", "io", "spill-fill", "pd")
_RUNNING = ("vtcm", "compile", "host-ram")


def library_need(line: OpLine, stretch: Stretch, trial: LibraryTrial) -> PartNeed:
    """Bytes of one part; there is one VTCM, which the part that runs has.

    A pool of which the library said nothing is left out.
    """
    known = trial.needs
    loaded = {pool: known[pool] for pool in _LOADED if pool in known}
    running = {pool: known[pool] for pool in _RUNNING if pool in known}
    for name in ("ram", TOTAL) if "ram" in known else ():
        loaded[name] = known["ram"] - trial.vtcm
        running[name] = trial.vtcm
    unit = htp_constant("io", "unit").value
    tensors = line.model.tensors
    held = held_over(line, stretch, copies=False)
    return PartNeed(
        loaded,
        running,
        weights=known.get("weights", 0),
        held=sum(round_up(tensors[name].nbytes, unit) for name in held),
        alone=frozenset(("ram", "io", TOTAL)),
        spill_fill=trial.spill_fill,
    )
