"""Programs under the contract; `tools/client_mistakes.py` tries every mistake and compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jsonschema
import pytest
from client_mistakes import MISTAKES, lines, problems, run
from command_line import exit_code, sentence, verb
from hostile_client import attack

from qnnmem import lpai
from qnnmem.client.build import shim_folder
from qnnmem.client.functions import NAMES
from qnnmem.client.memory import SHARED_BYTES
from qnnmem.client.rules import client_rules
from qnnmem.client.suppress import Suppression, read_suppressions
from qnnmem.errors import LoadError, UsageError
from qnnmem.report.schema import load_schema

ROOT = Path(__file__).resolve().parents[2]
# One of each kind: freed, misaligned, short, changed, ignored, forked, closed, leaked, in flight.
TRIED = (
    *(
        "scratch-misaligned",
        "scratch-block-too-small",
        "persistent-freed-early",
        "scratch-on-stack",
    ),
    *("persistent-overwritten", "finalize-code-ignored", "forked-child", "closed-early"),
    *("context-leaked", "async-freed", "pointer-wild", "context-freed-twice", "crash"),
)
check = verb("check-client")


def test_every_mistake_of_the_client_has_an_expectation() -> None:
    """What the example can do wrong and what the tool expects go together."""
    source = (ROOT / "examples" / "lpai_client.c").read_text("utf-8")
    assert [name for name in MISTAKES if f'makes("{name}")' not in source] == []
    assert {one.line for one in MISTAKES.values()} - {""} <= lines().keys()
    assert len(MISTAKES) >= 25


@pytest.mark.parametrize("name", TRIED)
def test_a_mistake_is_found_with_its_rule_and_its_line(
    client: Path, binary: Path, name: str
) -> None:
    """The rule, the line of the call, and the line where memory was freed."""
    assert list(problems(run(client, binary, name), MISTAKES[name])) == []


@pytest.mark.parametrize("words", [(), ("async",), ("threads=3",)], ids=str)
def test_a_client_without_mistakes_is_clean_and_computes_the_same(
    client: Path, binary: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Nothing is found, and the last result is what the runtime computes in Python."""
    import numpy

    data = numpy.arange(25, dtype=numpy.int32)
    (tmp_path / "x.raw").write_bytes(data.tobytes())
    given = ("runs=5", f"input={tmp_path / 'x.raw'}", f"output={tmp_path / 'y.raw'}")
    report = run(client, binary, *given, *words)
    times = 15 if "threads=3" in words else 5
    with lpai.open(binary) as session:
        wanted = [session.run({"x": data.reshape(1, 25)})["y"] for _ in range(times)][-1]
    assert report.findings == ()
    assert (tmp_path / "y.raw").read_bytes() == wanted.tobytes()


def test_the_command_says_which_rule_and_where(client: Path, binary: Path, tmp_path: Path) -> None:
    """Exit code 1, JSON that fits its schema, and a suppression that makes it the program's own."""
    target = tmp_path / "found.json"
    done = check("-o", target, "--", client, binary, "input-misaligned")
    assert exit_code(done) == 1
    found = json.loads(target.read_text("utf-8"))
    jsonschema.validate(found, load_schema("qnnmem.check-client/1"))
    assert [one["rule"] for one in found["findings"]] == ["R3"]
    assert found["findings"][0]["place"].endswith(f"lpai_client.c:{lines()['execute']}")
    known = tmp_path / "known.txt"
    known.write_text("# meant\nR3 QnnGraph_execute lpai_client.c\n", "utf-8")
    done = check("--suppress", known, "--", client, binary, "input-misaligned")
    assert exit_code(done) == 3
    assert "1 known finding left out" in done.output


def test_findings_are_for_build_servers_too(client: Path, binary: Path, tmp_path: Path) -> None:
    """SARIF has the place of the call and of the free; JUnit has a failure."""
    target = tmp_path / "found.sarif"
    check("--format", "sarif", "-o", target, "--", client, binary, "scratch-freed-early")
    result = json.loads(target.read_text("utf-8"))["runs"][0]["results"][0]
    where = [one["physicalLocation"] for one in (*result["locations"], *result["relatedLocations"])]
    assert [one["region"]["startLine"] for one in where] == [lines()["execute"], lines()["free"]]
    target = tmp_path / "found.xml"
    check("--format", "junit", "-o", target, "--", client, binary, "graph-unknown")
    suite = ElementTree.fromstring(target.read_text("utf-8"))  # noqa: S314  # our own
    assert [one.get("type") for one in suite.iter("failure")] == ["R12"]


def test_a_device_would_go_on(client: Path, binary: Path) -> None:
    """Asked to continue, the call that broke a rule answers 0 and the program comes to its end."""
    done = check("--continue-on-error", "--", client, binary, "input-misaligned")
    assert exit_code(done) == 1
    assert "exit code 0" in done.output


def test_a_program_that_never_calls_qnn_is_no_clean_client() -> None:
    """Nothing was checked: exit code 2."""
    done = check("--", sys.executable, "-c", "pass")
    assert exit_code(done) == 2
    assert "never called QNN" in done.output


def test_what_cannot_be_run_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is not there, one that is static, and a machine without a compiler."""
    assert "is not there" in sentence(check("--", tmp_path / "nothing"))
    static = tmp_path / "static"
    static.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57))
    static.chmod(0o755)
    assert "statically linked" in sentence(check("--", static))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UsageError, match="C compiler"):
        shim_folder(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="Linux"):
        shim_folder(tmp_path)


def test_a_client_whose_checker_is_killed_does_not_hang(
    client: Path, binary: Path, tmp_path: Path
) -> None:
    """It is ended with its checker, and the next run removes the folder of the socket."""
    command = [sys.executable, "-m", "qnnmem", "check-client", "--", str(client), str(binary)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, "runs=100000000"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        end = time.monotonic() + 60
        mine: list[int] = []
        while not mine and time.monotonic() < end:
            time.sleep(0.05)
            there = [int(one) for one in children.read_text("utf-8").split()]
            mine = [one for one in there if _program(one) == client.name]
        os.kill(parent.pid, signal.SIGKILL)
    assert mine
    while Path(f"/proc/{mine[0]}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{mine[0]}").exists()


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except OSError:
        return ""


def test_messages_of_a_hostile_client_end_a_connection_at_worst() -> None:
    """`tools/hostile_client.py` sends 5,000 of them."""
    assert attack(200, 0) == []


def test_a_suppression_names_a_rule_that_there_is(tmp_path: Path) -> None:
    """A line without effect would be taken for one that has it."""
    path = tmp_path / "known.txt"
    path.write_text("L1\nC? dlclose\n", "utf-8")
    assert read_suppressions(path) == (Suppression("L1"), Suppression("C?", "dlclose"))
    path.write_text("Z9\n", "utf-8")
    with pytest.raises(LoadError, match="no rule"):
        read_suppressions(path)


def test_the_shim_is_small_and_knows_every_function() -> None:
    """Under 600 lines, and its tables have what the Python side has names for."""
    source = (ROOT / "src" / "qnnmem" / "client" / "shim.c").read_text("utf-8")
    assert len(source.splitlines()) < 600
    assert len(NAMES) == 72 + 8
    assert SHARED_BYTES == 24 + 16 * 1024 + 16 + 24 * 256 + 24 * (1 << 17)


def test_the_page_has_every_rule_about_programs() -> None:
    """Title, consequence and cure stand in the reference."""
    page = (ROOT / "docs/reference/commands/check-client.md").read_text("utf-8")
    for rule in client_rules().values():
        assert f"### {rule.id}" in page
        assert rule.title in page
        assert rule.cure in page
