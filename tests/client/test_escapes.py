"""Every way in which a call can bypass the checker, as SECURITY.md lists them.

A program with unchecked calls is not called clean: the program itself counts its calls.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import published_schemas
import pytest
from client_mistakes import run
from command_line import exit_code, verb

from qnnmem.lpai.profiles import profile
from qnnmem.programs import ledger, process_memory, socket_server
from qnnmem.programs.check.client_run import ClientOptions, check_client
from qnnmem.programs.ledger import LEDGER_BYTES, Ledger, in_words
from qnnmem.programs.process_memory import ProcessMemory
from qnnmem.results.programs import ClientResult, NotChecked
from qnnmem.results.schema import load_schema

check, watch, report_page = verb("check-client"), verb("watch"), verb("report")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BACKEND = HERE.parent / "watch" / "backend.c"
# The report on each way; empty if the calls are checked anyway.
WAYS = {
    "plain": "",
    "closes-some": "",
    "closes-all": "",
    "replaces": "",
    "forks": "",
    "at-exit": "",
    "interrupted": "of thread",
    "jumps": "of thread",
    "clones": "1 call of thread",
    "vforks": "1 call of thread",
    "no-sockets": "1 call of thread",
    "no-preload": "a process without LD_PRELOAD",
    "overwrites": "overwrote or removed the counter",
    "replaces-page": "overwrote or removed the counter",
    "removes": "overwrote or removed the counter",
}


@pytest.fixture(scope="session")
def escapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled program."""
    return _compiled(tmp_path_factory.mktemp("escapes") / "escapes", HERE / "programs/escapes.c")


@pytest.fixture(scope="session")
def other_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return another library with the name of our library."""
    target = tmp_path_factory.mktemp("other") / "libQnnLpai.so"
    return _compiled(target, BACKEND, "-shared", "-fPIC", "-Wl,-soname,libQnnLpai.so")


def _compiled(target: Path, source: Path, *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-g", "-O1", str(source), "-o", str(target), *flags]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True, capture_output=True)
    return target


def missed(*command: str | Path) -> ClientResult:
    """Return the report of a run that is neither clean nor has a finding."""
    words = tuple(map(str, command))
    report = check_client(ClientOptions(words, profile(), time_limit_s=600))
    assert report.findings == ()
    assert not report.passes
    return report


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_checked_or_said_to_be_missing(escapes: Path, way: str) -> None:
    """Each call is checked or reported as missing, whatever the program does to its own process."""
    report = check_client(ClientOptions((str(escapes), way), profile(), time_limit_s=600))
    rules = ["C9"] if way == "interrupted" else []  # a signal handler that calls QNN
    assert ([one.rule for one in report.findings], report.exit_code) == (rules, 0)
    assert WAYS[way] in in_words(report.not_checked)
    assert report.passes == (not WAYS[way])
    assert sum(report.calls.values()) >= 2


def test_a_program_that_unmaps_the_count_ends(escapes: Path, binary: Path) -> None:
    """A program that unmaps its call counter crashes at the next call, with finding C7."""
    report = check_client(ClientOptions((str(escapes), "unmaps"), profile(), time_limit_s=600))
    assert [one.rule for one in report.findings] == ["C7"]


def test_a_missing_call_accuses_nobody_of_a_leak(escapes: Path) -> None:
    """A call that bypasses the checker is reported, and gives no finding about a leak."""
    assert in_words(missed(escapes, "leaks").not_checked).startswith("1 call of thread")


def test_limits_are_named_by_their_number(escapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reached limit on threads or processes is named with its number."""
    monkeypatch.setattr(socket_server, "_MOST_CONNECTIONS", 4)
    said = in_words(missed(escapes, "threads", "9").not_checked)
    assert "threads, the first of them thread" in said
    assert "limit: at most 4 threads can call QNN at a time" in said
    monkeypatch.setattr(socket_server, "_MOST_CONNECTIONS", 512)
    monkeypatch.setattr(process_memory, "MOST_PROCESSES", 1)
    said = in_words(missed(escapes, "forks").not_checked)
    assert "limit: at most 1 processes of one program" in said


