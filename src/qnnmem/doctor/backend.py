"""The backend of an incident, derived from its knowledge base entry and its log lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from qnnmem.text import lazy_pattern

if TYPE_CHECKING:
    from qnnmem.results.incident import Incident

HTP, LPAI = "htp", "lpai"
ALL = (HTP, LPAI, "")  # "" if the backend is unknown

_LPAI = lazy_pattern(r"lpai", re.IGNORECASE)
_HTP = lazy_pattern(
    r"^founding-|htp|vtcm|qnndsp|routerx86|\bcdsp|hexagon|spill|dspTransport|serialize to memory|"
    r"graph requires estimated|graph prepare failed|process domain|\bPD\b",
    re.IGNORECASE,
)
# Causes that only HTP can have.
_HTP_CAUSES = frozenset(
    {"mem_graph_limit", "mem_spill_fill", "mem_multi_context", "mem_dsp_va", "vtcm_config"}
)


def backend_of(incident: Incident) -> str:
    """Return `htp` or `lpai`; an empty string if the incident does not identify its backend."""
    said = "\n".join((incident.entry or "", *(one.text for one in incident.evidence)))
    if _LPAI.search(said):
        return LPAI
    return HTP if incident.cause in _HTP_CAUSES or _HTP.search(said) else ""
