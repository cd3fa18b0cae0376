"""The meaning of error codes: numbers, names, pieces of lines, and the verb."""

from __future__ import annotations

import json

import jsonschema
import pytest
from command_line import verb

from qnnmem.cli.screen import shown
from qnnmem.doctor.explain import explain
from qnnmem.doctor.kb.entry import Condition, Entry, Line, When
from qnnmem.errors import UsageError
from qnnmem.qnn.codes import codes
from qnnmem.qnn.numbers import DSP_OFFSET, meanings, named, nearest_range
from qnnmem.results.schema import load_schema

DSP_RANGE = "0x80000400 to 0x800007ff: FastRPC, DSP side"


def entry(name: str, shown: str, code: int | None = None, verdict: str = "cause") -> Entry:
    """Return an entry that shows a line and optionally tests a code."""
    where = () if code is None else (Condition("", "code", "==", (code,)),)
    body = f"## Typical Logs\n\n```text\n{shown}\n```\n\n## Root Cause\n\nerr 5005 is elsewhere\n"
    return Entry(
        name,
        name,
        "unknown",
        "init",
        (When((f"{name}-sign",), where),),
        (Line(f"{name}-sign", "some text"),),
        verdict=verdict,
        body=body,
    )


run = verb("explain")


@pytest.mark.parametrize(
    "asked",
    [
        *(
            "1002",
            "0x3ea",
            "0x3EA",
            " 1002 ",
            "QNN_COMMON_ERROR_MEM_ALLOC",
            "qnn_graph_error_mem_alloc",
        ),
        *(
            "QNN_STATUS_MEMORY_ALLOCATION_FAILED",
            "Failed to create context from binary with err 0x3ea",
        ),
        "0x00010000000003ea",
        *("-1002", "-0x3ea", "1,002", "1002.", "(1002)", "[1002]", "#1002", "'1002'", "1002L"),
        *("0x3eaU", "0X3EAul", "3eah", "3ea", "err=1002", "err:0x3ea", "rc=0x3ea", "code:1002,"),
        *("errorCode=1002", "error_code: 1002", "ERR 1002!", "QNN error 1002 (0x3ea)"),
        *("error 1002 at line 57", "Failed to create context: error 1002: x.bin"),
        *("12:30:01 a.cpp:33 Failed 3 times, status=1002;", "failed with code [1002] in 12 ms"),
        *("QNN-COMMON-ERROR-MEM-ALLOC", "qnn common error mem alloc", "QnnCommonErrorMemAlloc"),
        *("Qnn::QNN_COMMON_ERROR_MEM_ALLOC", "QNN_COMMON_ERROR_MEM_ALLOC(1002)", "{1002}"),
        *("got QNN_GRAPH_ERROR_MEM_ALLOC from graph 7", "qnn_common-error_mem alloc."),
    ],
)
def test_one_code_has_many_spellings(asked: str) -> None:
    """Code 1002 is recognised as decimal, hexadecimal, name, log text and 64-bit handle."""
    found = explain(asked, ())
    assert [one.code for one in found.meanings] == [1002]
    assert "memory is not short" in found.meanings[0].not_what_it_says


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("0x68", {"AEE_ENORPCMEMORY", "AEE_ECONNRESET", "ECONNRESET", "ErrorNot2kAlignedVTCMReq"}),
        ("12", {"AEE_EEXPIRED", "ENOMEM", "ErrorFatalSchdule"}),
        ("-12", {"ENOMEM"}),
        ("graph prepare failed 12", {"ErrorFatalSchdule"}),
        ("RouterX86 graph serialize to memory failed -1", {"ErrorFatal"}),
        ("mmap failed, errno 12", {"ENOMEM"}),
        ("qnn_open failed, 0x80000406", {"AEE_EUNABLETOLOAD"}),
        ("0x80000402", {"AEE_ENOMEMORY"}),
        ("6022", {"QNN_GRAPH_ERROR_FINALIZE_FAILED"}),
        ("AEE_ENOSESSION", {"AEE_ENOSESSION"}),
        ("aee-enosession", {"AEE_ENOSESSION"}),
        ("80000406", {"AEE_EUNABLETOLOAD"}),
        ("-2147482618", {"AEE_EUNABLETOLOAD"}),
        ("0x80000406u", {"AEE_EUNABLETOLOAD"}),
        ("0xfffffff4", {"ENOMEM"}),
        ("0xfffffffffffffff4", {"ENOMEM"}),
        ("err: -12 (ENOMEM)", {"ENOMEM"}),
        ("errno=12", {"ENOMEM"}),
        ("e_nomem", {"ENOMEM"}),
        ("ioctl returned -38", {"ENOSYS"}),
        ("ENOSYS", {"ENOSYS"}),
        ("0xffffffff", {"ErrorFatal"}),
        (
            "MEM_ALLOC",
            {"QNN_COMMON_ERROR_MEM_ALLOC", "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_MEM_ALLOC"},
        ),
    ],
)
def test_a_number_means_what_its_printer_means(asked: str, names: set[str]) -> None:
    """A number has all its meanings unless nearby words name the component."""
    assert {one.name for one in explain(asked, ()).meanings} == names


