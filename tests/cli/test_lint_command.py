"""`qnnmem lint`: exit codes, streams, options."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from command_line import verb

GOOD = '{"lpai_backend": {"target_env": "arm"}}'
WARNS = '{"lpai_backend": {"target": "arm"}}'
BAD = '{"lpai_graph": {"execute": {"mem_type": "TMC"}}}'
CUT = '{"lpai_graph": {'


run = verb("lint")


def file(folder: Path, text: str, name: str = "lpaiParams.conf") -> Path:
    """Write a config file."""
    path = folder / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [(GOOD, [], 0), (WARNS, [], 0), (WARNS, ["--strict"], 1), (BAD, [], 1), (CUT, [], 2)],
)
def test_exit_codes(text: str, options: list[str], code: int, tmp_path: Path) -> None:
    """Exit code 0 means no errors, 1 errors, 2 unreadable; --strict counts warnings as errors."""
    assert run(file(tmp_path, text), *options).return_value == code


def test_a_clean_file_gets_one_line(tmp_path: Path) -> None:
    """A clean file prints only the line `fine: FILE`."""
    path = file(tmp_path, GOOD)
    result = run(path)
    assert (result.stdout, result.stderr) == (f"fine: {path}\n", "")


def test_a_bad_mem_type_shows_the_documented_messages(tmp_path: Path) -> None:
    """An invalid mem_type prints both documented messages in full."""
    text = run(file(tmp_path, BAD)).stdout
    assert '"Invalid memory type", then "Memory type only supports DDR & TCM"' in text
    assert text.splitlines()[0] == "1 error in 1 file"


def test_an_unreadable_file_gets_one_line_on_standard_error(tmp_path: Path) -> None:
    """An unreadable file prints one line on standard error and leaves standard output empty."""
    path = file(tmp_path, CUT)
    result = run(path)
    assert result.stdout == ""
    assert result.stderr == f"qnnmem: {path}: line 1, column 17: {ENDS}\n"


ENDS = "the file ends inside the object or list that began on line 1"


def test_the_others_are_checked_though_one_is_unreadable(tmp_path: Path) -> None:
    """Other files are still checked if one is unreadable; the exit code is 2."""
    result = run(file(tmp_path, CUT, "cut.conf"), file(tmp_path, BAD))
    assert result.return_value == 2
    assert result.stdout.startswith("1 error in 1 file\n")
    assert result.stderr.count("\n") == 1


def test_json_holds_the_unreadable_ones_too(tmp_path: Path) -> None:
    """The JSON object lists unreadable files, too."""
    result = run(file(tmp_path, CUT, "cut.conf"), "--json")
    values = json.loads(result.stdout)
    assert (values["schema"], values["passes"]) == ("qnnmem.lint/1", False)
    assert values["files"][0]["unreadable"].endswith(ENDS)


def test_the_report_can_go_to_a_file(tmp_path: Path) -> None:
    """`-o` writes the report and replaces an existing file only with --force."""
    path, output = file(tmp_path, BAD), tmp_path / "report.json"
    assert run(path, "--json", "-o", output).return_value == 1
    assert json.loads(output.read_text())["errors"] == 1
    assert "already exists" in str(run(path, "-o", output).exception)
    assert run(path, "--format", "text", "-o", output, "--force").return_value == 1
    assert output.read_text().startswith("1 error in 1 file")


def test_a_file_must_be_named() -> None:
    """`qnnmem lint` without a file is a usage error."""
    assert isinstance(run().exception, click.UsageError)
