"""Traces from elsewhere are data: refused in one sentence or shown safely."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, sentence, verb

from qnnmem.programs.watch import summary, trace

watch = verb("watch")
HEAD = {"schema": "qnnmem.trace/1", "tool": "x", "command": ["x"]}
LIBRARY = {
    **{"event": "library", "process": 1, "time": 0, "slot": 0, "backend": 6, "name": "HTP"},
    **{"api": "2.0.0", "version": "5.0.0", "path": "/l.so"},
}
END = {
    **{"event": "end", "time": 9, "exit_code": 0, "ended_by": "", "timed_out": False},
    **{"totals": {}, "left_out": 0, "has_lines": True},
}
FRAME = {"function": "f", "file": "", "line": 0, "module": "/m", "offset": 0}
HOSTILE = "a\x1b[2J\x07\x00\u202e\x9b1m\nb"


def call(function: str, **fields: Any) -> dict[str, Any]:
    """Return the event of a call."""
    usual = {"process": 1, "thread": 1, "slot": 0, "begin": 1, "end": 2, "code": 0}
    return {"event": "call", **usual, "function": function, **fields}


def write(folder: Path, *lines: Any) -> Path:
    """Write a trace of these lines."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def test_reading_a_trace_reads_no_file_that_it_names(tmp_path: Path) -> None:
    """Reading a trace opens none of the source files that the trace names."""
    (tmp_path / "secret").write_text("first\nTHE SECRET\n")
    os.mkfifo(tmp_path / "pipe")
    frames = [
        {**FRAME, "file": str(tmp_path / name), "line": 2}
        for name in ("secret", "secret", "secret", "pipe", "pipe")
    ]
    place = {"event": "place", "id": 1, "stack": frames}
    failed = call("QnnGraph_finalize", code=1002, place=1)
    done = watch("--read", write(tmp_path, HEAD, LIBRARY, place, failed, END))
    assert exit_code(done) == 1
    assert "secret:2" in done.stdout
    assert "THE SECRET" not in done.stdout


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        *((HEAD, {"command": one}) for one in ([], [1])),
        *((END, {"exit_code": one}) for one in (-1, 256, 10**400)),
        *((END, {key: -1}) for key in ("time", "left_out")),
        *(
            (END, {"totals": {"f": {"count": 1, "ns": 1, "failed": 1, key: -1}}})
            for key in ("count",)
        ),
        (END, {"totals": {"f": {"count": 10**400, "ns": 1, "failed": 1}}}),
        (END, {"ended_by": "S" * 1000}),
        *((LIBRARY, {key: -1}) for key in ("process", "time", "slot", "backend")),
        *((LIBRARY, {key: "x" * 5000}) for key in ("name", "api", "version", "path")),
        *(
            (call("QnnContext_create"), {key: one})
            for key in ("process", "thread", "slot", "begin", "end", "code", "bytes", "place", "on")
            for one in (-1, 10**400)
        ),
        (call("QnnContext_create"), {"begin": 3}),
        (call("QnnContext_create"), {"handles": [-1]}),
        (call("QnnContext_create"), {"handles": [1 << 64]}),
        (call("QnnContext_create"), {"handles": [1] * 5000}),
        (call("QnnContext_create"), {"function": "x" * 5000}),
        ({"event": "place", "id": 1, "stack": [{**FRAME, "line": -1}]}, {}),
        ({"event": "place", "id": 1, "stack": [{**FRAME, "offset": 10**400}]}, {}),
        ({"event": "place", "id": 1, "stack": [FRAME] * 5000}, {}),
        ({"event": "log", "process": 1, "thread": 1, "time": -1, "level": 1, "text": "x"}, {}),
    ],
)
def test_a_value_that_no_recorder_writes_is_refused(
    tmp_path: Path, where: dict[str, Any], fields: dict[str, Any]
) -> None:
    """A value that no recorder writes is refused in one sentence before any output."""
    wrong = {**where, **fields}
    others = [one for one in (HEAD, LIBRARY, END) if one is not where]
    lines = [wrong, *others] if where is HEAD else [*others[:-1], wrong, *others[-1:]]
    done = watch("--read", write(tmp_path, *lines), "--format", "perfetto")
    assert (exit_code(done), done.stdout) == (2, ""), sentence(done)
    assert "trace" in sentence(done)