def test_a_code_of_the_dsp_is_told_from_the_hosts() -> None:
    """The DSP offset gives the same name with another component and number."""
    host, dsp = meanings(6)[0], meanings(DSP_OFFSET + 6)[0]
    assert host.name == dsp.name
    assert host.component != dsp.component
    assert dsp.code == 0x80000406


@pytest.mark.parametrize("number", [104, 0x80000468])
def test_connection_reset_has_no_dsp_side(number: int) -> None:
    """AEE_ECONNRESET exists without the DSP offset only."""
    names = [one.name for one in meanings(number)]
    assert ("AEE_ECONNRESET" in names) is (number == 104)


@pytest.mark.parametrize(
    ("code", "near"),
    [
        (5999, "5xxx: Context"),
        (14009, "14xxx: Device"),
        (777, ""),
        (99999, ""),
        (0x800004FF, DSP_RANGE),
    ],
)
def test_an_unknown_number_says_where_it_would_belong(code: int, near: str) -> None:
    """An unknown number names the range of its component, if one exists."""
    found = explain(str(code), ())
    assert found.meanings == ()
    assert found.nearest_range == nearest_range(code) == near


@pytest.mark.parametrize(
    "asked",
    [
        *(
            "foo",
            "",
            "no number here",
            "12x",
            "QNN_NO_SUCH",
            "1" * 30,
            "ab",
            "bad",
            "deed",
            "-",
            ".",
        ),
        *("between 1002 and 6022 something", "v2.51.0", "=", "0x", "x" * 9000, "\x1b[31m", "١٢"),
    ],
)
def test_what_is_no_code_is_refused(asked: str) -> None:
    """Text without a code is refused."""
    with pytest.raises(UsageError, match="not an error code"):
        explain(asked, ())


def test_diagnoses_that_show_or_test_the_code_are_named() -> None:
    """Entries that show or test a code are listed, those with a cause first."""
    entries = (
        entry("tests", "nothing", 5005, verdict="undecided"),
        entry("shows", "failed with err 0x138d"),
        entry("longer", "size 15005 at 0x138d0"),
    )
    found = explain("5005", entries).meanings[0]
    assert [one.id for one in found.entries] == ["shows", "tests"]


def test_every_note_is_about_a_code_that_exists() -> None:
    """Every note belongs to an existing code."""
    import tomllib
    from importlib.resources import files

    text = files("qnnmem.qnn").joinpath("practice.toml").read_text("utf-8")
    for row in tomllib.loads(text)["note"]:
        family, _, code = row["of"].partition(":")
        found = [one for one in meanings(int(code, 0)) if one.family == family]
        assert found, row["of"]
        assert found[0].note.practice == row["practice"]


def test_every_qnn_code_is_found_by_its_names() -> None:
    """Every name and alias of a code leads to its number."""
    for code in codes().values():
        for name in (code.name, *code.aliases):
            assert code.code in [one.code for one in named(name)]


