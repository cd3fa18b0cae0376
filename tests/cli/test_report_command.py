"""`qnnmem report`: the contents of a page, and safe markup whatever a file contains."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code, run, sentence

from qnnmem.report.page.document import render_page
from qnnmem.report.page.markup import table, tag
from qnnmem.report.page.sections import SHOWN, section_of

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028'\""


class Reading(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the element."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.said += data

    def count(self, tag: str) -> int:
        """Return the number of elements with this tag."""
        return sum(one == tag for one, _ in self.found)


def read(path: Path) -> Reading:
    """Return a parsed page."""
    page = Reading()
    page.feed(path.read_text("utf-8"))
    return page


def plan_values(name: str = "t", buffers: int = 3) -> dict[str, Any]:
    """Return a plan in JSON form."""
    return {
        **{"schema": "qnnmem.plan/1", "tool": "qnnmem", "input": f"{name}.onnx"},
        **{"scratch_bytes": 4096, "persistent_bytes": 128, "io_bytes": 0, "constant_bytes": 64},
        **{"lower_bound_bytes": 4096, "optimal": True, "align_bytes": 64, "io": "inside"},
        "peak": {"step": 1, "op": name, "bytes": 4096, "live": [{"name": f"{name}0", "bytes": 9}]},
        "ops": [name] * buffers,
        "buffers": [
            {
                **{"name": f"{name}{at}", "pool": "scratch", "size_bytes": 1024, "lower": at},
                **{"upper": at + 2, "offset_bytes": 1024 * at, "aliases": [name]},
            }
            for at in range(buffers)
        ],
    }


def test_all_kinds_of_files_are_parts_of_one_page(tmp_path: Path) -> None:
    """One page shows models, buffer lists, binaries and logs in the given order, with hashes."""
    models = ("small.onnx", "keyword_spotting.csv")
    files = (*models, "small_htp.bin", "small_lpai.bin", "graph_limit.log")
    target = tmp_path / "page.html"
    done = run("report", *(EXAMPLES / name for name in files), "--dim", "N=1", "-o", target)
    assert exit_code(done) == 0
    page = read(target)
    assert page.count("canvas") == 3
    assert page.count("section") == 6
    assert "scratch takes 3.00 KiB (3,072 bytes)" in page.said
    assert "TCM in aDSP direct mode: binary and IO" in page.said
    assert "Missing: 4.04 MiB (4,235,264 bytes)" in page.said
    assert "HTP bill of small_htp.bin" in page.said
    for name in files:
        assert sha256((EXAMPLES / name).read_bytes()).hexdigest() in page.said
    assert "Options: --dim N=1" in page.said


def test_a_page_may_fetch_nothing(tmp_path: Path) -> None:
    """A page has no outside address, and its policy allows only its own styles and script."""
    target = tmp_path / "page.html"
    run("report", EXAMPLES / "small.onnx", "--dim", "N=1", "-o", target)
    whole = target.read_text("utf-8")
    assert not re.search(r"(src|href)=\"(?!#)", whole)
    assert "http" not in whole.replace("http-equiv", "")
    (policy,) = (a["content"] for t, a in read(target).found if a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_names_from_files_are_text(tmp_path: Path) -> None:
    """Tensor names do not change the elements of a page."""
    pages = []
    for name in ("plain", HOSTILE):
        Path(tmp_path, "plan.json").write_text(json.dumps(plan_values(name)), "utf-8")
        target = tmp_path / "page.html"
        assert exit_code(run("report", tmp_path / "plan.json", "-o", target, "--force")) == 0
        pages.append(read(target))
    assert [tag for tag, _ in pages[0].found] == [tag for tag, _ in pages[1].found]
    assert "</script><script>alert(1)" in pages[1].said


def test_the_map_has_every_box(tmp_path: Path) -> None:
    """The map's data holds every box with its full name."""
    Path(tmp_path, "plan.json").write_text(json.dumps(plan_values(HOSTILE)), "utf-8")
    target = tmp_path / "page.html"
    run("report", tmp_path / "plan.json", "-o", target)
    found = re.search(r'application/json">(.*?)</script>', target.read_text("utf-8"))
    assert found is not None
    values = json.loads(found[1])
    assert values["names"] == [f"{HOSTILE}{at}" for at in range(3)]
    assert values["boxes"][2] == [0, 2048, 1024, 2, 4]
    assert values["peak"] == {"step": 1}


def test_ten_thousand_boxes_are_a_small_file() -> None:
    """A plan with 10,000 buffers gives less than 3 MB; the table shows the 2,000 largest."""
    section = section_of(plan_values("layer/with/a/long/name/", 10_000), "it")
    page = render_page([section], "large")
    assert len(page) < 3_000_000
    assert "The 2,000 largest of 10,000 tensors" in page


