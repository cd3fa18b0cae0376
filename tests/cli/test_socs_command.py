"""`qnnmem socs`: the table, one SoC, JSON and unknown names."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from command_line import verb

from qnnmem.errors import UsageError
from qnnmem.results.schema import load_schema

run = verb("socs")


def test_the_table_lists_every_target() -> None:
    """The first line counts the SoCs with HTP, and each has a line."""
    lines = run().stdout.splitlines()
    assert lines[0] == "82 SoC names with HTP, 69 ids"
    assert any(line.split()[:3] == ["SM8650", "57", "v75"] for line in lines)
    assert not any(line.startswith("SM8250") for line in lines)


def test_all_includes_those_without_htp() -> None:
    """`--all` adds the SoCs without HTP and counts them."""
    lines = run("--all").stdout.splitlines()
    assert lines[0] == "82 SoC names with HTP, 69 ids, 60 without HTP"
    assert any(line.startswith("SM8250") for line in lines)


def test_one_soc_is_shown_with_its_source() -> None:
    """One SoC is shown with its Hexagon version and the source of its data."""
    done = run("snapdragon 8 elite")
    assert done.stdout.splitlines()[0] == "SM8750: Hexagon v79 with HTP"
    assert "onnxruntime-qnn 2.7.0" in done.stdout
    assert done.return_value == 0


def test_a_soc_without_htp_is_shown_with_exit_code_3() -> None:
    """A SoC without HTP is shown and gives exit code 3."""
    done = run("SM8250")
    assert done.stdout.splitlines()[0] == "SM8250: not a target of the HTP backend"
    assert done.return_value == 3


def test_an_unknown_name_is_refused() -> None:
    """An unknown name is refused with a suggestion."""
    done = run("SM8651")
    assert isinstance(done.exception, UsageError)
    assert "did you mean SM8650" in str(done.exception)


@pytest.mark.parametrize(("arguments", "count"), [((), 82), (("--all",), 142), (("57",), 1)])
def test_json_holds_numbers_with_origin(arguments: tuple[str, ...], count: int) -> None:
    """The JSON follows its schema and gives sizes in bytes with their origin."""
    values = json.loads(run(*arguments, "--json").stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.socs/1")).validate(values)
    assert values["schema"] == "qnnmem.socs/1"
    assert len(values["socs"]) == count
    found = next(soc for soc in values["socs"] if soc["name"] == "SM8650")
    assert found["vtcm_bytes"]["value"] == 8 << 20
    assert found["compile_limit_bytes"]["origin"] == "measured"


def test_output_goes_to_a_file(tmp_path: Path) -> None:
    """With -o, standard output is empty and the file holds the table."""
    target = tmp_path / "socs.txt"
    assert run("-o", str(target)).stdout == ""
    assert target.read_text("utf-8").startswith("82 SoC names")


def test_a_version_of_hexagon_lists_those_that_have_it() -> None:
    """A Hexagon version lists its SoCs as a table."""
    done = run("v79")
    assert done.stdout.splitlines()[0] == "4 SoCs with HTP"
    assert " v79 " in done.stdout
    assert " v75 " not in done.stdout
    assert done.return_value == 0


def test_a_version_without_htp_ends_with_3() -> None:
    """A Hexagon version without HTP gives exit code 3."""
    done = run("v66")
    assert done.stdout.startswith("0 SoCs with HTP, ")
    assert done.return_value == 3
