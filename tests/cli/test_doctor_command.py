"""`qnnmem doctor`: formats, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from context_writer import example_context, pack_context

from qnnmem.cli import main
from qnnmem.errors import CannotTell
from qnnmem.results.schema import load_schema

ROOT = Path(__file__).parents[2]

BODY = "## Typical Logs\n## Root Cause\n## Solutions\n"
GRAPH_LIMIT = f"""+++
id = "graph-limit"
title = "One graph is above the limit"
cause = "mem_graph_limit"
stage = "graph"
remedies = ["cut the graph"]

[[line]]
sign = "graph-limit"
text = "graph requires estimated allocation of {{needed:KB}} KB, limit is {{limit:KB}} KB"

[[when]]
sign = "graph-limit"
+++
{BODY}"""
BARE = f"""+++
id = "bare-code"
title = "Only the last code is there"
cause = "unknown"
stage = "graph"
verdict = "undecided"
candidates = [["mem_graph_limit", 0.4]]

[[line]]
sign = "graph-prepare-failed"
text = "graph prepare failed {{code:code}}"

[[when]]
sign = "graph-prepare-failed"
+++
{BODY}"""
NOISE = f"""+++
id = "no-perf-config"
title = "No performance config"
cause = "benign_noise"
stage = "init"

[[line]]
sign = "no-perf-config"
text = "could not find the perf config"

[[when]]
sign = "no-perf-config"
+++
{BODY}"""
TEAM_NOTE = """## Our own limit

### Typical Logs
- zebra limit reached by the allocator

### Root Cause
Our allocator has a limit.

