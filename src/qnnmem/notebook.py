"""Show a result as HTML in a notebook.

Results are in a layer below the renderers, so the renderer is imported by name on demand.
"""

from __future__ import annotations

from importlib import import_module

_RENDERER = "qnnmem.report.notebook"


def shown(value: object) -> str:
    """Return a plan, bill, incident or fix as HTML without scripts or requests; text is escaped."""
    html: str = import_module(_RENDERER).html_of(value)
    return html