@pytest.mark.parametrize("schema", SHOWN)
@pytest.mark.parametrize("values", [{}, {"file": 3}, {"buffers": [{}], "rows": [{}]}])
def test_a_damaged_result_is_one_sentence(
    tmp_path: Path, schema: str, values: dict[str, Any]
) -> None:
    """A damaged result gives exit code 2 and one sentence that names its schema."""
    Path(tmp_path, "it.json").write_text(json.dumps({"schema": schema, **values}), "utf-8")
    done = run("report", tmp_path / "it.json", "-o", tmp_path / "page.html")
    assert exit_code(done) == 2
    assert schema in sentence(done)
    assert not Path(tmp_path, "page.html").exists()


@pytest.mark.parametrize("name", [[], {}, 3, None])
def test_a_schema_that_is_no_text_is_one_sentence(tmp_path: Path, name: object) -> None:
    """A schema field that is not text is refused with one sentence."""
    values = {"schema": "qnnmem.plan/1", "qnnmem": {"schema": name}}
    Path(tmp_path, "it.json").write_text(json.dumps(values), "utf-8")
    done = run("report", tmp_path / "it.json", "-o", tmp_path / "page.html")
    assert exit_code(done) == 2
    assert "have no page" in sentence(done)


@pytest.mark.parametrize("field", ["scratch_bytes", "lower_bound_bytes", "constant_bytes"])
def test_numbers_that_cannot_be_drawn_are_refused(tmp_path: Path, field: str) -> None:
    """A size of 400 digits is refused with exit code 2."""
    text = json.dumps({**plan_values(), field: 10**400})
    Path(tmp_path, "it.json").write_text(text, "utf-8")
    done = run("report", tmp_path / "it.json", "-o", tmp_path / "page.html")
    assert exit_code(done) == 2


