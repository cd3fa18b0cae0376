"""Checks of the machine on which a run failed, for anything that prevents use of its DSP.

`find_machine` names the machine, `survey` reads it once, `examine` judges the readings.
"""

from __future__ import annotations

from qnnmem.doctor.host.devices import find_machine
from qnnmem.doctor.host.look import Look
from qnnmem.results.host import HostResult


def examine(look: Look) -> HostResult:
    """Return the results of all checks of a machine, in a fixed order."""
    from qnnmem.doctor.host.judge import judge
    from qnnmem.doctor.host.survey import survey

    return judge(survey(look))


__all__ = ["HostResult", "Look", "examine", "find_machine"]
