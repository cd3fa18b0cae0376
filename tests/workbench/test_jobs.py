"""From an upload to a stored result: plan, diagnosis, lint, comparison and refusals."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from served import Served

from qnnmem.workbench import intake, uploads
from qnnmem.workbench.limits import MAX_UPLOAD

EXAMPLES = Path(__file__).parents[2] / "examples"
BUFFERS = b"id,lower,upper,size\na,0,2,640\nb,1,3,640\nc,2,4,320\n"


def kept_files(served: Served) -> set[str]:
    """Return the names in the private folder."""
    return {path.name for path in served.bench.uploads.path("x").parent.iterdir()}


def test_a_list_of_buffers_is_planned_as_soon_as_it_is_there(served: Served) -> None:
    """An uploaded buffer list is planned at once; results show its name, not its local path."""
    job = served.read("folder/my buffers.csv", BUFFERS)
    assert job["state"] == "done", job
    result = served.get(f"/api/results/{job['result']}").values
    assert result["schema"] == "qnnmem.plan/1"
    assert result["scratch_bytes"] == 1280
    assert result["input"] == "my buffers.csv"
    shown = served.get(f"/api/results/{job['result']}/shown").body.decode()
    assert '<figure class="map">' in shown
    assert "my buffers.csv" in shown
    folder = str(served.bench.uploads.path("x").parents[1])
    for text in (shown, json.dumps(result), served.get("/api/state").body.decode()):
        assert folder not in text
    [entry] = [
        one for one in served.get("/api/state").values["results"] if one["id"] == job["result"]
    ]
    assert entry["summary"] == "scratch 1,280 bytes"
    assert entry["command"] == "qnnmem plan 'my buffers.csv'"


def test_another_setting_is_another_result_and_the_same_is_found_again(served: Served) -> None:
    """Another setting gives another result; a repeated setting reuses the stored result."""
    file = served.drop("twice.csv", BUFFERS).values
    first = served.ended(file["job"]["id"])
    wish = {"file": first["file"], "task": "plan", "options": {"align": "1024"}}
    second = served.ended(served.post("/api/jobs", wish).values["id"])
    assert second["state"] == "done"
    assert second["result"] != first["result"]
    again = served.post("/api/jobs", wish)
    assert again.status == 200
    assert again.values["result"] == second["result"]
    anew = served.ended(served.post("/api/jobs", {**wish, "again": True}).values["id"])
    assert anew["result"] > second["result"]
    assert served.get(f"/api/results/{second['result']}").status == 404  # replaced by a new one
    pair = f"before={first['result']}&after={anew['result']}"
    compared = served.get(f"/api/compare?{pair}")
    assert compared.status == 200
    assert b"worse" in compared.body
    assert compared.body.count(b'<figure class="map">') == 2
    assert served.drop("twice.csv", BUFFERS).values == {"result": anew["result"]}


def test_a_log_is_diagnosed_and_its_markup_stays_text(served: Served) -> None:
    """Markup in a log's name and lines stays text in the page and the report."""
    name = "<img src=x onerror=alert(1)>.log"
    line = b"<script>alert(1)</script> "
    text = (EXAMPLES / "graph_limit.log").read_bytes().replace(b"fa_alloc", line + b"fa_alloc")
    job = served.read(name, text)
    assert job["state"] == "done", job
    assert job["exit_code"] == 1
    shown = served.get(f"/api/results/{job['result']}/shown").body.decode()
    report = served.get(f"/api/results/{job['result']}/report")
    for page in (shown, report.body.decode()):
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "&lt;script&gt;alert(1)" in page
    assert report.headers["content-disposition"].startswith('attachment; filename="img_src')