### Solutions
- raise the limit
"""

LIMIT = "E graph requires estimated allocation of 5000000 KB, limit is 3670016 KB\n"
CODE = "graph prepare failed 1002\n"
FINE = "E QnnDsp: could not find the perf config\nI QnnDsp: all is well\n"


@pytest.fixture(autouse=True)
def small_knowledge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the knowledge base by three entries; keep cache and logs in the test's folder."""
    folder = tmp_path / "kb"
    folder.mkdir()
    for name, text in (("graph", GRAPH_LIMIT), ("bare", BARE), ("noise", NOISE)):
        (folder / f"{name}.md").write_text(text, "utf-8")
    monkeypatch.setattr("qnnmem.doctor.kb.knowledge.BUILT_IN", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.chdir(logs)
    for name, text in (("limit.log", LIMIT + CODE), ("code.log", CODE), ("fine.log", FINE)):
        (logs / name).write_text(text, "utf-8")


class Run:
    """Runs `qnnmem doctor` in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capfd, self._patch = capfd, patch

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error of one run."""
        self._patch.setattr(sys, "argv", ["qnnmem", "doctor", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = self._capfd.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, out, err


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `qnnmem doctor`."""
    return Run(capfd, monkeypatch)


@pytest.mark.parametrize(
    ("names", "code", "start"),
    [
        (["fine.log"], 0, "healthy: no known failure in 2 lines, 63 bytes of fine.log; harmless"),
        (["limit.log"], 1, "graph stage: out of memory: "),
        (["code.log"], 3, "undecided: the graph stage failed"),
        (["code.log", "limit.log"], 1, "2 incidents; the first: undecided"),
        (["."], 1, "2 incidents; "),
    ],
)
def test_the_exit_code_says_how_it_ended(names: list[str], code: int, start: str, run: Run) -> None:
    """Exit code 0 is healthy, 1 an incident, 3 undecided; the first line is the verdict."""
    found, out, err = run(*names)
    assert (found, err) == (code, "")
    assert out.startswith(start)


def test_a_log_that_is_not_there_ends_with_2(run: Run) -> None:
    """A missing log gives exit code 2, one sentence on standard error and no output."""
    assert run("gone.log") == (2, "", "qnnmem: gone.log: no such file\n")


@pytest.mark.parametrize("name", ["limit.log", "code.log", "fine.log"])
def test_both_spellings_of_json_say_the_same(name: str, run: Run) -> None:
    """`--json` is short for `--format json`, at any position."""
    first, *others = (run(name, "--json"), run("--json", name), run("--format=json", name))
    assert [without_seconds(one) for one in others] == [without_seconds(first)] * 2


def without_seconds(done: tuple[int, str, str]) -> tuple[int, str, str]:
    """Return a result without its elapsed time."""
    import re

    return done[0], re.sub(r'"seconds": ?[0-9.e-]+', "", done[1]), done[2]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a", "--json", "--format", "text"], "--json and --format text cannot be combined"),
        (["a", "--cluster", "x", "--jobs", "2"], "--cluster and --jobs cannot be combined"),
        (["a", "--follow", "--jobs", "2"], "--follow reads one log"),
        (["a", "--follow", "--group-by", "cause"], "--follow reads one log"),
        (
            ["a", "--group-by", "cause", "--format", "sarif"],
            "--group-by supports only text and json",
        ),
        (["a", "--dim", "n=1"], "--dim, --shape and --value need --model"),
        (["a", "--format", "xml"], "--format cannot be 'xml'; it must be text, json"),
        ([], "PATH is missing; "),
        (["a", "--soc", "nonsense"], "'nonsense' is not a known SoC"),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], reason: str, run: Run) -> None:
    """Contradicting or invalid options end with exit code 2 and one sentence."""
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"qnnmem: {reason}")
    assert err.count("\n") == 1


def test_a_result_can_be_written_to_a_file(run: Run) -> None:
    """`-o` writes the whole result to a file, and replaces an existing file only with --force."""
    code, out, err = run("limit.log", "--json", "-o", "out.json")
    assert (code, out) == (1, "")
    assert err.startswith("Wrote out.json\ngraph stage: out of memory: ")
    assert err.count("\n") == 2
    values = json.loads(Path("out.json").read_text("utf-8"))
    assert values["incidents"][0]["shortage_bytes"] == 1_361_903_616
    code, _, err = run("limit.log", "-o", "out.json")
    assert (code, err) == (2, "qnnmem: out.json already exists; --force replaces it\n")
    assert run("limit.log", "--format", "text", "-o", "out.json", "--force")[0] == 1
    assert Path("out.json").read_text("utf-8").startswith("graph stage: out of memory")


def test_notes_of_a_team_speak_first(run: Run) -> None:
    """Plain Markdown notes given with --kb take precedence over the built-in entries."""
    Path("note.md").write_text(TEAM_NOTE, "utf-8")
    Path("zebra.log").write_text("E zebra limit reached by the allocator\n" + LIMIT, "utf-8")
    values = json.loads(run("zebra.log", "--kb", "note.md", "--json")[1])
    assert [one["entry"] for one in values["incidents"]] == ["our-own-limit"]
    assert values["incidents"][0]["remedies"] == ["raise the limit"]


def test_a_binary_adds_the_numbers_of_the_model(run: Run) -> None:
    """With --binary, each memory incident carries the binary's bill, with origins."""
    Path("m.bin").write_bytes(pack_context(example_context()))
    code, out, _ = run("limit.log", "--binary", "m.bin", "--json")
    own = json.loads(out)["incidents"][0]["own_numbers"]
    assert code == 1
    assert {"name", "bytes", "origin", "source"} == set(own["parts"][0])
    assert own["sentences"][0].startswith("compile: estimate ")
    assert "<= 3.50 GiB at most" in own["sentences"][0]


def test_healthy_logs_ask_for_no_numbers(run: Run) -> None:
    """If the log is healthy, the doctor does not read the binary."""
    assert run("fine.log", "--binary", "gone.bin")[0] == 0


def test_a_binary_that_cannot_be_read_does_not_take_the_diagnosis(run: Run) -> None:
    """An unreadable binary adds a note after the diagnosis and does not replace it."""
    code, out, err = run("limit.log", "--binary", "gone.bin")
    assert (code, err) == (1, "")
    assert out.startswith("graph stage: out of memory")
    assert out.endswith("note: no facts about the model: gone.bin: no such file\n")


def test_a_compiler_that_is_missing_does_not_take_the_diagnosis(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the compiler, the doctor still shows the SoC's limits and adds a note."""
    _no_compiler(monkeypatch)
    code, out, err = run("limit.log", "--model", _model(), "--soc", "SM8650")
    assert (code, err) == (1, "")
    assert out.startswith("graph stage: out of memory")
    assert "compile limit of SM8650" in out
    assert out.splitlines()[-1] == "note: no facts about the model: there is no compiler"


def test_json_without_a_compiler_holds_the_diagnosis_and_the_note(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON, SARIF and Markdown hold the diagnosis and the note about the missing compiler."""
    _no_compiler(monkeypatch)
    for form in ("json", "sarif", "markdown"):
        code, out, _ = run(*("limit.log", "--model", _model(), "--soc", "SM8650", "--format", form))
        assert code == 1
        assert "mem_graph_limit" in out or "graph-over-limit" in out
        assert "there is no compiler" in out


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
def test_nothing_that_fails_beside_the_log_takes_the_diagnosis(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A disk error or lack of memory while reading the model becomes a note after the diagnosis."""
    _no_compiler(monkeypatch, error)
    code, out, _ = run("limit.log", "--model", _model(), "--soc", "SM8650")
    assert code == 1
    assert "note: no facts about the model: " in out.splitlines()[-1]


def test_a_binary_counts_where_the_model_cannot_be_looked_at(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the model cannot be compiled, the numbers of the binary are still shown."""
    _no_compiler(monkeypatch)
    binary = tmp_path / "context.bin"
    binary.write_bytes(pack_context(example_context()))
    out = run(*("limit.log", "--binary", str(binary), "--model", _model(), "--soc", "SM8650"))[1]
    assert "process domain at least" in out
    assert "there is no compiler" in out


def _model() -> str:
    return str(ROOT / "tests" / "corpus" / "onnx" / "0.onnx")


def _no_compiler(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    """Make every compile raise this error, even where the compiler is installed."""

    def refuse(*_: object) -> None:
        raise error or CannotTell("there is no compiler")

    monkeypatch.setattr("qnnmem.htp.measure.bill_of_model", refuse)


def test_a_model_without_a_soc_is_planned_for_lpai(run: Run) -> None:
    """A model without --soc is planned for LPAI, and its pools appear in the diagnosis."""
    out = run("limit.log", "-v", "--model", str(ROOT / "examples" / "tiny.eaix"))[1]
    assert "scratch         2,304 bytes  2.25 KiB  computed: plan of qnnmem" in out


def test_many_incidents_reach_json_one_by_one(run: Run) -> None:
    """All 400 incidents reach the JSON in order, although not all are kept in memory."""
    lines = [f"01-01 00:{k // 60:02}:{k % 60:02}.000 {k + 1} 1 E qnn: {CODE}" for k in range(400)]
    Path("many.log").write_text("".join(lines), "utf-8")
    values = json.loads(run("many.log", "--json")[1])
    places = [one["first_line"] for one in values["incidents"]]
    assert len(places) == 400
    assert places == sorted(places)


def test_workers_change_nothing(run: Run) -> None:
    """Two worker processes give the same result as one process."""
    one, two = run(".", "--json"), run(".", "--json", "--jobs", "2")
    assert without_seconds(one) == without_seconds(two)


def test_incidents_are_counted_over_all_logs(run: Run) -> None:
    """`--group-by` prints one table instead of each incident, with the same rows in JSON."""
    code, out, _ = run(".", "--group-by", "cause")
    assert code == 1
    assert out.startswith("2 incidents by cause\n")
    assert "mem_graph_limit" in out
    values = json.loads(run(".", "--group-by", "cause", "--json")[1])
    jsonschema.validate(values, load_schema("qnnmem.doctor/1"))
    rows = values["groups"]
    assert sorted(row["key"] for row in rows) == ["mem_graph_limit", "unknown"]


def follow(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `doctor --follow` on a pipe that delivers one incident and then ends."""
    script = (
        "import sys, pathlib\n"
        "from qnnmem.doctor.kb import knowledge\n"
        f"knowledge.BUILT_IN = pathlib.Path({str(folder)!r})\n"
        "from qnnmem.cli import main\n"
        f"sys.argv = ['qnnmem', 'doctor', '-', '--follow', *{words!r}]\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], input=LIMIT, capture_output=True, text=True, check=False
    )


def test_a_live_log_shows_each_incident_and_ends_with_a_summary(tmp_path: Path) -> None:
    """A followed log prints each incident once, and a summary at its end."""
    done = follow(tmp_path / "kb")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("incident 1: graph stage: out of memory")
    assert done.stdout.count("incident 1") == 1
    assert done.stdout.endswith("; incidents: 1\n")


def test_a_packed_log_is_not_followed(run: Run) -> None:
    """A compressed log with --follow is refused; the message names the option."""
    Path("log.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\0")
    reason = "log.gz: a compressed log does not grow; read it without --follow"
    assert run("log.gz", "--follow") == (2, "", f"qnnmem: {reason}\n")


def test_a_live_log_as_json_is_one_object(tmp_path: Path) -> None:
    """With --follow, the JSON object is written once, after the log has ended."""
    done = follow(tmp_path / "kb", "--json")
    assert len(json.loads(done.stdout)["incidents"]) == done.returncode == 1


OF_OTHER_VERBS = {"rich", "numpy", "onnx", "onnxruntime", "csv", "subprocess"}


def test_a_small_log_is_read_without_what_other_verbs_need(tmp_path: Path) -> None:
    """`doctor` on a small log does not import the packages that only other verbs need."""
    script = (
        "import sys, pathlib\n"
        "from qnnmem.doctor.kb import knowledge\n"
        f"knowledge.BUILT_IN = pathlib.Path({str(tmp_path / 'kb')!r})\n"
        "from qnnmem.cli import main\n"
        "sys.argv = ['qnnmem', 'doctor', 'limit.log']\n"
        "try:\n    main()\n"
        "except SystemExit as left:\n    code = left.code\n"
        f"print(code, sorted({OF_OTHER_VERBS!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, capture_output=True, check=True)  # fills the cache
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "1 []\n"
