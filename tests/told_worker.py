"""A fake worker with given answers, so that whole commands run without the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from context_writer import example_context, pack_context

from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.installed import Library
from qnnmem.htp.log import LogLine, read_line
from qnnmem.htp.requests import AnyRequest, CompileReply, LoadReply, RequestOutcome

Answer = Callable[[str, Mapping[str, Any], int | None], RequestOutcome]


class ToldWorker:
    """A worker with given answers; a finished compile writes a binary like the real one."""

    def __init__(self, answer: Answer, context: HtpContext | None = None) -> None:
        self.library = Library("2.7.0", "1.31.1", Path("libraries"))
        self.memory_limit = 1 << 33
        self.asked: list[tuple[str, Mapping[str, Any], float]] = []
        self._answer = answer
        self._context = example_context() if context is None else context

    def ask(
        self,
        request: AnyRequest,
        *,
        memory_limit: int | None = None,
        log_file: Path | None = None,
        time_limit_s: float = 0.0,
        **_other: Any,
    ) -> RequestOutcome:
        """Return the given answer and write a log that names folders."""
        verb, options = as_options(request)
        self.asked.append((verb, options, time_limit_s))
        if log_file is not None:
            log_file.write_text(f"reading {log_file.parent}/model.onnx with libraries/libQnnHtp.so")
        outcome = self._answer(verb, options, memory_limit)
        if verb == "compile" and outcome.is_done:
            target = options["output"]
            target.write_bytes(_epcontext(options["model"], target.with_suffix(".bin").name))
            target.with_suffix(".bin").write_bytes(pack_context(self._context))
        return outcome


def as_options(request: AnyRequest) -> tuple[str, dict[str, Any]]:
    """Return the request's kind in one word, and its fields with those of its settings."""
    fields = msgspec.structs.asdict(request)
    settings = fields.pop("settings", None)
    more = {} if settings is None else msgspec.structs.asdict(settings)
    return type(request).__name__.removesuffix("Request").lower(), fields | more


def loaded(*codes: int) -> LoadReply:
    """Return the reply to a load with these codes."""
    return LoadReply(list(codes))


def _epcontext(model: Path, binary: str) -> bytes:
    """Return a model whose outputs all come from a binary, as ONNX Runtime writes it."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    names = [item.name for item in graph.output]
    node = onnx.helper.make_node("EPContext", [], names, ep_cache_context=binary, main_context=1)
    made = onnx.GraphProto(node=[node], output=graph.output, name="context")
    return bytes(onnx.ModelProto(graph=made).SerializeToString())


def done(
    options: Mapping[str, Any], lines: Sequence[str] = (), on_cpu: Sequence[tuple[str, str]] = ()
) -> RequestOutcome:
    """Return the outcome of a successful compile."""
    target = options["output"]
    reply = CompileReply([target.with_suffix(".bin")], target, list(on_cpu), 1)
    return RequestOutcome("done", reply, log=_log(lines), seconds=2.5, peak_rss=1 << 20)


def refused(line: str, kind: Any = "refused", code: int | None = 1002) -> RequestOutcome:
    """Return the outcome of a refusal with this log line."""
    return RequestOutcome(kind, sentence="no", code=code, stage="compile", log=_log([line]))


def loading(codes: Sequence[int], *lines: str) -> Answer:
    """Return an answer that compiles everything and loads with these codes."""

    def answer(verb: str, options: Mapping[str, Any], _limit: int | None) -> RequestOutcome:
        if verb == "compile":
            return done(options)
        assert len(options["binaries"]) == len(codes)
        return RequestOutcome("done", loaded(*codes), log=_log(lines))

    return answer


def _log(lines: Sequence[str]) -> tuple[LogLine, ...]:
    return tuple(map(read_line, lines))
