"""HTTP responses: JSON, a file of the page, or a sentence with a matching status."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from qnnmem.errors import LoadError, OutputError, QnnMemError
from qnnmem.flags import flag
from qnnmem.text import shorten
from qnnmem.workbench.jobs import Busy
from qnnmem.workbench.uploads import TooLarge

_LONGEST = 2000
# The page's own scripts and styles only: no inline code, no frame, no other host.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}

_REPORT = "qnnmem.report.page"  # drawing code and colours come from the report
_OWN = "qnnmem.workbench"
# The complete list of files that the page may load.
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


class RequestRefused(QnnMemError):
    """The request is refused, with this HTTP status."""

    def __init__(self, status: int, what: str) -> None:
        self.status = status
        super().__init__(what)


def json_answer(values: Any, status: int = 200) -> Response:
    """Return values as a JSON response."""
    text = json.dumps(values, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def download(content: bytes | str, name: str, media_type: str) -> Response:
    """Return a file as a download with a plain ASCII name."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[-100:].lstrip("._-") or "result"
    disposition = {"content-disposition": f'attachment; filename="{safe}"'}
    return Response(content, 200, disposition, media_type)


def refusal(request: Request, status: int, sentence: str) -> Response:
    """Return a response with one sentence, as HTML if the client asked for a page."""
    text = shorten(sentence, _LONGEST)
    # The rest of the body is not read, so the connection must close.
    headers = {"connection": "close"} if status >= 400 and request.method != "GET" else {}
    if "text/html" in request.headers.get("accept", "") and request.method == "GET":
        body = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>qnnmem</title>'
            f'<link rel="stylesheet" href="/static/app.css"><p class="alone">{escape(text)}</p>'
        )
        return Response(body, status, headers, "text/html")
    return Response(json.dumps({"error": text}), status, headers, "application/json")


def error_answer(request: Request, exc: Exception) -> Response:
    """Return the response for an exception."""
    if isinstance(exc, QnnMemError):
        return refusal(request, _status(exc), exc.sentence(flag))
    status = getattr(exc, "status_code", None)
    if isinstance(status, int):
        sentences = {
            404: "nothing was found at this address",
            405: "this address does not allow the method",
        }
        return refusal(request, status, sentences.get(status, str(getattr(exc, "detail", exc))))
    return refusal(request, 500, "internal error, please report it")


def _status(exc: QnnMemError) -> int:
    if isinstance(exc, RequestRefused):
        return exc.status
    if isinstance(exc, TooLarge):
        return 413
    if isinstance(exc, Busy):
        return 429
    if isinstance(exc, OutputError):
        return 507
    return 415 if isinstance(exc, LoadError) else 400


def static_answer(name: str, status: int = 200) -> Response:
    """Return a static file of the page."""
    if name not in _FILES:
        raise RequestRefused(404, "nothing was found at this address")
    return Response(_content(name), status, media_type=_FILES[name][2])


@cache
def _content(name: str) -> bytes:
    package, path, kind = _FILES[name]
    content = files(package).joinpath(path).read_bytes()
    return page_head() + content if kind == "text/html" else content


@cache
def page_head() -> bytes:
    """Return the start of a page, with `<head>` still open."""
    return files(_OWN).joinpath("static/head.html").read_bytes()