def test_the_code_in_a_trace_is_not_that_of_reading_it(tmp_path: Path) -> None:
    """Reading a trace exits with 0 or 1 by its findings and with 2 without QNN calls."""
    ended = {**END, "exit_code": 77}
    assert exit_code(watch("--read", write(tmp_path, HEAD, LIBRARY, ended))) == 0
    assert exit_code(watch("--read", write(tmp_path, HEAD, ended))) == 2
    failed = call("QnnGraph_finalize", code=1002)
    assert exit_code(watch("--read", write(tmp_path, HEAD, LIBRARY, failed, ended))) == 1


def test_what_a_trace_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Text from a trace is printed without control characters or extra lines."""
    head = {**HEAD, "command": [HOSTILE], "injected": [HOSTILE]}
    library = {**LIBRARY, **dict.fromkeys(("name", "api", "version", "path"), HOSTILE)}
    frame = {**FRAME, **dict.fromkeys(("function", "file", "module", "source"), HOSTILE)}
    place = {"event": "place", "id": 1, "stack": [{**frame, "line": 0}, {**frame, "line": 1}] * 3}
    made = call("QnnContext_create", handles=[5], name=HOSTILE, place=1)
    failed = [call(HOSTILE, code=1002, place=one) for one in (0, 1)]
    log = {"event": "log", "process": 1, "thread": 1, "time": 1, "level": 1, "text": HOSTILE}
    totals = {HOSTILE: {"count": 1, "ns": 1, "failed": 0}}
    for ended_by in ("", HOSTILE):
        end = {**END, "ended_by": ended_by, "totals": totals, "unmatched": [HOSTILE]}
        for lines in ((library, place, made, log, *failed), ()):
            done = watch("--read", write(tmp_path, head, *lines, end))
            assert done.stdout.replace("\n", "").isprintable()
            assert not any(line.startswith("b") for line in done.stdout.splitlines())


def test_a_backend_that_is_freed_again_and_again_names_its_contexts_once(tmp_path: Path) -> None:
    """A backend freed 2,000 times names each of its living contexts once, at most 200 in all."""
    made = [call("QnnContext_create", on=7, handles=[at]) for at in range(1, 2001)]
    freed = [call("QnnBackend_free", on=7, begin=5, end=6)] * 2000
    done = watch("--json", "--read", write(tmp_path, HEAD, LIBRARY, *made, *freed, END))
    found = json.loads(done.stdout)
    assert "2,000 contexts alive when the backend was freed" in found["verdict"]
    assert len(found["freed_after_backend"]) == 200


@pytest.mark.parametrize("on_purpose", [True, False])
def test_who_was_kept_from_releasing_is_not_blamed(tmp_path: Path, on_purpose: bool) -> None:
    """A release that was failed on purpose is not a leak; one that the library refused is."""
    made = (
        call("QnnBackend_create", handles=[7]),
        call("QnnContext_create", on=7, handles=[3]),
        call("QnnLog_create", handles=[5]),
        call("QnnMem_register", on=3, handles=[8, 9]),
    )
    kept = {"injected": on_purpose, "code": 1002, "begin": 5, "end": 6}
    freed = (
        call("QnnMem_deRegister", handles=[8, 9], **kept),
        call("QnnContext_free", on=3, **kept),
        call("QnnBackend_free", on=7, begin=7, end=8),
        call("QnnLog_free", on=5, **kept),
    )
    found = json.loads(
        watch("--json", "--read", write(tmp_path, HEAD, LIBRARY, *made, *freed, END)).stdout
    )
    left = [one["kind"] for one in found["unreleased"] + found["freed_after_backend"]]
    assert left == ([] if on_purpose else ["memory", "memory", "log", "context"])


def test_a_context_takes_only_its_own_graphs_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing a context removes only its own graphs, without a scan of all living handles."""

    class Watched(dict[Any, Any]):
        def items(self) -> Any:
            raise AssertionError("all that is alive is gone through")

    begun = summary._Life.__init__

    def begin(self: Any, stacks: Any) -> None:
        begun(self, stacks)
        self._alive = Watched()

    monkeypatch.setattr(summary._Life, "__init__", begin)
    graphs = [call("QnnGraph_create", on=3, handles=[at]) for at in range(10, 20)]
    mine = [call("QnnGraph_create", on=5, handles=[at], begin=7, end=7) for at in range(30, 34)]
    made = [call("QnnContext_create", on=7, handles=[5], begin=3, end=at) for at in (4, 5, 6)]
    freed = call("QnnContext_free", on=5, begin=8, end=8)
    lines = (HEAD, LIBRARY, *graphs, *made, *mine, freed, END)
    found = json.loads(watch("--json", "--read", write(tmp_path, *lines)).stdout)
    assert found["peak"]["graphs"] == 14
    assert found["timeline"][-1]["graphs"] == 10


