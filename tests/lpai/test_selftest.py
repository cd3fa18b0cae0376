from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest
from click.testing import CliRunner

from qnnmem.cli.verbs import qnnmem
from qnnmem.contract.leaks import Resource
from qnnmem.contract.rules import rules
from qnnmem.finding import Finding
from qnnmem.lpai import selftest
from qnnmem.lpai.runtime import graph as graph_module
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.graph_io import IoCheck
from qnnmem.lpai.selftest.client import FINDING, Client, ContractCase, Trial, breaks
from qnnmem.results.schema import load_schema

CASES = selftest.cases()
CONTRACT = [f"R{number}" for number in range(1, 21)]
OTHERS = [
    *(
        f"{letter}{n + 1}"
        for letter, last in [("T", 6), ("X", 6), ("M", 4), ("L", 4), ("B", 1), ("P", 1), ("H", 1)]
        for n in range(last)
    ),
    "X8",
]


SEEN: set[tuple[str, int]] = set()  # the rules and codes that the cases provoke


@pytest.fixture(scope="module")
def outcomes() -> dict[ContractCase, str]:
    """Return the outcome of each case, and record the codes that it provokes."""
    fail = Backend.fail

    def watched(self: Backend, code: int, found: Finding) -> None:
        SEEN.add((found.rule, code))
        fail(self, code, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backend, "fail", watched)
        return {case: case.run() for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule} {case.title}")
def test_the_runtime_does_what_the_contract_says(
    case: ContractCase, outcomes: dict[ContractCase, str]
) -> None:
    """Every case of the self-test has the outcome that the contract states."""
    assert outcomes[case] == ""


@pytest.mark.parametrize("rule", rules())
def test_cases_expect_only_codes_of_their_rule(rule: str) -> None:
    """A case expects only codes that the table lists for its rule."""
    expected = {code for case in CASES if case.rule == rule for code in case.codes}
    assert expected <= set(rules()[rule].codes)


@pytest.mark.parametrize("rule", [*CONTRACT, *OTHERS])
def test_every_rule_is_kept_and_broken(rule: str) -> None:
    """Every rule has a case that keeps it and a case that breaks it."""
    assert {case.breaks for case in CASES if case.rule == rule} == {True, False}


def test_titles_tell_cases_apart() -> None:
    """Cases of one rule have different titles."""
    assert len({(case.rule, case.title) for case in CASES}) == len(CASES)


@pytest.mark.usefixtures("outcomes")
def test_answers_are_those_of_the_rules() -> None:
    """Every code that a case provokes is listed for its rule."""
    assert len(SEEN) > 30
    assert [pair for pair in sorted(SEEN) if pair[1] not in rules()[pair[0]].codes] == []


BROKEN_RUNTIMES = {
    "R5": (Graph, "_check_ready"),
    "R7": (Graph, "_check_kept"),
    "R10": (Context, "check_binary"),
    "X2": (Graph, "_check_guards"),
    "X5": (graph_module, "check_pools"),
    "X8": (graph_module, "check_pools"),
    "T6": (IoCheck, "_memory_type"),
    "L1": (Resource, "left"),
    "L3": (Context, "_note_registered"),
    "X6": (Graph, "_seal_state"),
}


