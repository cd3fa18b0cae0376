"""How a result shows itself in a notebook.

Results live below the renderers and do not know them: the renderer is looked up when one asks.
"""

from __future__ import annotations

from importlib import import_module

_RENDERER = "qnnmem.report.notebook"


def shown(value: object) -> str:
    """HTML of a plan, a bill, an incident or a fix: no scripts, nothing fetched, all escaped."""
    html: str = import_module(_RENDERER).html_of(value)
    return html