def test_a_trace_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace is refused above a number of bytes or of parts."""
    path = write(tmp_path, HEAD, LIBRARY, call("QnnMem_register", handles=[1] * 90), END)
    assert exit_code(watch("--read", path)) == 1
    monkeypatch.setattr(trace, "MOST_PARTS", 90)
    assert "parts" in sentence(watch("--read", path))
    with path.open("r+b") as file:
        file.truncate(trace.MOST_BYTES + 1)
    assert "MiB" in sentence(watch("--read", path))


def _read(tmp_path: Path, *calls: Any, **end: Any) -> dict[str, Any]:
    done = watch("--json", "--read", write(tmp_path, HEAD, LIBRARY, *calls, {**END, **end}))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


FAILED = call("QnnContext_createFromBinary", on=7, code=1002, name="a")
MADE = call("QnnContext_createFromBinary", on=7, handles=[3], name="a", begin=3, end=4)
GRAPH = call("QnnGraph_retrieve", on=3, handles=[5], name="net", begin=5, end=6)
RUN = call("QnnGraph_execute", on=5, begin=7, end=8)
FREE = call("QnnContext_free", on=3, begin=9, end=9)


@pytest.mark.parametrize(
    ("calls", "end", "lost"),
    [
        ((FAILED,), {}, ["a"]),
        ((FAILED, MADE, GRAPH, RUN, FREE), {}, []),  # the context is made again
        ((FAILED, MADE, GRAPH, FREE), {}, ["a"]),  # not executed
        ((FAILED, {**MADE, "name": "b"}, GRAPH, RUN, FREE), {}, ["a"]),  # another context
        ((MADE, GRAPH, RUN, FREE), {}, []),
        ((MADE, GRAPH, {**RUN, "code": 1002}, FREE), {}, ["a"]),
        ((MADE, GRAPH, {**RUN, "code": 1002}, {**RUN, "begin": 9, "end": 9}, FREE), {}, []),
        ((FAILED,), {"exit_code": 3}, []),  # the program exits with an error
        ((FAILED,), {"exit_code": 139, "ended_by": "SIGSEGV"}, []),
        ((FAILED,), {"exit_code": 137, "ended_by": "SIGKILL", "timed_out": True}, ["a"]),
    ],
)
def test_only_what_is_not_executed_any_more_is_lost(
    tmp_path: Path, calls: tuple[Any, ...], end: dict[str, Any], lost: list[str]
) -> None:
    """A context is lost only if it is not executed later and the program hides the failure."""
    found = _read(tmp_path, *calls, **end)
    assert [one["name"] for one in found["lost"]] == lost
    met = sum(one["finding"] for one in found["failed_calls"])
    assert found["findings"] == met + (found["ended_by"] is not None)  # one cause counts once