def test_threads_beyond_the_rows_are_counted_together(
    escapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of threads beyond the table are counted together."""
    monkeypatch.setattr(socket_server, "_MOST_CONNECTIONS", 4)
    begin = Ledger.__init__

    def full(self: Ledger, folder: Path) -> None:
        begin(self, folder)
        os.pwrite(self._file, (4096).to_bytes(8, "little"), 8)

    monkeypatch.setattr(Ledger, "__init__", full)
    assert "calls of other threads" in in_words(missed(escapes, "threads", "9").not_checked)


def test_more_buffers_than_are_watched_is_said(
    client: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More buffers than the checker can watch are reported as not checked."""
    keep = ProcessMemory.watch

    def crowded(self: ProcessMemory, ranges: list[tuple[int, int]]) -> None:
        keep(self, [*ranges, *((n, n) for n in range(1024))])

    monkeypatch.setattr(ProcessMemory, "watch", crowded)
    assert "frees of some buffers (at most 1,024 can be watched at a time)" in in_words(
        run(client, binary).not_checked
    )


def test_a_checker_short_of_descriptors_does_not_say_clean(escapes: Path) -> None:
    """A checker without free file descriptors exits with 3 and names itself as the cause."""
    command = [sys.executable, "-m", "qnnmem", "check-client", "--", str(escapes), "threads", "20"]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=few, check=False)
    assert done.returncode == 3
    assert "qnnmem has no file descriptor left (24 in all)" in done.stdout


@pytest.mark.parametrize("linked", [False, True])
def test_another_library_of_the_same_name_is_said(
    escapes: Path, other_library: Path, tmp_path: Path, linked: bool
) -> None:
    """A second library of the same name is reported, opened by path or linked with an RPATH."""
    command: tuple[str | Path, ...] = (escapes, "other-library", other_library)
    if linked:
        source = tmp_path / "linked.c"
        source.write_text(
            "unsigned long QnnInterface_getProviders(const void ***, unsigned *);\n"
            "int main(int n, char **w) {\n"
            "    const void **l; unsigned c;\n"
            "    return n > 3 || w == 0 ? (int)QnnInterface_getProviders(&l, &c) : 0;\n}\n"
        )
        flags = (str(other_library), f"-Wl,--disable-new-dtags,-rpath,{other_library.parent}")
        command = (_compiled(tmp_path / "linked", source, *flags),)
    assert "from another folder" in in_words(missed(*command).not_checked)