def test_what_cannot_be_shown_is_named(tmp_path: Path) -> None:
    """A picture and a result without a page are refused by name."""
    Path(tmp_path, "it.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    done = run("report", tmp_path / "it.png", "-o", tmp_path / "page.html")
    assert exit_code(done) == 2
    assert "report does not show" in sentence(done)
    Path(tmp_path, "it.json").write_text('{"schema": "qnnmem.socs/1"}', "utf-8")
    done = run("report", tmp_path / "it.json", "-o", tmp_path / "page.html")
    assert "qnnmem.socs/1" in sentence(done)


def test_an_earlier_page_is_kept(tmp_path: Path) -> None:
    """An existing page is replaced only with --force."""
    target = tmp_path / "page.html"
    target.write_text("mine", "utf-8")
    done = run("report", EXAMPLES / "small.onnx", "--dim", "N=1", "-o", target)
    assert exit_code(done) == 2
    assert target.read_text("utf-8") == "mine"


def test_results_of_several_files_are_parts(tmp_path: Path) -> None:
    """The result of several files gives one section each, and lists files without an answer."""
    files = (
        EXAMPLES / "tiny.eaix",
        EXAMPLES / "keyword_spotting.csv",
        EXAMPLES / "graph_limit.log",
    )
    run("plan", *files, "--json", "-o", tmp_path / "all.json")
    target = tmp_path / "page.html"
    assert exit_code(run("report", tmp_path / "all.json", "-o", target)) == 0
    assert read(target).count("canvas") == 2
    assert "Without an answer" in read(target).said


def test_domains_are_shown(tmp_path: Path) -> None:
    """The result of `place` is shown with its binaries."""
    binary = EXAMPLES / "small_htp.bin"
    run("place", binary, binary, "--json", "-o", tmp_path / "placed.json")
    target = tmp_path / "page.html"
    assert exit_code(run("report", tmp_path / "placed.json", "-o", target)) == 0
    assert "small_htp.bin, small_htp.bin" in read(target).said


def test_graphs_of_a_binary_are_judged_together_and_alone() -> None:
    """The TCM of each graph and of all graphs together gets a row; unknown values get none."""
    tcm = {"need_bytes": 10, "limit_bytes": 15, "buffers": 3, "max_buffers": 32}
    graph = {"io": "inside", "pools": {"scratch": 64}, "buffers": [], "tcm": {**tcm, "fits": True}}
    ours = {
        **{"schema": "qnnmem.inspect/1", "hw_version": "v6", "producer": "qnnmem", "file_bytes": 9},
        "tcm": {**tcm, "need_bytes": 20, "fits": False},
        "graphs": [{**graph, "name": "a"}, {**graph, "name": "b", "tcm": None}],
    }
    page = Reading()
    page.feed(section_of({"qnnmem": ours}, "x/two.bin").body)
    assert page.said.count("all graphs together") == 3
    assert page.said.count("a alone") == 2
    assert "b alone" not in page.said
    assert "5 B over the limit" in page.said


def client_values(name: str = "t") -> dict[str, Any]:
    """Return findings in the form of check-client, with a timeline."""
    frames = [
        {"function": name, "file": f"{name}.c", "line": 7, "module": "/b/it", "offset": 16},
        {"function": "", "file": "", "line": 0, "module": f"/lib/{name}.so", "offset": 255},
    ]
    finding = {
        **{"rule": "A3", "title": name, "sentence": f"{name} is too small", "call": name},
        **{"code": 1002, "need": 4096, "given": 100, "cure": name, "place": f"{name}.c:7"},
        **{"stack": frames, "other": {"what": "freed at", "place": name, "stack": frames}},
        **{"buffer": "", "address": None, "process": 1, "count": 3},
    }
    moments = [(1, 0, 0), (2, 1, 0), (3, 1, 65536), (4, 2, 131072), (9, 0, 0)]
    return {
        **{"schema": "qnnmem.check-client/1", "tool": "qnnmem", "verdict": "1 finding"},
        **{"passes": False, "command": [f"./{name}"], "findings": [finding], "exit_code": 0},
        **{"calls": {name: 3}, "failed_calls": {name: 1}, "mode": "arm", "hw_version": "v6"},
        "timeline": [
            {"call": call, "what": name, "contexts": alive, "registered_bytes": size}
            for call, alive, size in moments
        ],
    }


def watch_values(name: str = "t") -> dict[str, Any]:
    """Return the summary of a watched program."""
    thing = {"kind": "context", "name": name, "bytes": 512, "made_by": name, "place": f"{name}:3"}
    failed = {
        **{"function": name, "code": 1002, "name": "MEM_ALLOC", "count": 2, "injected": True},
        **{"log": [{"level": 1, "text": name}], "diagnosis": f"{name} is short of memory"},
    }
    return {
        **{"schema": "qnnmem.watch/1", "verdict": name, "passes": False, "command": [name]},
        **{"unreleased": [thing], "failed_calls": [failed]},
        "functions": {name: {"count": 4, "ns": 1_500_000, "failed": 2}},
        "timeline": [
            {"time_ns": 10**6 * at, "contexts": at % 3, "memory_bytes": 1024 * at}
            for at in range(5000)
        ],
    }


def test_findings_of_a_program_are_shown_with_numbers_stacks_and_a_timeline() -> None:
    """A finding is shown with rule, numbers, both stacks and two timeline charts."""
    page = Reading()
    page.feed(section_of(client_values("mem"), "it").body)
    for words in ("A3 mem is too small", "4,096", "100", "mem.c:7", "mem.so+0xff", "freed at"):
        assert words in page.said
    assert [a["aria-label"] for t, a in page.found if a.get("class") == "plot"] == [
        "Contexts alive",
        "Bytes registered",
    ]
    assert "128.00 KiB" in page.said


def test_a_result_without_a_timeline_has_no_chart() -> None:
    """A result without a timeline has no chart."""
    page = Reading()
    page.feed(section_of({**client_values(), "timeline": []}, "it").body)
    assert page.count("svg") == 0
    assert "t is too small" in page.said


def test_a_watched_program_is_shown_with_what_it_left_and_what_failed() -> None:
    """A watched program shows leaks and failures; a long timeline is thinned but keeps its peak."""
    body = section_of(watch_values("made"), "it").body
    page = Reading()
    page.feed(body)
    for words in ("Never released", "made:3", "1002 MEM_ALLOC, on purpose, 2 times", "short of"):
        assert words in page.said
    assert "4.88 MiB" in page.said
    assert len(body) < 100_000


def test_gates_are_shown(tmp_path: Path) -> None:
    """Results of lint, check and diff are shown."""
    run("lint", EXAMPLES / "lint" / "eaiParams_direct.json", "--json", "-o", tmp_path / "l.json")
    for bits in ("8", "16"):
        made = tmp_path / f"{bits}.json"
        run("plan", EXAMPLES / "tiny.eaix", "--bits", bits, "--json", "-o", made)
    run("diff", tmp_path / "8.json", tmp_path / "16.json", "--json", "-o", tmp_path / "d.json")
    config = tmp_path / "qnnmem.toml"
    (tmp_path / "few.csv").write_text("id,lower,upper,size\na,0,2,640\n")
    config.write_text('models = ["few.csv"]\nbudget = { scratch = 64 }\n')
    run("check", "--config", config, "--json", "-o", tmp_path / "c.json")
    files = [tmp_path / name for name in ("l.json", "d.json", "c.json")]
    target = tmp_path / "page.html"
    assert exit_code(run("report", *files, "-o", target)) == 0
    said = read(target).said
    for words in ("context_configs", "Before and after", "few.csv", "does not fit", "576 B over"):
        assert words in said


@pytest.mark.parametrize("values", [client_values, watch_values])
def test_names_from_programs_are_text(values: Any) -> None:
    """Names from a program do not change the elements of a page."""
    found = []
    for name in ("plain", HOSTILE):
        page = Reading()
        page.feed(section_of(values(name), "it").body)
        found.append([tag for tag, _ in page.found])
    assert found[0] == found[1]


def test_tables_are_bounded() -> None:
    """Tables are limited: the slowest functions first, and a row counts the omitted ones."""
    functions = {f"f{at}": {"count": 1, "ns": at} for at in range(3000)}
    body = section_of({**watch_values(), "functions": functions}, "it").body
    assert "f2999" in body
    assert "2,800 more functions in the JSON result." in body
    assert body.count("<tr>") < 300
    calls = dict.fromkeys(functions, 1)
    assert section_of({**client_values(), "calls": calls}, "it").body.count("<tr>") < 300
    rows = table(("a",), [(at,) for at in range(5000)])
    assert rows.count("<tr>") == 2001
    assert "3,000 more rows in the JSON result." in rows


@pytest.mark.parametrize("values", [client_values, watch_values, lambda name: plan_values(name)])
def test_control_characters_are_shown_and_not_sent(values: Any) -> None:
    """Control characters are removed from text and attributes."""
    body = section_of(values("a\x1b[31mb\x9b"), "it").body
    assert "31mb" in body
    assert not {"\x1b", "\x9b"} & set(body)
    assert "\x1b" not in tag("a", "x", title="a\x1bb")


def fail_each_values(name: str = "t") -> dict[str, Any]:
    """Return a program whose calls failed in turn."""
    left = {"kind": "context", "made_by": name, "place": f"{name}.c:9"}
    ran = {"call": 2, "place": f"{name}.c:7", "outcome": "leaked", "bad": True, "exit_code": 1}
    return {
        **{"schema": "qnnmem.fail-each/1", "verdict": name, "passes": False, "command": [name]},
        **{"function": name, "code": 1002, "calls": 3, "exit_code": 0},
        "runs": [{**ran, "leaked": [left], "last_line": f"{name} ends"}] * 300,
    }


def dlc_values(name: str = "t") -> dict[str, Any]:
    """Return a DLC in the form of `inspect`."""
    kind = {"type": "QNN_TENSOR_TYPE_APP_WRITE", "data_type": "QNN_DATATYPE_FLOAT_32"}
    tensor = {"id": 1, "name": name, **kind, "dimensions": [1, 4], "bytes": 16, "stored_bytes": 0}
    held: dict[str, Any] = {"inputs": [1], "outputs": [], "scalars": {}, "arrays": {}}
    ops = [{"name": name, "package": "qti.aisw", "type": "Conv2d", **held}] * 3
    graph = {"name": name, "tensors": [tensor], "ops": ops}
    return {"schema": "qnnmem.inspect-dlc/1", "file": name, "graphs": [graph] * 60}


def test_failures_in_turn_are_shown() -> None:
    """Each run of fail-each is shown with outcome, leaks and place, up to a limit."""
    page = Reading()
    page.feed(section_of(fail_each_values("app"), "it").body)
    for words in (
        "leaked",
        "app.c:7",
        "exit code 1",
        "context app.c:9",
        "app ends",
        "100 more runs",
    ):
        assert words in page.said


def test_a_dlc_and_a_binary_of_htp_are_shown(tmp_path: Path) -> None:
    """A DLC and the binaries of HTP and LPAI are shown from `inspect --json`."""
    page = Reading()
    page.feed(section_of(dlc_values("net"), "it").body)
    for words in ("3 operators", "Conv2d", "FLOAT_32", "1x4", "10 more graphs"):
        assert words in page.said
    pages = []
    for name in ("htp", "lpai"):
        said = run("inspect", EXAMPLES / f"small_{name}.bin", "--json").output
        Path(tmp_path, name).write_text(said, "utf-8")
        done = run("report", tmp_path / name, "-o", tmp_path / f"{name}.html")
        assert exit_code(done) == 0, done.exception
        pages.append(read(tmp_path / f"{name}.html").said)
    shown = pages[0]
    for words in ("4,194,304", "2,048", "1x4x8x8", "FLOAT_32", "raw"):
        assert words in shown


@pytest.mark.parametrize("values", [fail_each_values, dlc_values])
def test_names_in_these_are_text(values: Any) -> None:
    """Names in fail-each results and DLCs do not change the elements of a page."""
    found = []
    for name in ("plain", HOSTILE):
        page = Reading()
        page.feed(section_of(values(name), "it").body)
        found.append([tag for tag, _ in page.found])
    assert found[0] == found[1]
