"""Receive uploads from the network in pieces, with limits on time and size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request

from qnnmem.workbench.answers import RequestRefused
from qnnmem.workbench.bench import Bench
from qnnmem.workbench.history import KeptFile
from qnnmem.workbench.limits import IDLE_S, MAX_REQUEST, UPLOAD_S

_PIECE = 1 << 20  # bytes written in one step
_DRAINED = 1 << 20  # bytes of a refused body to read, so that its sender receives the answer
_DRAIN_S = 1.0
_SMALL_S = 10.0  # seconds for the whole of a small request
_KIND = "application/octet-stream"


def declared_size(request: Request) -> int | None:
    """Return the size that a request declares for its body; None if it declares no size."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise RequestRefused(400, "the size of the body is not a number")
    return int(text)


async def receive_file(request: Request, bench: Bench) -> KeptFile:
    """Receive an uploaded file; remove it if the upload fails."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND or request.headers.get("content-encoding", "identity") != "identity":
        raise RequestRefused(415, f"send the file itself, as {_KIND}")
    coming = await asyncio.to_thread(bench.uploads.begin, declared_size(request))
    try:
        waiting = bytearray()
        async with asyncio.timeout(UPLOAD_S):
            async for piece in _pieces(request):
                waiting += piece
                if len(waiting) >= _PIECE:
                    await asyncio.to_thread(bench.uploads.add, coming, bytes(waiting))
                    waiting.clear()
        if waiting:
            await asyncio.to_thread(bench.uploads.add, coming, bytes(waiting))
        name = request.query_params.get("name", "")
        return await asyncio.to_thread(bench.uploads.finish, coming, name)
    except TimeoutError as exc:
        raise RequestRefused(408, "the upload is too slow") from exc
    except ClientDisconnect as exc:
        raise RequestRefused(400, "the upload is incomplete") from exc
    finally:
        bench.uploads.abandon(coming)  # no effect on a finished file


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield the body piece by piece; raise TimeoutError if a piece is late."""
    stream = request.stream()
    while (piece := await asyncio.wait_for(anext(stream, None), IDLE_S)) is not None:
        yield piece


async def receive_json(request: Request) -> dict[str, Any]:
    """Receive a small JSON object."""
    import json

    if not request.headers.get("content-type", "").lower().startswith("application/json"):
        raise RequestRefused(415, "send this request as JSON")
    if (declared_size(request) or 0) > MAX_REQUEST:
        raise RequestRefused(413, "the request is too large")
    body = bytearray()
    try:
        async with asyncio.timeout(_SMALL_S):
            async for piece in _pieces(request):
                body += piece
                if len(body) > MAX_REQUEST:
                    raise RequestRefused(413, "the request is too large")
        values = json.loads(bytes(body))
    except TimeoutError as exc:
        raise RequestRefused(408, "the request is too slow") from exc
    except ClientDisconnect as exc:
        raise RequestRefused(400, "the request is incomplete") from exc
    except (ValueError, RecursionError) as exc:
        raise RequestRefused(400, "the request is not JSON") from exc
    if not isinstance(values, dict):
        raise RequestRefused(400, "the request is not a JSON object")
    return values


async def drain(request: Request) -> None:
    """Read and discard the rest of a refused request body, with limits on size and time."""
    left = _DRAINED
    with suppress(Exception):  # only the answer matters
        async with asyncio.timeout(_DRAIN_S):
            async for piece in request.stream():
                left -= len(piece)
                if left < 0:
                    return