@pytest.mark.parametrize("rule", BROKEN_RUNTIMES)
def test_a_runtime_that_looks_away_fails(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a check of the runtime is disabled, the self-test of its rule fails."""
    home, method = BROKEN_RUNTIMES[rule]
    monkeypatch.setattr(home, method, lambda *_arguments: ())
    (row,) = selftest.run_cases(case for case in CASES if case.rule == rule)
    assert not row.as_expected


def test_a_foreign_exception_is_a_failure_and_not_a_crash() -> None:
    """A Python exception in a case is reported as a failure of that case."""

    def crash(_trial: Trial) -> None:
        raise ZeroDivisionError("by nothing")

    (row,) = selftest.run_cases([breaks("R1", "crash", FINDING, crash)])
    assert [f.reason for f in row.failures] == [
        "ZeroDivisionError raised instead of a QNN code: by nothing"
    ]
    assert (row.keeping, row.breaking) == (0, 1)


@pytest.mark.parametrize(("rule", "code"), [("R2", 6022), ("R2", 6023), ("R5", 6022)])
def test_another_code_or_rule_is_noticed(rule: str, code: int) -> None:
    """A case fails if its call is refused with another code or rule."""
    case = breaks(rule, "", code, lambda t: t.refused(Client("plain").graph.execute))
    assert case.run() == f"expected {code} and rule {rule}, got 6023 and R5"


def test_a_call_that_should_be_refused_and_is_not_is_noticed() -> None:
    """A case fails if its call succeeds, or if no call was refused."""
    case = breaks("R2", "", 6022, lambda t: t.refused(Client("plain").ready().graph.execute))
    assert case.run() == "expected 6022 and rule R2, but the call succeeded"
    assert breaks("R2", "", 6022, lambda _: None).run() == "no call was refused with 6022"


def test_what_does_not_hold_is_noticed() -> None:
    """A missing finding, an extra finding, a wrong result and a false condition are problems."""
    trial = Trial("X1")
    client = trial.client("plain", ask=False).ready().noted(Client.run).gives(7).no_findings()
    client.holds(lambda c: c.graph.name == "bare", "not so")
    assert trial.problems == [
        "expected a finding of X1, got R1, R1",
        "the result is not 7",
        "findings: R1, R1, R1",
        "not so",
    ]


def test_the_first_problem_is_reported() -> None:
    """Only the first problem of a case is reported."""

    def steps(t: Trial) -> None:
        t.check(False, "first")
        t.check(False, "second")

    assert breaks("R1", "", FINDING, steps).run() == "first"


def invoke(*options: str) -> tuple[int, str]:
    """Return the exit code and the output of the command."""
    done = CliRunner().invoke(qnnmem, ["lpai", "selftest", *options], standalone_mode=False)
    return done.return_value, done.output


def test_the_command_prints_a_table_and_is_content() -> None:
    """The self-test prints the verdict first, then a line per rule, and exits with 0."""
    code, text = invoke()
    lines = text.splitlines()
    assert code == 0
    assert lines[0] == f"{len(CONTRACT) + len(OTHERS)} rules, {len(CASES)} cases: all as expected"
    starts = {line.split()[0] for line in lines if line[:1].strip()}
    assert {*CONTRACT, *OTHERS} <= starts
    assert "FAILED" not in text


def test_the_command_says_what_went_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed case is named with its reason, and the exit code is 1."""
    monkeypatch.setattr(Graph, "_check_guards", lambda _graph, _lent: None)
    some = tuple(case for case in CASES if case.rule in ("R7", "X2"))
    monkeypatch.setattr(selftest, "cases", lambda: some)
    code, text = invoke()
    assert code == 1
    assert text.splitlines()[0].endswith("1 failed")
    assert "FAILED" in text
    assert "one byte written after the end of scratch" in text


def test_json_holds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON output lists each rule with its counts, failures and verdict."""
    monkeypatch.setattr(Graph, "_check_guards", lambda _graph, _lent: None)
    code, text = invoke("--json")
    values = json.loads(text)
    assert (code, values["schema"]) == (1, "qnnmem.lpai-selftest/1")
    by_rule = {row["rule"]: row for row in values["rules"]}
    assert [rule for rule, row in by_rule.items() if not row["as_expected"]] == ["X2"]
    assert by_rule["X2"]["failures"][0]["title"] == "one byte written after the end of scratch"
    jsonschema.validate(values, load_schema(values["schema"]))
    count = sum(case.rule == "R7" for case in CASES)
    assert by_rule["R7"]["keeping"] + by_rule["R7"]["breaking"] == count


def test_the_command_works_from_a_shell() -> None:
    """`python -m qnnmem lpai selftest` exits with 0 and writes nothing to stderr."""
    command = [sys.executable, "-W", "error", "-m", "qnnmem", "lpai", "selftest", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
