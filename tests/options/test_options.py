"""An option is declared once, as one typed field, and every interface reads that field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from qnnmem.cli.options import dress, takes
from qnnmem.cli.verbs import qnnmem
from qnnmem.errors import Setting, UsageError
from qnnmem.flags import flag
from qnnmem.gate.keys import KEYS, keys_of
from qnnmem.options.fix import FixOptions
from qnnmem.options.htp import FitOptions, FootprintOptions, QmemOptions, SweepOptions
from qnnmem.options.option import Opt, option_fields, typed
from qnnmem.options.plan import PlanFileOptions, PlanOptions
from qnnmem.options.prepare import PreparationOptions
from qnnmem.workbench.controls import controls_of, read_request
from qnnmem.workbench.tasks import tasks_for

ROOT = Path(__file__).parents[2]
TYPES = (
    *(PlanFileOptions, FitOptions, FootprintOptions, QmemOptions, SweepOptions),
    *(FixOptions, PreparationOptions),
)


class WithNewOption(PlanOptions, frozen=True, kw_only=True):
    """The options of a plan plus one new option."""

    sketch: Annotated[
        int, Opt("--sketch", "Stop after this many rounds.", ge=1, le=9, label="Rounds")
    ] = 1


def test_a_new_field_is_an_option_of_the_command_line() -> None:
    """A new field becomes a command-line option with help, bounds and default."""
    seen: list[WithNewOption] = []

    @click.command()
    @takes(WithNewOption)
    def command(options: WithNewOption) -> None:
        seen.append(options)

    dress(command)
    runner = CliRunner()
    assert re.search(
        r"--sketch .*Stop after this many rounds", runner.invoke(command, ["--help"]).stdout
    )
    assert runner.invoke(command, ["--sketch", "3", "--dim", "N=1"]).exit_code == 0
    assert runner.invoke(command, []).exit_code == 0
    assert seen == [WithNewOption(sketch=3, dims=(("N", 1),)), WithNewOption()]
    assert runner.invoke(command, ["--sketch", "10"]).exit_code == 2
    assert typed(seen[0]) == ["--dim=N=1", "--sketch=3"]


def test_a_new_field_is_a_key_of_budget_files() -> None:
    """A new field becomes a key of budget files with the same bounds."""
    read = keys_of(WithNewOption)["sketch"]
    assert read(3, "sketch") == 3
    with pytest.raises(UsageError, match="sketch must be a number from 1 to 9, not 10"):
        read(10, "sketch")


def test_a_new_field_is_a_control_of_the_workbench() -> None:
    """A new field becomes a control of the workbench with its label and bounds."""
    (control,) = (one for one in controls_of(WithNewOption) if one.name == "sketch")
    assert control.values() | {"choices": ()} == {
        **{"name": "sketch", "label": "Rounds", "option": "--sketch", "kind": "number"},
        **{"hint": "1 to 9", "low": 1, "high": 9, "many": False, "is_rare": False},
        **{"is_needed": False, "only_with": None, "choices": ()},
    }
    assert [value for _, value in read_request([control], {"sketch": 3})] == [3]
    with pytest.raises(UsageError, match="Rounds cannot be 10; 1 to 9"):
        list(read_request([control], {"sketch": 10}))


def test_every_option_of_a_plan_is_everywhere() -> None:
    """The command line, the reference, budget files and the workbench have every plan option."""
    page = (ROOT / "docs/reference/commands/plan.md").read_text("utf-8")
    budgets = (ROOT / "docs/reference/commands/check.md").read_text("utf-8")
    known = {word for one in qnnmem.commands["plan"].params for word in one.opts}
    controls = {one.name for one in tasks_for("onnx")["plan"].controls}
    for field in option_fields(PlanFileOptions):
        assert field.opt.flag in known
        assert f"`{field.opt.flag}" in page
        if field.is_shared:
            assert field.key in KEYS
            assert f"| `{field.key}` |" in budgets
            assert field.name in controls or field.name == "time_limit"  # shorter on the page


def test_a_setting_of_an_error_is_the_option_of_its_field() -> None:
    """A setting named by an error maps to its option, except for budgets."""
    for field in option_fields(PlanOptions):
        assert field.name == "budgets" or flag(Setting(field.name)) == field.opt.flag


@pytest.mark.parametrize("group", TYPES)
def test_files_and_code_never_come_from_the_network(group: type[PlanOptions]) -> None:
    """Options that name files or run native code cannot be set by workbench or budget files."""
    local = {"trust", "cache", "log_file", "calibration", "config", "recipe", "logs", "beside"}
    local |= {"data", "output", "force", "cluster"}
    assert not local & {one.name for one in controls_of(group)}
    assert not local & set(keys_of(group))


@pytest.mark.parametrize("group", TYPES)
def test_an_option_is_typed_as_it_is_parsed(group: type[PlanOptions]) -> None:
    """Default options need no command-line words."""
    assert typed(group()) == []