def test_logs_in_an_archive_are_diagnosed_under_their_names(served: Served) -> None:
    """Logs in an uploaded archive are diagnosed under their names."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("FS/a.log", (EXAMPLES / "graph_limit.log").read_bytes())
    job = served.read("report.zip", made.getvalue())
    assert (job["state"], job["exit_code"]) == ("done", 1), job
    shown = served.get(f"/api/results/{job['result']}/shown").body.decode()
    assert "Diagnosis of a.log" in shown
    assert str(served.bench.uploads.path("x").parent) not in shown


def test_a_config_file_that_came_alone_is_not_wrong_for_that(served: Served) -> None:
    """A config file uploaded alone gets a note, not an error, about its missing companion."""
    job = served.read("tool.json", (EXAMPLES / "lint" / "eaiParams_direct.json").read_bytes())
    assert job["state"] == "done", job
    result = served.get(f"/api/results/{job['result']}").values
    assert result["errors"] == 0
    assert [one["severity"] for one in result["findings"]] == ["note"]
    other = served.read("lpai.conf", (EXAMPLES / "lint" / "eaiParams_direct.conf").read_bytes())
    shown = served.get(f"/api/results/{other['result']}/shown").body
    assert b"not a whole number" in shown


def test_a_result_from_elsewhere_goes_into_the_history(served: Served) -> None:
    """An uploaded result enters the history without its file; an invalid result is refused."""
    before = kept_files(served)
    plan = served.read("made.csv", b"id,lower,upper,size\nq,0,2,64\n")
    text = served.get(f"/api/results/{plan['result']}").body
    came = served.drop("theirs.json", text)
    assert came.status == 201
    assert served.get(f"/api/results/{came.values['result']}/shown").status == 200
    broken = served.drop("theirs.json", text.replace(b'"scratch_bytes"', b'"scratch"'))
    assert broken.status == 400
    assert "it is not a qnnmem.plan/1" in broken.said
    assert len(kept_files(served) - before) == 1


def test_a_trace_of_a_program_is_read_as_it_is(served: Served) -> None:
    """An uploaded raw trace gives the result of `watch --read`; a broken trace is refused."""
    head = {"schema": "qnnmem.trace/1", "tool": "t", "command": ["./app"]}
    library = {"event": "library", "process": 1, "time": 1, "slot": 0, "backend": 6, "name": "HTP"}
    library |= {"api": "2.1.0", "version": "1.0.0", "path": "lib.so"}
    end = {"event": "end", "time": 9, "exit_code": 3, "ended_by": "", "timed_out": False}
    end |= {"totals": {}, "left_out": 0, "has_lines": True}
    lines = [json.dumps(one).encode() + b"\n" for one in (head, library, end)]
    job = served.read("trace.jsonl", b"".join(lines))
    kept = served.get(f"/api/results/{job['result']}").values
    assert (kept["schema"], kept["command"], kept["passes"]) == ("qnnmem.watch/1", ["./app"], True)
    assert served.get(f"/api/results/{job['result']}/shown").status == 200
    entries = {one["id"]: one for one in served.get("/api/state").values["results"]}
    assert entries[job["result"]]["command"] == "qnnmem watch --read trace.jsonl"
    broken = served.read("broken.jsonl", lines[0] + b"[" * 100_000)
    assert "line 2 is not valid in a trace" in broken["error"]


def test_what_cannot_be_read_is_refused_and_not_kept(served: Served) -> None:
    """An unreadable file is refused by kind at once or by content after its job, and removed."""
    before = kept_files(served)
    png = served.drop("model.onnx", b"\x89PNG\r\n\x1a\n" + bytes(50))
    assert png.status == 415
    assert png.said.startswith("model.onnx is an image")
    assert served.drop("empty.onnx", b"").said == "empty.onnx is empty"
    job = served.read("broken.csv", b"id,lower,upper,size\na,0,2,many\n")
    assert job["state"] == "failed"
    assert job["is_gone"]
    assert job["error"].startswith("broken.csv: ")
    assert served.get(f"/api/jobs/{job['id']}").status == 422
    assert kept_files(served) == before


@pytest.mark.parametrize(
    "options",
    [
        {"values": ["x=@/etc/passwd"]},
        {"values": ["x=secret.npy"]},
        {"align": "-1"},
        {"align": 1 << 21},
        {"budgets": ["scratch=1K --output=x"]},
        {"output": "x"},
        {"dims": ["N=1"] * 100},
        {"dims": "--output=x"},
        {"reorder": "yes"},
        {"soc": "../x"},
    ],
)
def test_a_setting_that_is_none_is_refused(served: Served, options: dict[str, object]) -> None:
    """An invalid setting is refused; no request names local files or options."""
    model = (EXAMPLES / "small.onnx").read_bytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(served.bench.jobs, "_queue", lambda job: None)
        file = served.drop("small.onnx", model).values["file"]["id"]
        answer = served.post("/api/jobs", {"file": file, "task": "plan", "options": options})
    assert answer.status == 400
    assert answer.said


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("footprint", {}, "choose SoC first"),
        ("fix", {"backend": "htp"}, "choose SoC first"),
        (
            "sweep",
            {"soc": "SM8650"},
            "choose What varies first; e.g. vtcm_mb=2,4,8 or batch=1,2,4",
        ),
    ],
)
def test_what_a_compile_needs_is_asked_for_before_it(
    served: Served, task: str, options: dict[str, object], said: str
) -> None:
    """A missing SoC or axis is asked for before a job is created."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(served.bench.jobs, "_queue", lambda job: None)
        model = served.drop(f"{task}.onnx", (EXAMPLES / "small.onnx").read_bytes())
        file = model.values["file"]["id"]
        answer = served.post("/api/jobs", {"file": file, "task": task, "options": options})
    assert answer.status == 400
    assert answer.said == said


