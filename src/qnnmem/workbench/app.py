"""The routes of the workbench and their handlers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from qnnmem.errors import QnnMemError
from qnnmem.loader.file_kind import KINDS
from qnnmem.version import __version__
from qnnmem.workbench.answers import (
    RequestRefused,
    download,
    error_answer,
    json_answer,
    static_answer,
)
from qnnmem.workbench.bench import Bench
from qnnmem.workbench.controls import soc_names
from qnnmem.workbench.guard import Access, Guard, address_of
from qnnmem.workbench.history import KeptFile, KeptResult
from qnnmem.workbench.intake import drain, receive_file, receive_json
from qnnmem.workbench.jobs import checked_options
from qnnmem.workbench.limits import MAX_LISTENERS, MAX_UPLOAD
from qnnmem.workbench.tasks import Task, all_tasks, tasks_for

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_LISTED = 300  # results in the list on the page
_QUIET_S = 15.0  # seconds after which a listener gets a keep-alive
_OFTEN_S = 0.1  # minimum seconds between two events for a listener
Answering = Callable[[Request], Awaitable[Response]]


class _NumberConvertor(IntegerConvertor):
    """Path parameter for numbers that SQLite can store; longer numbers give 404."""

    regex = "[0-9]{1,18}"


register_url_convertor("number", _NumberConvertor())


class Workbench:
    """The request handlers; few results are rendered at a time, so that other requests go on."""

    def __init__(self, bench: Bench, access: Access) -> None:
        self.bench, self.access = bench, access
        self.closing = asyncio.Event()
        self._drawing = asyncio.Semaphore(2)
        self._listeners = 0

    def app(self) -> ASGIApp:
        """Return the ASGI application."""
        routes = [
            ("/", self.page, "GET"),
            ("/static/{name}", self.static, "GET"),
            ("/login", self.login, "POST"),
            ("/api/state", self.state, "GET"),
            ("/api/events", self.events, "GET"),
            ("/api/files", self.upload, "POST"),
            ("/api/files/{file}", self.remove_file, "DELETE"),
            ("/api/jobs", self.ask, "POST"),
            ("/api/jobs/{job}", self.job, "GET"),
            ("/api/jobs/{job}", self.cancel, "DELETE"),
            ("/api/results", self.clear, "DELETE"),
            ("/api/results/{number:number}", self.result, "GET"),
            ("/api/results/{number:number}", self.remove_result, "DELETE"),
            ("/api/results/{number:number}/shown", self.shown, "GET"),
            ("/api/results/{number:number}/report", self.report, "GET"),
            ("/api/results/{number:number}/made/{at:number}", self.made, "GET"),
            ("/api/compare", self.compare, "GET"),
        ]
        app = Starlette(
            routes=[Route(path, _answering(to), methods=[how]) for path, to, how in routes]
        )
        app.add_exception_handler(404, _error)
        app.add_exception_handler(405, _error)
        return Guard(app, self.access)

    async def page(self, request: Request) -> Response:
        """Send the page."""
        await asyncio.to_thread(self.bench.jobs.prepare)
        return static_answer("index.html")

    async def static(self, request: Request) -> Response:
        """Send a file of the page."""
        return static_answer(request.path_params["name"])

    async def login(self, request: Request) -> Response:
        """Set a session cookie in exchange for the token."""
        token = (await receive_json(request)).get("token")
        text = token if isinstance(token, str) else ""
        if why := self.access.refused_token(text, address_of(request)):
            raise RequestRefused(*why)
        answer = json_answer({})
        answer.set_cookie(
            self.access.cookie, self.access.session, httponly=True, samesite="strict", path="/"
        )
        return answer

    async def state(self, request: Request) -> Response:
        """Send the initial state of the page."""
        return json_answer(
            {
                "version": __version__,
                "largest_upload": MAX_UPLOAD,
                "tasks": {task.id: _task_values(task) for task in all_tasks()},
                "socs": [{"name": name, "known_as": box} for name, box in soc_names().items()],
                **await asyncio.to_thread(self._lists),
            }
        )

    def _lists(self) -> dict[str, Any]:
        return {
            "changes": self.bench.history.changes,
            "files": [_file_values(file) for file in self.bench.history.files()],
            "results": [asdict(entry) for entry in self.bench.history.entries(_LISTED)],
            "jobs": self.bench.jobs.jobs(),
        }

    async def events(self, request: Request) -> Response:
        """Send the state of all jobs and the change count of the history as server-sent events."""
        if self._listeners >= MAX_LISTENERS:
            raise RequestRefused(429, "too many pages are open; close one")
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    async def _events(self, request: Request) -> AsyncIterator[str]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        stop = self.bench.jobs.listen(wake)
        self._listeners += 1
        closing = asyncio.ensure_future(self.closing.wait())
        waiting = asyncio.ensure_future(changed.wait())
        try:
            while not self.closing.is_set():
                changed.clear()
                news = {"changes": self.bench.history.changes, "jobs": self.bench.jobs.jobs()}
                yield f"data: {json.dumps(news, separators=(',', ':'))}\n\n"
                await asyncio.sleep(_OFTEN_S)
                waiting.cancel()
                waiting = asyncio.ensure_future(changed.wait())
                while not changed.is_set() and not self.closing.is_set():
                    both = {waiting, closing}
                    done, _ = await asyncio.wait(
                        both, timeout=_QUIET_S, return_when="FIRST_COMPLETED"
                    )
                    if not done:
                        yield ": still here\n\n"
        finally:
            self._listeners -= 1
            waiting.cancel()  # a disconnected listener leaves no task behind
            closing.cancel()
            stop()

    async def upload(self, request: Request) -> Response:
        """Store an upload and start the default task for its kind."""
        file = await receive_file(request, self.bench)
        if file.kind == "result":
            kept = await asyncio.to_thread(self.bench.take_result, file)
            return json_answer({"result": kept.id}, 201)
        first = next(iter(tasks_for(file.kind, file.name)))
        known = await asyncio.to_thread(self.bench.history.latest, file.id, first)
        if known is not None:  # the same file was uploaded before
            return json_answer({"result": known.id}, 201)
        try:
            job = await asyncio.to_thread(self.bench.jobs.submit, file.id, first, {}, is_first=True)
        except QnnMemError:
            await asyncio.to_thread(self.bench.uploads.drop, file.id)
            raise
        return json_answer({"file": _file_values(file), "job": job.values()}, 201)

    async def remove_file(self, request: Request) -> Response:
        """Remove an uploaded file."""
        file = request.path_params["file"]
        if not (file.isascii() and file.isalnum()):
            raise RequestRefused(404, "this file was removed")
        await asyncio.to_thread(self.bench.uploads.remove, file)
        return json_answer({})

    async def ask(self, request: Request) -> Response:
        """Queue a job and send its state."""
        wish = await receive_json(request)
        instead_of = wish.get("instead_of")
        job = await asyncio.to_thread(
            self.bench.jobs.submit,
            str(wish.get("file", "")),
            wish.get("task"),
            checked_options(wish.get("options")),
            again=wish.get("again") is True,
            instead_of=instead_of if isinstance(instead_of, str) else None,
        )
        return json_answer(job.values(), 200 if job.has_ended else 202)

    async def job(self, request: Request) -> Response:
        """Send the state of a job, with status 422 if the job failed."""
        job = self.bench.jobs.job(request.path_params["job"])
        if job is None:
            raise RequestRefused(404, "there is no such job")
        return json_answer(job.values(), 422 if job.state == "failed" else 200)

    async def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        was = await asyncio.to_thread(self.bench.jobs.cancel, request.path_params["job"])
        return json_answer({"cancelled": was})

    def _entry(self, request: Request) -> tuple[KeptResult, dict[str, Any]]:
        number = request.path_params["number"]
        entry = self.bench.history.entry(number)
        result = None if entry is None else self.bench.history.result(number)
        if entry is None or result is None:
            raise RequestRefused(404, "this result was removed")
        return entry, result

    async def result(self, request: Request) -> Response:
        """Send the JSON of a result as a download."""
        entry, result = await asyncio.to_thread(self._entry, request)
        text = json.dumps(result, indent=1) + "\n"
        return download(text, f"{entry.name}.{entry.task}.json", "application/json")

    async def shown(self, request: Request) -> Response:
        """Send a result as HTML for the page."""
        from qnnmem.workbench.show import fragment

        def drawn() -> str:
            entry, result = self._entry(request)
            return fragment(result, entry.name)

        return await self._drawn(drawn)

    async def _drawn(self, draw: Callable[[], str]) -> Response:
        async with self._drawing:
            return Response(await asyncio.to_thread(draw), media_type="text/html")

    async def report(self, request: Request) -> Response:
        """Send a result as a whole page to download."""
        from qnnmem.workbench.show import whole_page

        async with self._drawing:
            entry, result = await asyncio.to_thread(self._entry, request)
            text = await asyncio.to_thread(whole_page, result, entry.name)
        return download(text, f"{entry.name}.{entry.task}.html", "text/html")

    async def made(self, request: Request) -> Response:
        """Send an output file of a job as a download."""
        number, index = request.path_params["number"], request.path_params["at"]
        entry = self.bench.history.entry(number)
        if entry is None or index >= len(entry.outputs):
            raise RequestRefused(404, "this file was removed")
        path = self.bench.made.path(self.bench.history.key(number), index)
        head = download(b"", entry.outputs[index].name, "application/octet-stream").headers
        names = {"content-disposition": head["content-disposition"]}
        return FileResponse(path, headers=names, media_type="application/octet-stream")

    async def compare(self, request: Request) -> Response:
        """Send the comparison of two results of the history."""
        from qnnmem.workbench.show import comparison

        def drawn() -> str:
            sides = []
            for name in ("before", "after"):
                text = request.query_params.get(name, "")
                if not (text.isascii() and text.isdigit() and len(text) < 18):
                    raise RequestRefused(400, "choose two results")
                entry = self.bench.history.entry(int(text))
                result = self.bench.history.result(int(text))
                if entry is None or result is None:
                    raise RequestRefused(404, "this result was removed")
                sides.append((entry, result))
            (first, before), (second, after) = sides
            return comparison(before, after, (_title(first), _title(second)))

        return await self._drawn(drawn)

    async def remove_result(self, request: Request) -> Response:
        """Delete a result."""
        number = request.path_params["number"]
        was = await asyncio.to_thread(self.bench.history.remove, number)
        await asyncio.to_thread(self.bench.tidy)
        return json_answer({"removed": was})

    async def clear(self, request: Request) -> Response:
        """Delete all results."""
        await asyncio.to_thread(self.bench.history.clear)
        await asyncio.to_thread(self.bench.tidy)
        return json_answer({})


def _answering(answer: Answering) -> Answering:
    """Wrap a handler so that every error becomes a response with one sentence."""

    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except QnnMemError as exc:
            await drain(request)
            return error_answer(request, exc)
        except Exception as exc:  # the page gets the error, the server continues
            return error_answer(request, exc)

    return answered


async def _error(request: Request, exc: Exception) -> Response:
    return error_answer(request, exc)


def _title(entry: KeptResult) -> str:
    return entry.command or f"{entry.name}, {entry.task}"


def _file_values(file: KeptFile) -> dict[str, Any]:
    return {
        **{"id": file.id, "name": file.name, "size": file.size, "digest": file.digest[:12]},
        **{"kind": KINDS[file.kind].words, "made": file.made},
        "tasks": [task.id for task in tasks_for(file.kind, file.name).values()],
    }


def _task_values(task: Task) -> dict[str, Any]:
    return {
        **{"name": task.name, "title": task.title, "words": task.words, "is_live": task.is_live},
        "controls": [control.values() for control in task.controls],
    }