def test_the_verb_explains_several_codes() -> None:
    """The verb explains several codes; one unknown number gives exit code 2."""
    result = run("1002", "0x80000406", "5999")
    assert result.return_value == 2
    lines = result.stdout.splitlines()
    assert lines[0] == "1002 = 0x3ea  QNN_COMMON_ERROR_MEM_ALLOC  (QNN Common)"
    assert any("AEE_EUNABLETOLOAD" in line for line in lines)
    assert "5999 (5999 = 0x176f): no known code" in lines
    broken = shown(result.stdout, 80, colour=False).splitlines()
    assert max(map(len, broken)) <= 80


def test_the_verb_takes_negative_numbers() -> None:
    """A negative number is a code, not an option."""
    assert "ENOMEM" in run("-12").stdout


def test_json_has_every_meaning() -> None:
    """The JSON follows its schema and has every meaning, with decimal and hexadecimal numbers."""
    values = json.loads(run("0x68", "--json").stdout)
    jsonschema.validate(values, load_schema("qnnmem.explain/1"))
    (code,) = values["codes"]
    assert code["code"] == 104
    assert {one["hex"] for one in code["meanings"]} == {"0x68"}
    assert len(code["meanings"]) == 4


def test_the_verb_refuses_other_words() -> None:
    """The verb refuses other words with exit code 2."""
    result = run("foo")
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("QNN_COMMON_ERROR_MEM_ALOC", "QNN_COMMON_ERROR_MEM_ALLOC"),
        ("qnn-graph-error-finalize-faild", "QNN_GRAPH_ERROR_FINALIZE_FAILED"),
        ("ENOMEN", "ENOMEM"),
        ("AEE_ENOMEMRY", "AEE_ENOMEMORY"),
        ("QNN_CONTEXT_ERROR_CREATE", "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY"),
    ],
)
def test_a_name_that_is_nearly_one_has_suggestions(asked: str, name: str) -> None:
    """A misspelled or incomplete name gets a suggestion."""
    with pytest.raises(UsageError, match=rf"did you mean .*\b{name}\b"):
        explain(asked, ())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["1002"], 0),
        (["99999"], 2),
        (["1002", "99999"], 2),
        (["error", "1002"], 0),
        (["Failed", "to", "load", "context,", "err", "=", "1002"], 0),
        (["-1002"], 0),
    ],
)
def test_an_unknown_number_ends_with_2(words: list[str], code: int) -> None:
    """An unknown number gives exit code 2; known codes beside it are still explained."""
    done = run(*words)
    assert (done.exception, done.return_value) == (None, code)
    assert ("QNN_COMMON_ERROR_MEM_ALLOC" in done.stdout) is (words != ["99999"])
    assert ("no known code" in done.stdout) is bool(code)


@pytest.mark.parametrize("typo", ["QNN_NO_SUCH", "ENOSUCHTHING"])
def test_a_wrong_name_beside_a_number_is_not_swallowed(typo: str) -> None:
    """A misspelled name beside a number is refused."""
    assert isinstance(run("1002", typo).exception, UsageError)


def test_an_unknown_number_has_neighbours() -> None:
    """An unknown number shows its nearest known codes in text and JSON."""
    assert "nearest codes: 5014 QNN_CONTEXT_ERROR" in run("5999").stdout
    values = json.loads(run("5999", "--json").stdout)
    jsonschema.validate(values, load_schema("qnnmem.explain/1"))
    assert [one["code"] for one in values["codes"][0]["near"]] == [5014]


def test_verbose_names_every_diagnosis() -> None:
    """`-v` lists as many diagnoses as the JSON."""
    entries = json.loads(run("1002", "--json").stdout)["codes"][0]["meanings"][0]["entries"]
    text = run("1002", "-v").stdout
    assert len(entries) > 8
    assert [one["id"] for one in entries if f" {one['id']}: " not in text] == []
    assert "more" not in text.rpartition("diagnoses")[2].replace("memory", "")


def test_a_constant_that_is_no_code_is_called_one() -> None:
    """A constant that is not a code is refused with its value and a `kb find` command."""
    with pytest.raises(UsageError, match="the constant 0x7fffffff") as caught:
        explain("QNN_LPAI_MEM_TYPE_UNDEFINED", ())
    assert "kb find QNN_LPAI_MEM_TYPE_UNDEFINED" in str(caught.value)