def test_nonsense_in_requests_is_one_sentence(served: Served) -> None:
    """Invalid requests get a 4xx answer with one sentence."""
    asked = [
        served.post("/api/jobs", []),
        served.post("/api/jobs", {"file": {}, "task": "plan"}),
        served.post("/api/jobs", {"file": "0" * 16, "task": "plan"}),
        served.ask("POST", "/api/jobs", b"{", {"content-type": "application/json"}),
        served.ask("POST", "/api/jobs", bytes(100_000), {"content-type": "application/json"}),
        served.get("/api/compare?before=1"),
        served.get("/api/compare?before=1&after=x"),
        served.get("/api/results/12345/shown"),
        served.get("/api/results/99999999999999999999/shown"),
        served.get("/api/results/1/made/0"),
        served.get("/api/jobs/none"),
    ]
    assert {400 <= answer.status < 500 for answer in asked} == {True}
    assert all(answer.said for answer in asked)


def test_a_body_that_is_too_large_or_too_slow_leaves_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body with too large a declared length gets 413, a slow body gets 408."""
    before = kept_files(served)
    head = "POST /api/files?name=x HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    head = head.format(port=served.port) + "content-type: application/octet-stream\r\n"
    large = served.raw(f"{head}content-length: {MAX_UPLOAD + 1}\r\n\r\n".encode())
    assert large.startswith(b"HTTP/1.1 413 ")
    monkeypatch.setattr(intake, "IDLE_S", 0.1)
    slow = served.raw(f"{head}content-length: 100\r\n\r\nid,".encode())
    assert slow.startswith(b"HTTP/1.1 408 ")
    assert b"too slow" in slow
    assert kept_files(served) == before


def test_what_a_file_says_of_its_size_pushes_no_other_out(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a complete upload removes old files, the oldest first."""
    first = served.read("oldest.csv", BUFFERS + b"o,0,1,1\n")["file"]
    second = served.read("newer.csv", BUFFERS + b"n,0,1,1\n")["file"]
    sizes = sum(path.stat().st_size for path in map(served.bench.uploads.path, kept_files(served)))
    monkeypatch.setattr(uploads, "MAX_UPLOADED", sizes)
    monkeypatch.setattr(intake, "IDLE_S", 0.1)
    head = "POST /api/files?name=x.csv HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    head = head.format(port=served.port) + "content-type: application/octet-stream\r\n"
    for size in (1 << 30, MAX_UPLOAD):
        came = served.raw(f"{head}content-length: {size}\r\n\r\nid,".encode())
        assert came.startswith(b"HTTP/1.1 408 ")
    assert {first, second} <= kept_files(served)
    before = kept_files(served)
    third = served.read("newest.csv", BUFFERS)["file"]
    gone = before - kept_files(served)
    assert gone
    assert second not in gone
    assert third in kept_files(served)


def test_a_job_that_waits_or_runs_can_be_cancelled(served: Served) -> None:
    """A running job can be cancelled; a second cancellation has no effect."""
    file = served.drop("slow.log", b"QNN <E> failed\n" * 200_000)
    job = file.values["job"]["id"]
    assert served.ask("DELETE", f"/api/jobs/{job}").values == {"cancelled": True}
    assert served.ended(job)["state"] == "cancelled"
    assert served.ask("DELETE", f"/api/jobs/{job}").values == {"cancelled": False}


def test_a_child_that_is_killed_is_said_in_a_sentence(served: Served) -> None:
    """A killed job fails with one sentence, and the next job works."""
    job = served.drop("killed.log", b"QNN <E> failed here\n" * 200_000).values["job"]["id"]
    found = served.bench.jobs.job(job)
    assert found is not None
    while found.child is None and not found.has_ended:
        pass
    assert found.child is not None
    found.child.give_up()
    ended = served.ended(job)
    assert ended["state"] == "failed"
    assert ended["error"].startswith("the job's process ended without an answer")
    assert served.read("after.csv", BUFFERS)["state"] == "done"


@pytest.mark.htp
def test_a_dlc_is_planned_and_compiled_as_it_is(served: Served) -> None:
    """A DLC is planned and compiled with the settings for DLCs; other settings are refused."""
    file = Path(__file__).parents[1] / "loader" / "dlc" / "quantized8.dlc"
    planned = served.read("net.dlc", file.read_bytes())
    assert planned["state"] == "done", planned
    [there] = [
        one for one in served.get("/api/state").values["files"] if one["id"] == planned["file"]
    ]
    assert there["tasks"] == ["plan", "footprint dlc", "fit dlc", "sweep dlc"]
    options = {"soc": "SM8650", "vtcm_mb": 4}
    wish = {"file": planned["file"], "task": "footprint", "options": options}
    billed = served.ended(served.post("/api/jobs", wish).values["id"])
    assert billed["state"] == "done", billed
    assert served.get(f"/api/results/{billed['result']}").values["file"] == "net.dlc"
    wish["options"] = {**options, "precision": "int8"}
    assert served.post("/api/jobs", wish).status == 400
