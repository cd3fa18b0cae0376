"""HTML of a result in a notebook.

Results are in a layer below the renderers, so the renderer is imported by name on demand.
"""

from __future__ import annotations

from importlib import import_module

_RENDERER = "qnnmem.report.notebook"


def shown(value: object) -> str:
    """Return HTML of a plan, bill, incident or fix: no scripts, no requests, all text escaped."""
    html: str = import_module(_RENDERER).html_of(value)
    return html