def test_a_process_that_outlives_the_program_is_said(
    escapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that outlives the program is reported, because its later calls are unchecked."""
    monkeypatch.setattr(ledger, "_END_S", 0.1)
    over = tmp_path / "over"
    try:
        report = missed(escapes, "outlived", over)
    finally:
        over.touch()
    (one,) = report.not_checked
    assert one.what == f"process {one.process} is still running and may call QNN"


def test_a_program_without_our_environment_is_none_of_ours(escapes: Path) -> None:
    """A process without the checker's environment is unchecked; the verdict counts the rest."""
    done = check("--", escapes, "no-environment")
    assert exit_code(done) == 0
    assert "breaks no rule in 3 QNN calls" in done.output


def test_every_form_says_what_was_not_checked(escapes: Path, tmp_path: Path) -> None:
    """Unchecked calls give exit code 3 and appear in the text, the JSON and the page."""
    said = "not checked: 1 call of thread"
    words = ("--force", "--", escapes, "clones")
    done = check(*words)
    assert (exit_code(done), said in done.output) == (3, True)
    target = tmp_path / "found.json"
    assert exit_code(check("-o", target, *words)) == 3
    found = json.loads(target.read_text("utf-8"))
    jsonschema.validate(found, load_schema("qnnmem.check-client/1"))
    assert (found["passes"], found["not_checked"][0]["calls"]) == (False, 1)
    page = tmp_path / "page.html"
    report_page(target, "-o", page)
    assert "cannot tell" in page.read_text("utf-8")
    assert said in page.read_text("utf-8")
    sarif = tmp_path / "found.sarif"
    assert exit_code(check("-o", sarif, *words)) == 3
    (one,) = published_schemas.check_sarif(sarif.read_text("utf-8"))["runs"][0]["invocations"]
    assert not one["executionSuccessful"]
    assert said in one["toolExecutionNotifications"][0]["message"]["text"]
    junit = tmp_path / "found.xml"
    assert exit_code(check("-o", junit, *words)) == 3
    suite = published_schemas.check_junit(junit.read_text("utf-8"))
    assert [one.get("type") for one in suite.iter("error")] == ["not checked"]


def test_a_program_that_never_calls_is_no_test_that_passed(tmp_path: Path) -> None:
    """A program that never calls QNN is an error in JUnit, because no failure counts as passed."""
    junit = tmp_path / "found.xml"
    assert exit_code(check("-o", junit, "--", sys.executable, "-c", "")) == 2
    suite = published_schemas.check_junit(junit.read_text("utf-8"))
    assert len(list(suite.iter("error"))) == 1


def test_findings_come_first_and_the_rest_is_said_too(
    client: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Findings exit with 1, even if calls are unchecked, and the report lists both."""
    monkeypatch.setattr(
        Ledger, "not_checked", lambda *_: (NotChecked("2 calls of thread 3 of process 2", 2, 2, 3),)
    )
    done = check("--", client, binary, "input-misaligned")
    assert exit_code(done) == 1
    assert "1 finding in" in done.output
    assert "; not checked: 2 calls of thread 3 of process 2" in done.output


def test_watch_says_what_it_did_not_see(
    tmp_path: Path, escapes: Path, other_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`watch` exits with 3 for processes beyond its limit, and a stored trace repeats that."""
    monkeypatch.setattr(process_memory, "MOST_PROCESSES", 1)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other_library.parent))
    trace = tmp_path / "seen.jsonl"
    done = watch("-o", trace, "--", escapes, "forks-makes")
    assert exit_code(done) == 3
    assert "not watched: " in done.output
    assert "limit: at most 1 processes of one program" in done.output
    read = watch("--read", trace, "--json")
    assert exit_code(read) == 3
    found = json.loads(read.stdout)
    jsonschema.validate(found, load_schema("qnnmem.watch/1"))
    assert (found["passes"], bool(found["not_checked"])) == (False, True)


def test_the_layout_of_the_count_is_that_of_the_header(tmp_path: Path) -> None:
    """The ledger has the same size in Python as in the C header."""
    source = tmp_path / "size.c"
    header = (ROOT / "src/qnnmem/programs/ledger.h").read_text("utf-8")
    includes = ("dlfcn", "fcntl", "stdatomic", "stdint", "stdio", "string", "sys/mman", "unistd")
    source.write_text(
        "#define _GNU_SOURCE\n"
        + "".join(f"#include <{name}.h>\n" for name in includes)
        + f"typedef uint64_t word;\n{header}\n"
        + 'int main(void) { map_ledger(); printf("%zu", sizeof *ledger); }\n'
    )
    done = subprocess.run([_compiled(tmp_path / "size", source)], capture_output=True, check=True)
    assert int(done.stdout) == LEDGER_BYTES


def test_the_workbench_does_not_take_it_for_clean_or_broken() -> None:
    """The workbench shows exit code 3 for unchecked calls and 1 for findings."""
    from qnnmem.workbench.show import exit_code_of

    missing = [{"what": "1 call of thread 2 of process 2", "calls": 1, "process": 2, "thread": 2}]
    base = {"schema": "qnnmem.check-client/1", "exit_code": 0, "not_checked": missing}
    assert exit_code_of({**base, "passes": False, "findings": []}) == 3
    assert exit_code_of({**base, "passes": False, "findings": [{}]}) == 1
    assert exit_code_of({**base, "passes": True, "findings": [], "not_checked": []}) == 0
