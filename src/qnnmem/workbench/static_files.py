"""The files of the page itself: those in this list, and no others."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.responses import Response

from qnnmem.workbench.answers import RequestRefused

_REPORT = "qnnmem.report.page"  # drawing code and colours are those of the report
_OWN = "qnnmem.workbench"
_FILES = {
    "index.html": (_OWN, "static/index.html", "text/html"),
    "login.html": (_OWN, "static/login.html", "text/html"),
    "login.js": (_OWN, "static/login.js", "text/javascript"),
    "app.js": (_OWN, "static/app.js", "text/javascript"),
    "forms.js": (_OWN, "static/forms.js", "text/javascript"),
    "app.css": (_OWN, "static/app.css", "text/css"),
    "icon.svg": (_OWN, "static/icon.svg", "image/svg+xml"),
    "map.js": (_REPORT, "map.js", "text/javascript"),
    "page.css": (_REPORT, "page.css", "text/css"),
}


def static_answer(name: str, status: int = 200) -> Response:
    """One file of the page."""
    if name not in _FILES:
        raise RequestRefused(404, "there is nothing at this address")
    return Response(_content(name), status, media_type=_FILES[name][2])


@cache
def _content(name: str) -> bytes:
    package, path, kind = _FILES[name]
    content = files(package).joinpath(path).read_bytes()
    return page_head() + content if kind == "text/html" else content


@cache
def page_head() -> bytes:
    """What every page begins with; its head is still open."""
    return files(_OWN).joinpath("static/head.html").read_bytes()
