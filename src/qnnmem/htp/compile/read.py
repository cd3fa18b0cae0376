"""A file that the vendor's reader does not compose: said as what is wrong with the file."""

from __future__ import annotations

from pathlib import Path

from qnnmem.errors import LoadError
from qnnmem.htp.requests import OWN_MARK
from qnnmem.htp.worker import RequestOutcome
from qnnmem.loader.dlc.composed import abort_reason

_COMPOSING, _COMPOSED = f"{OWN_MARK} composing", f"{OWN_MARK} composed"


def check_read(path: Path, outcome: RequestOutcome, *, trusted: bool = False) -> None:
    """Raises LoadError where the file itself is the reason that there is no binary.

    A `trusted` one is a library, which is not read but executed.
    """
    if outcome.kind == "refused" and outcome.stage == "read":
        who = "" if trusted else "the vendor's reader does not take it: "
        raise LoadError(path, f"{who}{outcome.sentence}")
    marks = {line.text for line in outcome.log}
    if outcome.kind == "crashed" and _COMPOSING in marks and _COMPOSED not in marks:
        said = abort_reason("\n".join(outcome.tail))
        raise LoadError(path, "its code crashed" if trusted else said)
